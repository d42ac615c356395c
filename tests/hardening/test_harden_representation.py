"""Products of reflections, checked by the groups that they generate and the states they reach."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from statetrack.hardening.reflections import CannotHardenError, Head, Rule, inexact
from statetrack.hardening.representation import (
    into_reflections,
    representation,
    snap_products,
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
    with pytest.raises(CannotHardenError, match="its products"):
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
    with pytest.raises(CannotHardenError, match="more reflections than it has"):
        into_reflections(-eye, keys)


def walk(head: Head, factors: int, tokens: Tensor) -> Tensor:
    """The states [T, K, V] from 0 on, factor by factor, by the definition."""
    S = torch.zeros(head.k.shape[1], head.v.shape[1]).double()
    states = []
    for t in tokens.tolist():
        for i in range(t * factors, (t + 1) * factors):
            S = S - head.beta[i] * torch.outer(head.k[i], S.T @ head.k[i] - head.v[i])
        states.append(S)
    return torch.stack(states)


def test_noisy_rotations_reach_five_states():
    """Fifths of a turn, one of them the other way round, and a token that does nothing twice."""
    fifth = math.pi / 5
    angles = torch.tensor([0.3, 0.3 + fifth, 1.0 + fifth, 1.0, 0.7, 0.7])
    k = torch.zeros(6, 8).double()
    k[:, 0], k[:, 1] = angles.cos(), angles.sin()
    k = k + 0.01 * noise(6, 8)
    k = k / k.norm(dim=1, keepdim=True)
    center = noise(8, 3)
    head = Head(k, k @ center + 0.01 * noise(6, 3), torch.tensor([1.99] * 5 + [1.98]).double())
    recurring = torch.ones(6, dtype=torch.bool)
    exact, error = snap_products(head, 2, recurring, torch.ones(6).double(), Rule(0.1, "zero"))
    assert 0 < error < 0.1
    assert exact.beta.tolist() == [2, 2, 2, 2, 0, 0]  # the last token is the identity
    assert inexact(exact, recurring) == (0, 0)
    tokens = torch.randint(3, (2000,), generator=RNG)
    made, raw = (torch.unique((walk(h, 2, tokens) * 1e6).round(), dim=0) for h in (exact, head))
    assert len(made) == 5
    assert len(raw) > 1000
