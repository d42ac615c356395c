"""Root systems and products of reflections, checked by the groups that they generate."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from statetrack.hardening.groups import (
    CannotRoundError,
    into_reflections,
    representation,
    root_system,
)

RNG = torch.Generator().manual_seed(0)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=RNG).double()


def orthogonal(matrices: Tensor) -> Tensor:
    """The orthogonal matrices nearest to these."""
    u, _, w = torch.linalg.svd(matrices)
    return u @ w


def rotation(angle: float) -> Tensor:
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[c, -s], [s, c]]).double()


def permutations(n: int) -> Tensor:
    """All of S_n as matrices [n!, n - 1, n - 1]: on the vectors whose numbers sum to 0."""
    basis, _ = torch.linalg.qr(torch.cat([torch.ones(n, 1).double(), noise(n, n - 1)], 1))
    eye = torch.eye(n).double()
    every = torch.stack([eye[list(p)] for p in itertools.permutations(range(n))])
    return basis[:, 1:].T @ every @ basis[:, 1:]


def swaps(n: int, size: int) -> Tensor:
    """The unit roots of S_n, (e_i - e_j) / sqrt 2, turned at random into `size` dimensions."""
    rng = torch.Generator().manual_seed(n)
    turn, _ = torch.linalg.qr(torch.randn(size, size, generator=rng).double())
    roots = torch.zeros(n * (n - 1) // 2, size).double()
    for row, (i, j) in zip(roots, itertools.combinations(range(n), 2), strict=True):
        row[i], row[j] = 0.5**0.5, -(0.5**0.5)
    return roots @ turn


def noisy(k: Tensor, noise: float) -> Tensor:
    k = k + noise * torch.randn(k.shape, generator=torch.Generator().manual_seed(1)).double()
    return k / k.norm(dim=1, keepdim=True)


def order(roots: Tensor) -> int:
    """How many matrices the reflections generate, by multiplying them out."""
    eye = torch.eye(roots.shape[1]).double()
    generators = [eye - 2 * torch.outer(k, k) for k in roots]
    found = {tuple(eye.mul(1e4).round().flatten().tolist())}
    todo = [eye]
    while todo and len(found) < 1000:
        matrix = todo.pop()
        for g in generators:
            key = tuple((g @ matrix).mul(1e4).round().add(0.0).flatten().tolist())
            if key not in found:
                found.add(key)
                todo.append(g @ matrix)
    return len(found)


@pytest.mark.parametrize("n", [3, 4, 5])
def test_noisy_swaps_become_the_symmetric_group(n):
    k = noisy(swaps(n, 8), 0.01)
    exact, error = root_system(k, (1, 2, 3))
    assert order(exact) == math.factorial(n)
    assert 0.001 < error < 0.1
    assert (exact - k).norm(dim=1).max() < 0.1  # turned onto the old keys
    assert torch.allclose(exact.norm(dim=1), torch.ones(len(k)).double(), atol=1e-12)


def test_the_pentagon_needs_its_angle():
    angles = torch.tensor([0.0, math.pi / 5]).double()
    k = noisy(torch.stack([angles.cos(), angles.sin()], 1), 0.005)
    with pytest.raises(CannotRoundError, match=r"an inner product of keys is 0\.\d+ off"):
        root_system(k, (1, 2, 3))
    exact, _ = root_system(k, (1, 2, 5))
    assert order(exact) == 10


def test_inner_products_that_no_vectors_have():
    k = swaps(5, 8)[:3, :2]  # in the plane there is no room
    with pytest.raises(CannotRoundError):
        root_system(k / k.norm(dim=1, keepdim=True), (1, 2, 3))


def test_a_group_without_end_is_refused():
    gram = torch.eye(3).double()
    gram[0, 1] = gram[1, 0] = math.cos(math.pi / 4)
    gram[0, 2] = gram[2, 0] = math.cos(2 * math.pi / 5)  # no finite group in space has 4 and 5
    values, vectors = torch.linalg.eigh(gram)
    with pytest.raises(CannotRoundError, match="more than 1000 roots"):
        root_system(vectors * values.sqrt(), (1, 2, 4, 5))


@pytest.mark.parametrize("m", [3, 5, 7])
def test_a_rotation_gets_its_order(m):
    made = representation(rotation(2 * math.pi / m + 0.02)[None])[0]
    assert torch.allclose(torch.linalg.matrix_power(made, m), torch.eye(2).double(), atol=1e-12)
    assert torch.allclose(made, rotation(2 * math.pi / m), atol=1e-12)


def test_noisy_permutations_multiply_as_they_should():
    exact = permutations(4)
    made = representation(orthogonal(exact + 0.03 * noise(*exact.shape)))
    assert (made - exact).abs().max() < 0.1
    products = (exact[:, None] @ exact).flatten(0, 1)
    which = torch.cdist(products.flatten(1), exact.flatten(1)).argmin(1)  # their table
    assert torch.allclose((made[:, None] @ made).flatten(0, 1), made[which], atol=1e-12)


def test_generators_give_their_group():
    """A swap of neighbours and a cycle of all five: S5."""
    exact = permutations(5)
    order = list(itertools.permutations(range(5)))
    chosen = exact[[order.index((1, 0, 2, 3, 4)), order.index((1, 2, 3, 4, 0))]]
    made = representation(orthogonal(chosen + 0.01 * noise(2, 4, 4)))
    group = [torch.eye(4).double()]
    for element in group:  # grows while it is read
        for g in made:
            if min(float((g @ element - e).abs().max()) for e in group) > 1e-9:
                group.append(g @ element)
    assert len(group) == 120


def test_matrices_near_to_no_finite_group():
    with pytest.raises(CannotRoundError, match="its products"):
        representation(orthogonal(noise(2, 3, 3)))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
def test_into_reflections(count):
    keys = noise(4, 5)
    keys = keys / keys.norm(dim=1, keepdim=True)
    A = eye = torch.eye(5).double()
    for k in keys[:count]:
        A = (eye - 2 * torch.outer(k, k)) @ A
    roots = into_reflections(A, keys + 0.01 * noise(4, 5))
    assert len(roots) == count
    made = eye
    for k in roots:
        made = (eye - 2 * torch.outer(k, k)) @ made
    assert torch.allclose(made, A, atol=1e-12)
    assert torch.allclose(roots, keys[:count], atol=0.2)
    with pytest.raises(CannotRoundError, match="more reflections than it has"):
        into_reflections(-eye, keys)
