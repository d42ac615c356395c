"""Root systems and affine reflections, checked by the groups that they generate."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from statetrack.hardening.reflections import (
    CannotHardenError,
    Head,
    Rule,
    inexact,
    root_system,
    snap,
)


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
    with pytest.raises(CannotHardenError, match=r"an inner product of keys is 0\.\d+ off"):
        root_system(k, (1, 2, 3))
    exact, _ = root_system(k, (1, 2, 5))
    assert order(exact) == 10


def test_inner_products_that_no_vectors_have():
    k = swaps(5, 8)[:3, :2]  # in the plane there is no room
    with pytest.raises(CannotHardenError):
        root_system(k / k.norm(dim=1, keepdim=True), (1, 2, 3))


def test_a_group_without_end_is_refused():
    gram = torch.eye(3).double()
    gram[0, 1] = gram[1, 0] = math.cos(math.pi / 4)
    gram[0, 2] = gram[2, 0] = math.cos(2 * math.pi / 5)  # no finite group in space has 4 and 5
    values, vectors = torch.linalg.eigh(gram)
    with pytest.raises(CannotHardenError, match="more than 1000 roots"):
        root_system(vectors * values.sqrt(), (1, 2, 4, 5))


def walk(head: Head, tokens: Tensor) -> Tensor:
    """The states [T, K, V] of the delta rule from 0, by its definition."""
    S = torch.zeros(head.k.shape[1], head.v.shape[1]).double()
    states = []
    for t in tokens.tolist():
        k, v, beta = head.k[t], head.v[t], head.beta[t]
        S = S - beta * torch.outer(k, S.T @ k - v)
        states.append(S)
    return torch.stack(states)


@pytest.mark.parametrize("rest", ["zero", "fill"])
def test_noisy_writes_get_a_point_in_common(rest):
    """Three reflections and one token that almost does nothing: 6 states, or 12, for ever."""
    rng = torch.Generator().manual_seed(2)
    k = noisy(torch.cat([swaps(3, 8), torch.randn(1, 8, generator=rng).double()]), 0.01)
    v = torch.randn(4, 5, generator=rng).double()
    head = Head(k, v, torch.tensor([1.99, 1.985, 1.999, 0.02]).double())
    recurring = torch.ones(4, dtype=torch.bool)
    exact, error = snap(head, recurring, torch.full((4,), 10.0), Rule(0.1, rest))
    assert exact.beta.tolist() == [2, 2, 2, 0 if rest == "zero" else 1]
    assert 0 < error < 0.12
    assert inexact(head, recurring) == (4, 4)
    assert inexact(exact, recurring) == (0, 0)
    tokens = torch.randint(4, (2000,), generator=rng)
    raw, made = (torch.unique((walk(h, tokens) * 1e6).round(), dim=0) for h in (head, exact))
    assert len(made) <= (6 if rest == "zero" else 12)
    assert len(raw) > 1000


def test_what_comes_only_first_is_left_alone():
    k = noisy(swaps(3, 8), 0.01)
    head = Head(k, torch.ones(3, 2).double(), torch.tensor([1.99, 1.99, 1.99]).double())
    exact, _ = snap(head, torch.tensor([True, True, False]), torch.ones(3), Rule(0.1, "zero"))
    assert exact.beta[2] == head.beta[2]
    assert torch.equal(exact.k[2], head.k[2])


def test_nothing_reflects():
    head = Head(swaps(3, 8), torch.ones(3, 2).double(), torch.ones(3).double())
    with pytest.raises(CannotHardenError, match="no token reflects"):
        snap(head, torch.ones(3, dtype=torch.bool), torch.ones(3), Rule(0.1, "zero"))
