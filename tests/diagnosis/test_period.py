"""The sharp period test, on networks whose periods are known by construction."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from statetrack.compiler import theorems
from statetrack.diagnosis import Kind, diagnose
from statetrack.diagnosis.period import MAX_ROOT_ORDER, order
from statetrack.layers import Dense, Diagonal, Transition
from tests.diagnosis.constructed import Constructed, rotation, scalar, sign

BITS = ("0", "1")


def factors(diagnosis) -> list[int | None]:
    return [layer.period and layer.period.factor for layer in diagnosis.layers]


# -- the early version of the paper, and what refutes it ------------------------------------------


@pytest.mark.parametrize("m", [2, 3, 4, 5, 6, 12, 31])
def test_the_network_of_theorem_6_is_never_excluded(m):
    """The early version's Theorem 2 asks every layer for a non-real eigenvalue; this one has none.

    What one sees of single tokens is 1 and -1, which would exclude it. What counts is the product
    over a period: the second layer's input has period 2, and two reflections are a rotation.
    """
    net = theorems.theorem6(m)
    tokens = torch.randint(m, (4, 300), generator=torch.Generator().manual_seed(m))
    assert torch.equal(net(tokens), tokens.cumsum(1) % m)  # it does add modulo m
    for transition in net.transitions(tokens):
        values = transition.eigvals()
        assert values.imag.abs().max() == 0  # so the naive condition excludes it ...
        assert (values.real.abs() - 1).abs().max() < 1e-6
    found = diagnose(net, "1")
    assert found.verdict(m).kind is Kind.NOT_EXCLUDED  # ... and the sharp one does not
    assert found.verdict(2).kind is Kind.NOT_EXCLUDED
    assert not any("cannot recognise (11)*" in verdict.text for verdict in found.verdicts())
    assert found.architectural.factor is None
    turns = m // math.gcd(m, 2)  # over two tokens it turns by 2 * 2 pi / m
    assert factors(found) == [2, turns]
    assert found.verdict(37).kind is Kind.PROBED


def test_parity_needs_one_negative_layer_not_every_one():
    """The early version's Theorem 1 asks every layer for it; here the first has only 1/2."""
    found = diagnose(Constructed(scalar(0.5, (0.0, 1.0)), scalar(-1.0)), "1", vocab=BITS)
    assert factors(found) == [1, 2]
    assert found.verdict(2).kind is Kind.NOT_EXCLUDED


# -- periods --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("turn", "q"), [(2 * math.pi / 3, 3), (-math.pi / 2, 4), (math.pi, 2),
                                         (2 * math.pi * 5 / 7, 7), (0.0, 1)])  # fmt: skip
def test_rotations(turn, q):
    found = diagnose(Constructed(rotation(turn)), "1", vocab=BITS)
    assert factors(found) == [q]
    for m in range(2, 9):
        assert (found.verdict(m).kind is Kind.NOT_EXCLUDED) == (q % m == 0)


def test_a_rotation_by_no_whole_fraction_is_undetermined():
    found = diagnose(Constructed(rotation(1.0), scalar(-1.0)), "1", vocab=BITS)
    assert factors(found) == [None, None]
    assert found.verdict(2).kind is Kind.NOT_EXCLUDED
    assert found.verdict(2).text.startswith("undetermined: layer 0: ")
    assert "counts drift" in found.verdict(2).text


def test_two_diagonal_layers_count_to_four_and_no_further():
    """The second layer flips on every other token: its state has period 4, which is simulated."""

    def every_other(tokens: Tensor) -> Transition:
        return Diagonal(sign(tokens)[..., None, None], (-1.0, 1.0))

    net = Constructed(scalar(-1.0), every_other)
    steps = net.transitions(torch.ones(1, 40, dtype=torch.long))[1].values.flatten()
    states = steps.cumprod(0)
    periods = [p for p in range(1, 20) if torch.equal(states[p:], states[:-p])]
    assert periods[0] == 4
    found = diagnose(net, "1", vocab=BITS)
    assert factors(found) == [2, 2]
    kinds = {m: found.verdict(m).kind for m in (2, 3, 4, 6, 8)}
    assert [m for m, kind in kinds.items() if kind is Kind.NOT_EXCLUDED] == [2, 4]
    assert {kinds[m] for m in (3, 6, 8)} == {Kind.ARCHITECTURAL}


def test_longer_words_are_read_as_one_period():
    """A flip on each 1: over 011 it is back where it was, over 01 it is not."""

    def flip_on_one(tokens: Tensor) -> Transition:
        return Diagonal((1.0 - 2 * tokens).double()[..., None, None], (-1.0, 1.0))

    net = Constructed(flip_on_one)
    assert factors(diagnose(net, "011", vocab=BITS)) == [1]
    assert factors(diagnose(net, "0 1", vocab=BITS)) == [2]
    assert diagnose(net, "01", vocab=BITS).verdict(2).language == "((01)^2)*"


def test_heads_are_taken_together():
    def heads(tokens: Tensor) -> Transition:
        blocks = [rotation(2 * math.pi / q)(tokens).dense() for q in (4, 6)]  # [B, T, 1, 2, 2]
        return Dense(torch.cat(blocks, 2))

    assert factors(diagnose(Constructed(heads), "1", vocab=BITS)) == [12]


def test_what_has_not_settled_is_not_judged():
    """The first layer's -0.9999 has died out in theory, but the second still sees it."""

    def follower(tokens: Tensor) -> Transition:
        steps = torch.arange(1, tokens.shape[1] + 1).double()
        seen = (-0.9999) ** steps  # the first layer's state
        return Diagonal((0.5 + 0.4 * seen).expand(tokens.shape)[..., None, None], (0.0, 1.0))

    net = Constructed(scalar(-0.9999), follower)
    found = diagnose(net, "1", vocab=BITS, max_tokens=1024, tolerance=1e-5)
    assert factors(found) == [1, None]
    assert "after 1024 tokens its transitions still change by" in found.probed.why
    assert found.verdict(2).kind is Kind.NOT_EXCLUDED


def test_slow_transients_are_waited_for():
    read = []

    def late(tokens: Tensor) -> Transition:
        read.append(tokens.shape[1])
        steps = torch.arange(tokens.shape[1]).double()
        values = -1 + 0.99**steps  # on its way to -1
        return Diagonal(values.expand(tokens.shape)[..., None, None], (-1.0, 1.0))

    assert factors(diagnose(Constructed(late), "1", vocab=BITS)) == [2]
    assert max(read) == 2048  # at 1,024 it still differs from what it was at 512


def test_a_period_that_is_too_long_to_see():
    net = Constructed(rotation(2 * math.pi / 61), rotation(2 * math.pi / 61**2), scalar(-1.0))
    found = diagnose(net, "1", vocab=BITS)
    assert factors(found) == [61, 61, None]
    assert "period of 3721 tokens, and only 4096 were read" in found.probed.why


def test_behind_a_layer_that_is_no_linear_rnn_nothing_is_known():
    found = diagnose(Constructed(scalar(0.5, (0.0, 1.0)), lambda tokens: None), "1", vocab=BITS)
    assert factors(found) == [1, None]
    assert found.architectural.factor is None
    assert found.architectural.why == "layer 1 is no linear RNN"
    assert found.verdict(2).kind is Kind.NOT_EXCLUDED
    assert found.verdict(2).text == "undetermined: layer 1: it is no linear RNN"


def test_an_integrator_is_nearly_defective():
    def integrator(tokens: Tensor) -> Transition:
        return Dense(torch.tensor([[1.0, 1.0], [0.0, 1.0]]).double().expand(*tokens.shape, 1, 2, 2))

    found = diagnose(Constructed(integrator), "1", vocab=BITS)
    assert found.warnings() == ["layer 0: eigenvalues over a period are nearly defective"]
    assert diagnose(Constructed(rotation(1.0)), "1", vocab=BITS).warnings() == []


def test_orders_of_roots_of_unity():
    for n in range(1, MAX_ROOT_ORDER + 1):
        for k in range(n):
            root = complex(math.cos(2 * math.pi * k / n), math.sin(2 * math.pi * k / n))
            assert order(root, 1e-9) == n // math.gcd(n, k)
    assert order(complex(math.cos(1), math.sin(1)), 1e-6) is None
    assert order(-1.003 + 0j, 1e-6) == 2  # the direction counts
