"""The paper's constructions, and what they say of its early version."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from statetrack.automata import from_regex
from statetrack.compiler import compile, decompose, factor, theorems
from statetrack.compiler.cascade_to_stages import level_to_stage
from statetrack.compiler.stages_to_network import DenseLayer, HouseholderLayer, affine_scan
from statetrack.compiler.text_to_dfa import find_dfa
from statetrack.errors import UserError
from tests.compiler.languages import LANGUAGES, lively_word, random_dfa


def test_parity_is_exact() -> None:
    net = theorems.parity()
    assert net.stack[0].A.flatten().tolist() == [1.0, -1.0]
    assert net.prove().holds
    assert net.certificate()["exact"]
    bits = np.random.default_rng(0).integers(2, size=(1, 100_000))
    result = net.to(torch.bfloat16).run(torch.tensor(bits))
    np.testing.assert_array_equal(result.states.numpy(), bits.cumsum(axis=1) % 2)
    assert result.deviation == 0


@pytest.mark.parametrize("make", [theorems.cyclic, theorems.theorem6])
@pytest.mark.parametrize("m", [2, 3, 5, 60, 101])
def test_addition(make: object, m: int) -> None:
    net = make(m)  # type: ignore[operator]
    x = np.random.default_rng(m).integers(m, size=(4, 2_000))
    np.testing.assert_array_equal(net(torch.tensor(x)).numpy(), x.cumsum(axis=1) % m)


@pytest.mark.parametrize("m", [3, 5, 12])
def test_dihedral(m: int) -> None:
    net = theorems.dihedral(m)
    word, states = lively_word(net.dfa, 2_000)
    assert torch.equal(net(word), states)


def single_reflections(A: torch.Tensor) -> bool:
    """Whether each is I - 2 v v^T: symmetric, its own inverse, of determinant -1."""
    A = A.double()
    eye = torch.eye(A.shape[-1], dtype=A.dtype)
    symmetric = torch.allclose(A, A.mT, atol=1e-6)
    return symmetric and torch.allclose(A @ A, eye, atol=1e-6) and bool((A.det() < 0).all())


@pytest.mark.parametrize("m", [3, 5, 7])
def test_theorem_6_refutes_the_early_version_of_theorem_2(m: int) -> None:
    # every transition of every layer has real eigenvalues only, and yet it counts modulo m
    net = theorems.theorem6(m)
    first, second = net.stack
    assert (first.A == -1).all()
    assert single_reflections(second.A)
    for layer in net.stack:
        assert torch.linalg.eigvals(layer.A.double()).imag.abs().max() < 1e-12
    ones = torch.ones(1, 1_000, dtype=torch.long)
    assert torch.equal(net(ones), torch.arange(1, 1_001)[None] % m)
    # what the final version asks for: a product of two transitions of layer 2 is a rotation
    products = second.A[:, None] @ second.A
    assert torch.linalg.eigvals(products.double()).imag.abs().max() > 0.1


def test_after_a_reset_the_old_state_is_gone() -> None:
    """The early version's proof of Theorem 4 tells layer 2 dec(H_t, x_t), with the new state only.

    For the parity of "ab" layer 1 holds the last letter: it is reset by every symbol, so after one
    it knows no more than the symbol itself.
    """
    dfa = from_regex("b*(aa*bb*aa*bb*)*a*")
    cascade = decompose(dfa)
    first, second = cascade.levels
    assert first.is_reset().all()
    words = [w for length in range(1, 6) for w in itertools.product(range(2), repeat=length)]

    def by_the_new_state(word: tuple[int, ...]) -> int:
        c1, c2 = cascade.start.tolist()
        for symbol in word:
            rule = cascade.first[symbol]
            c1 = first.moves[rule, c1]
            told = first.out[rule, c1]  # of the cascade it would be the old one
            c2 = second.moves[told, c2]
        return int(cascade.decode(np.array([[c1, c2]]))[0])

    wrong = [w for w in words if by_the_new_state(w) != dfa.run(np.array([w]))[0, -1]]
    assert (0, 1) in wrong  # "ab"
    # nor does any other decoder: layer 2, of two states, may only go by the symbol, and then no
    # table tells the DFA's state by what the two layers hold
    maps = [*itertools.product(range(2), repeat=2)]
    for acts in itertools.product(maps, repeat=2):
        held: dict[tuple[int, int], set[int]] = {}
        for word in words:
            coordinate = 0
            for symbol in word:
                coordinate = acts[symbol][coordinate]
            held.setdefault((word[-1], coordinate), set()).add(dfa.run(np.array([word]))[0, -1])
        assert any(len(states) > 1 for states in held.values())
    # with the old state it works, one token late or remembered
    for delay in ("shift", "state"):
        net = compile(cascade, "householder", delay=delay)
        for word in words:
            assert net(torch.tensor([word]))[0, -1] == dfa.run(np.array([word]))[0, -1]


def test_dihedral_has_single_reflections() -> None:
    assert single_reflections(theorems.dihedral(7).stack[1].A)


def test_permutations() -> None:
    net = theorems.permutations("S4")
    (layer,) = net.stack
    assert isinstance(layer, HouseholderLayer)
    assert layer.keys.shape == (24, 3, 4)  # n - 1 swaps of n points
    assert (layer.gates == 1).all()
    assert not layer.values.any()
    assert net.prove().holds


def test_theorem_4_with_a_state_twice_as_large() -> None:
    assert [layer.size for layer in theorems.theorem4("a*b*").stack] == [4, 2]  # of 3 states
    for dfa in (LANGUAGES["tomita3"], random_dfa(np.random.default_rng(5), 6)):
        net = theorems.theorem4(dfa)  # type: ignore[arg-type]
        assert len(net.layers) <= net.dfa.states - 1
        assert all(layer.has_old_state for layer in net.stack[:-1])
        assert all(layer.size <= 2 * net.dfa.states for layer in net.stack)
        assert net.stack[-1].size <= net.dfa.states
        assert net.prove().holds
        word, states = lively_word(net.dfa, 1_000)
        assert torch.equal(net(word), states)


@pytest.mark.parametrize("name", ["a*b*", "tomita3", "tomita7"])
def test_a_layer_of_two_rows_tells_the_old_state(name: str) -> None:
    """Theorem 4 with at most |Q| rows in a state, in 2 |Q| - 3 layers: every other one is this."""
    A = factor.product(factor.partial_injection([1, -1]), 2)  # of two Householder factors
    np.testing.assert_array_equal(A, [[0, 0], [1, 0]])
    cascade = decompose(find_dfa(name).minimal(), "banned")
    dfa, last = cascade.dfa, cascade.levels[-1]
    assert 2 * len(cascade.levels) - 1 == 2 * dfa.states - 3
    word, states = lively_word(dfa, 300)
    told = torch.tensor(cascade.first)[word]
    for level in cascade.levels:
        layer = DenseLayer(level_to_stage(level), doubled=False)
        assert max(layer.size, 2) <= dfa.states
        new = layer.identify(layer.run(told, layer.H0[None])[0])
        B = torch.stack([new, torch.zeros_like(new)], -1)[..., None].float()
        start = torch.tensor([[[level.start], [0.0]]])
        state, _ = affine_scan(torch.tensor(A).float().expand(1, 300, 2, 2), B, start)
        told = torch.tensor(level.out)[told, new if level is last else state[:, :, 1, 0].long()]
    assert torch.equal(told, states)


def test_rotations_have_a_horizon_and_no_proof() -> None:
    net = theorems.cyclic(60)
    with pytest.raises(UserError, match=r"rounds.*horizon"):
        net.prove()
    assert net.report().startswith("Computes the DFA with rounding: ")
    measured = theorems.horizon(net, 5_000)
    assert measured["constant"]["holds_for"] is None
    assert 0 < measured["random"]["deviation"] < 0.01
    coarse = theorems.horizon(net.to(torch.bfloat16), 5_000)
    assert coarse["constant"]["holds_for"] < 1_000


def test_what_overflows_is_far_from_where_it_should_be() -> None:
    net = theorems.parity()
    net.stack[0].A *= 1e30
    result = net.run(torch.ones(1, 40, dtype=torch.long))
    assert result.deviation == torch.inf


def test_refusals() -> None:
    for make in (theorems.cyclic, theorems.theorem6):
        for m in (1, 5_001, 10**9):
            with pytest.raises(UserError, match=rf"modulus must be from 2 to 5,000.*got {m:,}"):
                make(m)
    with pytest.raises(UserError, match="at least 3 corners"):
        theorems.dihedral(2)
    with pytest.raises(UserError, match="tokens must be"):
        theorems.horizon(theorems.parity(), 0)


def test_one_state() -> None:
    assert theorems.theorem4(from_regex("(a|b)*")).prove().holds
