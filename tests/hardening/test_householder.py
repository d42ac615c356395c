"""Heads of reflections, checked by the states that they reach."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from statetrack.errors import UserError
from statetrack.hardening.automaton import read_automaton
from statetrack.hardening.groups import CannotRoundError
from statetrack.hardening.heads import HeadInputs, inexact, read_heads, write_heads
from statetrack.hardening.householder import Rule, candidates, round_reflections
from statetrack.hardening.inputs import LayerInputs
from statetrack.hardening.products import Memory, ProductRule
from statetrack.hardening.search import Progress
from statetrack.layers import (
    DeltaNetConfig,
    DeltaProductConfig,
    GatedDeltaNet,
    GatedDeltaNetConfig,
    GatedDeltaProductConfig,
    Mixer,
)
from statetrack.layers.inverse import into_quadrant
from statetrack.models import ModelConfig, SequenceModel
from statetrack.tasks import generator, make_task
from tests.hardening.test_groups import noise, noisy, swaps
from tests.hardening.test_harden import BATCH


def walk(head: HeadInputs, tokens: Tensor, factors: int = 1) -> Tensor:
    """The states [T, K, V] of the delta rule from 0, factor by factor, by its definition."""
    S = torch.zeros(head.k.shape[1], head.v.shape[1]).double()
    states = []
    for t in tokens.tolist():
        for i in range(t * factors, (t + 1) * factors):
            S = S - head.beta[i] * torch.outer(head.k[i], S.T @ head.k[i] - head.v[i])
        states.append(S)
    return torch.stack(states)


@pytest.mark.parametrize("other_betas", ["zero", "one"])
def test_noisy_writes_get_a_point_in_common(other_betas):
    """Three reflections and one token that almost does nothing: 6 states, or 12, for ever."""
    rng = torch.Generator().manual_seed(2)
    k = noisy(torch.cat([swaps(3, 8), torch.randn(1, 8, generator=rng).double()]), 0.01)
    v = torch.randn(4, 5, generator=rng).double()
    head = HeadInputs(k, v, torch.tensor([1.99, 1.985, 1.999, 0.02]).double())
    recurring = torch.ones(4, dtype=torch.bool)
    exact, error = round_reflections(
        head, recurring, torch.full((4,), 10.0), Rule(0.1, other_betas)
    )
    assert exact.beta.tolist() == [2, 2, 2, 0 if other_betas == "zero" else 1]
    assert 0 < error < 0.12
    assert inexact(head, recurring) == (4, 4)
    assert inexact(exact, recurring) == (0, 0)
    tokens = torch.randint(4, (2000,), generator=rng)
    raw, made = (torch.unique((walk(h, tokens) * 1e6).round(), dim=0) for h in (head, exact))
    assert len(made) <= (6 if other_betas == "zero" else 12)
    assert len(raw) > 1000


def test_what_comes_only_first_is_left_alone():
    k = noisy(swaps(3, 8), 0.01)
    head = HeadInputs(k, torch.ones(3, 2).double(), torch.tensor([1.99, 1.99, 1.99]).double())
    exact, _ = round_reflections(
        head, torch.tensor([True, True, False]), torch.ones(3), Rule(0.1, "zero")
    )
    assert exact.beta[2] == head.beta[2]
    assert torch.equal(exact.k[2], head.k[2])


def test_nothing_reflects():
    head = HeadInputs(swaps(3, 8), torch.ones(3, 2).double(), torch.ones(3).double())
    with pytest.raises(CannotRoundError, match="no token has a beta within"):
        round_reflections(head, torch.ones(3, dtype=torch.bool), torch.ones(3), Rule(0.1, "zero"))


def test_noisy_rotations_reach_five_states():
    """Fifths of a turn, one of them the other way round, and a token that does nothing twice."""
    rng = torch.Generator().manual_seed(0)
    fifth = math.pi / 5
    angles = torch.tensor([0.3, 0.3 + fifth, 1.0 + fifth, 1.0, 0.7, 0.7])
    k = torch.zeros(6, 8).double()
    k[:, 0], k[:, 1] = angles.cos(), angles.sin()
    k = k + 0.01 * noise(6, 8)
    k = k / k.norm(dim=1, keepdim=True)
    center = noise(8, 3)
    head = HeadInputs(
        k, k @ center + 0.01 * noise(6, 3), torch.tensor([1.99] * 5 + [1.98]).double()
    )
    recurring = torch.ones(6, dtype=torch.bool)
    everything = torch.ones(3, dtype=torch.bool)
    memory = Memory.of(head, everything, everything)
    rule = ProductRule("center", signs=True, largest=False, other_betas="zero")
    exact, error = memory.moved_first(rule).round(head, everything, torch.ones(6).double(), rule)
    assert 0 < error < 0.1
    assert exact.beta.tolist() == [2, 2, 2, 2, 0, 0]  # the last token is the identity
    assert inexact(exact, recurring) == (0, 0)
    tokens = torch.randint(3, (2000,), generator=rng)
    made, raw = (torch.unique((walk(h, tokens, 2) * 1e6).round(), dim=0) for h in (exact, head))
    assert len(made) == 5
    assert len(raw) > 1000


def test_states_about_0_are_those_about_a_point_less_it():
    """Two tokens rotate a plane of 8 by thirds about a point; a BOS writes the first state."""
    mixer, x = thirds_of_a_turn()
    (head,) = read_heads(mixer, x)
    center = noise(8, 8)
    v = head.k @ center
    v[6:] += 3 * noise(2, 8)  # of BOS
    head = HeadInputs(head.k, v, head.beta)
    recurring = torch.tensor([True, True, True, False])
    memory = Memory.of(head, recurring, ~recurring)
    tokens = torch.tensor([3, 1, 2, 2, 1, 0, 1, 1])
    states = []
    for writes in ("center", "none"):
        rule = ProductRule(writes, signs=True, largest=False, other_betas="all_zero")
        made = memory.moved_first(rule)
        exact, _ = made.round(head, recurring, torch.ones(8).double(), rule)
        states.append(made.basis.T @ walk(exact, tokens, 2))
    about_point, about_0 = states
    assert made.center.norm() > 0.1
    torch.testing.assert_close(about_0, about_point - made.center, rtol=0, atol=1e-9)


def test_weights_give_back_the_heads_that_are_written():
    torch.manual_seed(0)
    mixer = DeltaNetConfig(allow_neg_eigval=True, num_heads=2, conv_size=0)
    model = SequenceModel(ModelConfig(vocab_size=3, hidden_size=16, num_layers=1, mixer=mixer))
    with torch.no_grad():
        model.double().blocks[0].mixer.qkv_proj.weight.mul_(20)
    inputs = LayerInputs.of_tokens(model, BATCH)
    written = read_heads(inputs.mixer(model), inputs.x)
    written[0].v[0] = -3.0  # below what SiLU gives: everything is scaled down
    made = write_heads(inputs.mixer(model), inputs.x, written)
    scale = (made.config.output_norm_eps / mixer.output_norm_eps) ** 0.5
    assert scale == pytest.approx(0.25 / 3)
    for old, new in zip(written, read_heads(made, inputs.x), strict=True):
        assert torch.allclose(old.k, new.k, atol=1e-5)  # the normalisation's epsilon is gone
        assert torch.allclose(old.beta, new.beta, atol=1e-12)
        assert torch.allclose(scale * old.v, new.v, atol=1e-12)


@pytest.mark.parametrize("num_heads", [1, 8])  # of 16 and of 2 numbers
def test_rotated_heads_do_the_same(num_heads):
    torch.manual_seed(0)
    mixer = DeltaNetConfig(
        allow_neg_eigval=True, num_heads=num_heads, conv_size=0, output_gate=True, beta_stretch=0.3
    )
    model = SequenceModel(ModelConfig(vocab_size=12, hidden_size=16, num_layers=1, mixer=mixer))
    tokens = torch.randint(12, (8, 30))
    batch = BATCH._replace(tokens=tokens.numpy(), targets=tokens.numpy())
    inputs = LayerInputs.of_tokens(model.double().eval(), batch)
    layer = model.blocks[0].mixer
    with torch.no_grad():
        layer.qkv_proj.weight *= 1e4  # beside which the epsilon of the keys' norm is nothing
        layer.beta.proj.weight *= 1e3  # some reflect: more than a small head has dimensions
        old = read_heads(inputs.mixer(model), inputs.x)
        assert all(2 < (head.beta == 2).sum() < 12 for head in old)
        made = inputs.replace_mixer(model, write_heads(layer, inputs.x, old))
        torch.testing.assert_close(made(tokens)[0], model(tokens)[0], rtol=0, atol=1e-6)


def thirds_of_a_turn() -> tuple[Mixer, Tensor]:
    """A layer in float64 whose tokens 1 and 2 rotate by thirds, either way, in a plane of 8.

    Also its inputs: three tokens, and one that writes what is rotated.
    """
    torch.manual_seed(0)
    basis, _ = torch.linalg.qr(torch.randn(8, 2).double())
    end = 0.3 + math.pi / 3
    angles = torch.tensor([[0.0, 0.0], [0.3, end], [end, 0.3], [0.3, 1.0]], dtype=torch.float64)
    k = torch.stack([angles.cos(), angles.sin()], -1).flatten(0, 1) @ basis.T
    beta = torch.tensor([0.0, 0.0, 2.0, 2.0, 2.0, 2.0, 1.0, 1.0]).double()
    v = torch.zeros(8, 8).double()
    v[6:] = 0.3 * torch.rand(2, 8).double()
    mixer = DeltaProductConfig(allow_neg_eigval=True, num_heads=1, conv_size=0, expand_k=0.5,
                               expand_v=0.5).build(16).double()  # fmt: skip
    x = torch.randn(4, 16).double()
    return write_heads(mixer, x, [HeadInputs(k, v, beta)]), x


def test_rotations_of_a_plane_stay_exact_in_float32():
    mixer, x = thirds_of_a_turn()
    (head,) = read_heads(mixer.float(), x.float())
    assert not head.k[2:6, 2:].any()  # rounding errors cannot lead out of the plane
    eye = torch.eye(8).double()
    turns = []
    for i in (2, 4):
        one, other = (eye - 2 * torch.outer(k, k) for k in head.k[i : i + 2].double())
        turns.append(other @ one)
    third = 2 * math.pi / 3
    for turn in turns:
        assert abs(math.acos(turn[0, 0]) - third) < 1e-6
    torch.testing.assert_close(turns[0] @ turns[1], eye, rtol=0, atol=1e-6)
    lengths = head.k[2:6].double().norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones(4).double(), rtol=0, atol=1.5e-7)


def test_roots_that_no_quadrant_holds_stay():
    angles = torch.arange(3).double() * math.pi / 3
    roots = torch.nn.functional.pad(torch.stack([angles.cos(), angles.sin()], 1), (0, 6))
    eye = torch.eye(8).double()
    assert into_quadrant(roots).equal(eye)
    assert into_quadrant(swaps(4, 8)).equal(eye)
    assert into_quadrant(roots[:0]).equal(eye)
    turned = noisy(eye, 0.3) @ roots[:2].T  # in another plane
    turned, _ = torch.linalg.qr(turned)
    turned = torch.stack([turned[:, 0], -0.5 * turned[:, 0] + 0.75**0.5 * turned[:, 1]])
    made = turned @ into_quadrant(turned)
    assert made[:, 2:].abs().max() < 1e-12
    assert ((made > -1e-12).all(1) | (made < 1e-12).all(1)).all()


def test_other_queries():
    mixer, x = thirds_of_a_turn()
    q = torch.nn.functional.normalize(torch.randn(4, 1, 8).double(), dim=-1)
    mixer.set_queries(x, q)
    torch.testing.assert_close(mixer.queries(x), q, rtol=0, atol=1e-4)  # SiLU keeps them short


@pytest.mark.parametrize("eps_factor", [1.0, 100.0])
def test_a_head_without_memory_keeps_its_mean_output(eps_factor):
    torch.manual_seed(0)
    mixer = DeltaNetConfig(allow_neg_eigval=True, num_heads=2, conv_size=0, output_gate=True)
    config = ModelConfig(vocab_size=3, hidden_size=16, num_layers=1, mixer=mixer)
    model = SequenceModel(config).double()
    inputs = LayerInputs.of_tokens(model, BATCH)
    layer = inputs.mixer(model)
    x, before = inputs.run(model)
    mean = inputs.mean_by_input(layer.head_outputs(x))[:, 1]  # [n, V]
    first, second = read_heads(layer, inputs.x)
    layer = write_heads(layer, inputs.x, [first, second.without_memory(mean)], eps_factor)
    here = inputs.index >= 0
    outputs = layer.head_outputs(x)[here][:, 1]
    assert torch.allclose(outputs, mean[inputs.index[here]], atol=1e-9)
    # a refit of the output projection makes up for some of what was lost
    made = inputs.replace_mixer(model, layer)
    outputs = (inputs.run(m)[1] for m in (made, inputs.with_output(made, before)))
    plain, refitted = ((y - before)[here].norm() for y in outputs)
    assert refitted < plain


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (DeltaProductConfig, {}),
        (GatedDeltaNetConfig, {}),
        (GatedDeltaNetConfig, {"allow_neg_gate": True}),
        (GatedDeltaProductConfig, {"num_householder": 3}),
    ],
)
def test_products_and_gates(config, options):
    """A head whose tokens almost turn by thirds, or swap, has 3 states, or 6, when it is exact."""
    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(1)
    Z3 = make_task("Z3")  # a token that does nothing, two that act, and a BOS
    batch = Z3.sample(generator(0, "validation", 0), np.full(64, 20))
    mixer = config(allow_neg_eigval=True, num_heads=1, conv_size=0, **options)
    shape = ModelConfig(len(Z3.vocab), hidden_size=8, num_layers=1, mixer=mixer)
    model = SequenceModel(shape).double()
    layer = model.blocks[0].mixer
    if isinstance(layer, GatedDeltaNet):  # gates of 0.999
        rate = 5e-4 if layer.config.allow_neg_gate else 1e-3
        for p, value in ((layer.a_proj.weight, 0.0), (layer.A_log, 0.0), (layer.dt_bias, rate)):
            nn.init.constant_(p, math.log(math.expm1(value)) if value else 0.0)
    inputs = LayerInputs.of_tokens(model, batch)
    gate = read_heads(inputs.mixer(model), inputs.x)[0].gate
    n = mixer.factors
    angles, beta = torch.zeros(4, n).double(), torch.full((4, n), 0.002).double()
    beta[1:3, :2] = 1.996
    beta[3, 0] = 1.0
    if n == 1:
        angles[2, 0] = math.pi / 3  # two swaps of three
    else:
        angles[1, 1], angles[2, 1] = math.pi / 3, -math.pi / 3  # thirds of a turn, either way
    k = 0.003 * torch.randn(4 * n, 8, generator=rng).double()
    k[:, 0] += angles.flatten().cos()
    k[:, 1] += angles.flatten().sin()
    k = k / k.norm(dim=1, keepdim=True)
    v = torch.randn(4 * n, layer.value_size, generator=rng).double()
    head = HeadInputs(k, v, beta.flatten(), gate)
    rough = inputs.replace_mixer(model, write_heads(layer, inputs.x, [head]))
    with pytest.raises(UserError, match=r"the model still decays \(head 0\)"):
        read_automaton(rough, inputs, Z3.vocab)
    found = candidates(rough, inputs, (1, 2, 3))
    made = next(c.model for c in found if c.inexact == (0, 0))
    exact = Progress(made, 0.0, (inputs,), (False,)).exact_model()
    assert read_automaton(exact, inputs, Z3.vocab).states == (3 if n > 1 else 6)
    # the model itself differs from it in that SiLU makes its keys a little shorter
    tokens = torch.from_numpy(batch.tokens)
    with torch.no_grad():
        assert torch.allclose(made(tokens)[0], exact(tokens)[0], atol=1e-3)
    (turns,) = made.transitions(tokens[:1])
    lasting = turns.eigvals().abs()[0][1:] if gate is None else turns.decay[0]
    assert (lasting > 1 - 1e-4).all()
