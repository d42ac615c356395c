"""Noisy matrices become those of a finite group, even if some of them are wrong."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from statetrack.hardening.groups import CannotRoundError
from statetrack.hardening.representations import borrow, polar, represent, without_signs
from tests.hardening.test_groups import noise

ONE = torch.ones(1)


def rotation(angle: float) -> Tensor:
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[c, -s], [s, c]]).double()


def permutations(n: int) -> Tensor:
    """All of S_n as matrices [n!, n - 1, n - 1]: on the vectors whose numbers sum to 0."""
    basis, _ = torch.linalg.qr(torch.cat([torch.ones(n, 1).double(), noise(n, n - 1)], 1))
    eye = torch.eye(n).double()
    every = torch.stack([eye[list(p)] for p in itertools.permutations(range(n))])
    return basis[:, 1:].T @ every @ basis[:, 1:]


def table(matrices: Tensor) -> Tensor:
    """[n, n]: the number of each product in a list of all elements of a group."""
    products = (matrices[:, None] @ matrices).flatten(0, 1)
    distances, which = torch.cdist(products.flatten(1), matrices.flatten(1)).min(1)
    assert distances.max() < 1e-6
    return which


@pytest.mark.parametrize("m", [3, 5, 7])
def test_a_rotation_gets_its_order(m):
    made = represent(rotation(2 * math.pi / m + 0.02)[None], ONE).matrices[0]
    assert torch.allclose(torch.linalg.matrix_power(made, m), torch.eye(2).double(), atol=1e-12)
    assert torch.allclose(made, rotation(2 * math.pi / m), atol=1e-12)


def test_noisy_permutations_multiply_as_they_should():
    exact = permutations(4)
    made = represent(polar(exact + 0.03 * noise(*exact.shape)), torch.ones(24)).matrices
    assert (made - exact).abs().max() < 0.1
    products = (exact[:, None] @ exact).flatten(0, 1)
    which = torch.cdist(products.flatten(1), exact.flatten(1)).argmin(1)  # their table
    assert torch.allclose((made[:, None] @ made).flatten(0, 1), made[which], atol=1e-12)


def test_generators_give_their_group():
    """A swap of neighbours and a cycle of all five: S5."""
    exact = permutations(5)
    order = list(itertools.permutations(range(5)))
    chosen = exact[[order.index((1, 0, 2, 3, 4)), order.index((1, 2, 3, 4, 0))]]
    made = represent(polar(chosen + 0.01 * noise(2, 4, 4)), torch.ones(2)).matrices
    group = [torch.eye(4).double()]
    for element in group:  # grows while it is read
        for g in made:
            if min(float((g @ element - e).abs().max()) for e in group) > 1e-9:
                group.append(g @ element)
    assert len(group) == 120


def test_matrices_near_to_no_finite_group():
    with pytest.raises(CannotRoundError, match="not close to a finite group"):
        represent(polar(noise(2, 3, 3)), torch.ones(2))


@pytest.fixture(scope="module")
def wrong() -> tuple[Tensor, Tensor, Tensor]:
    """All of S4, noisy; four of them are arbitrary; and the quality of each."""
    exact = permutations(4)
    given, quality = polar(exact + 0.1 * noise(*exact.shape)), torch.ones(24)
    random = polar(noise(100, 3, 3))
    far = torch.cdist(random.flatten(1), exact.flatten(1)).min(1).values > 1.2
    given[[3, 9, 15, 20]] = random[far][:4]
    quality[[3, 9, 15, 20]] = 0.1
    return exact, given, quality


def test_matrices_that_are_wrong_are_outvoted(wrong):
    exact, given, quality = wrong
    made = represent(given, quality)
    assert len(made.elements) == 24
    right = torch.ones(24, dtype=torch.bool)
    right[[3, 9, 15, 20]] = False
    assert torch.equal(made.fits, right)
    assert (made.matrices - exact)[right].abs().max() < 0.2
    elements = table(made.elements)
    assert len(elements) == 24**2


def test_another_head_tells_what_a_wrong_matrix_should_be(wrong):
    exact, given, quality = wrong
    made = represent(given, quality)
    every = represent(polar(exact + 0.03 * noise(*exact.shape)), torch.ones(24))
    helped = borrow(made, [every])
    assert helped.fits.all()
    assert torch.equal(table(helped.matrices), table(exact))
    sign = represent(torch.linalg.det(exact).sign()[:, None, None], torch.ones(24))
    assert len(sign.elements) == 2  # tells too little apart
    assert torch.equal(borrow(made, [sign]).fits, made.fits)


def test_signs_are_undone():
    """Matrices of A5 with some signs the other way generate A5 x Z2."""
    even = [i for i, p in enumerate(permutations(5)) if torch.linalg.det(p) > 0]
    exact = permutations(5)[even]
    signs = torch.ones(60).double()
    signs[[7, 30, 31]] = -1.0
    made = represent(polar(signs[:, None, None] * exact + 0.02 * noise(60, 4, 4)), torch.ones(60))
    assert len(made.elements) == 120
    halved = without_signs(made)
    assert len(halved.elements) == 60
    assert (halved.matrices - exact).abs().max() < 0.1
    assert without_signs(halved) is None
