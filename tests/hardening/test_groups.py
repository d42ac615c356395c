"""Root systems and factors of matrices, checked by the groups that they generate."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from statetrack.hardening.groups import CannotRoundError, into_reflections, root_system

RNG = torch.Generator().manual_seed(0)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=RNG).double()


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
    with pytest.raises(CannotRoundError, match=r"an inner product of its keys is 0\.\d+ away"):
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
    with pytest.raises(CannotRoundError, match="more Householder factors than it has"):
        into_reflections(-eye, keys)


@pytest.mark.parametrize("degrees", [120, -120, 72, -144, 180, 1])
def test_rotations_of_the_first_plane_share_a_root(degrees):
    A = torch.eye(4).double()
    angle = math.radians(degrees)
    A[:2, :2] = torch.tensor([[math.cos(angle), -math.sin(angle)],
                              [math.sin(angle), math.cos(angle)]])  # fmt: skip
    roots = into_reflections(A, noise(2, 4))
    reflections = [torch.eye(4).double() - 2 * torch.outer(k, k) for k in roots]
    assert torch.allclose(reflections[1] @ reflections[0], A, atol=1e-12)
    assert [1.0, 0.0, 0.0, 0.0] in roots.tolist()
    assert (roots >= 0).all()
    with pytest.raises(CannotRoundError, match="more Householder factors than it has"):
        into_reflections(A, noise(1, 4))
