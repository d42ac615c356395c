"""GLA against the protocol's text, its options and its initialisation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from statetrack.layers import GLA, GLAConfig, GLAState
from tests.layers.common import inputs, make_layer, step_through
from tests.layers.references import causal_conv
from tests.ops.common import assert_close

SWITCH = pytest.mark.parametrize("switch", [False, True], ids=["[0,1]", "[-1,1]"])


def gates(layer: GLA, x: Tensor) -> Tensor:
    """The diagonals of A(x) for x [T, hidden_size]: [T, H, K]."""
    down, up = layer.decay_proj
    logits = (x @ down.weight.T) @ up.weight.T + up.bias
    a = (1 + torch.exp(-logits)) ** (-1 / layer.config.gate_logit_normalizer)
    if layer.config.allow_neg_eigval:
        a = 2 * a - 1
    return a.reshape(len(x), layer.config.num_heads, layer.key_size)


def reference(layer: GLA, x: Tensor) -> tuple[Tensor, Tensor]:
    """y [T, hidden_size] and S [H, K, V] for one sequence x [T, hidden_size], token by token."""
    heads, K, V = layer.config.num_heads, layer.key_size, layer.value_size
    qkv = x @ layer.qkv_proj.weight.T
    if layer.conv is not None:
        qkv = causal_conv(qkv, layer.conv.weight, None)
        qkv = qkv * torch.sigmoid(qkv)
    q = qkv[:, : heads * K].reshape(-1, heads, K)
    k = qkv[:, heads * K : 2 * heads * K].reshape(-1, heads, K)
    v = qkv[:, 2 * heads * K :].reshape(-1, heads, V)
    a = gates(layer, x)
    g = (x @ layer.gate_proj.weight.T).reshape(-1, heads, V)
    states = [torch.zeros(K, V).double()] * heads
    outputs = []
    for t in range(len(x)):
        parts = []
        for h in range(heads):
            states[h] = torch.diag(a[t, h]) @ states[h] + torch.outer(k[t, h], v[t, h])
            o = states[h].T @ q[t, h] / math.sqrt(K)
            o = layer.norm.weight * o / torch.sqrt((o**2).mean() + layer.config.output_norm_eps)
            parts.append(o * g[t, h] * torch.sigmoid(g[t, h]))
        outputs.append(layer.o_proj.weight @ torch.cat(parts))
    return torch.stack(outputs), torch.stack(states)


@pytest.mark.parametrize(
    "options",
    [
        {"num_heads": 3},
        {"num_heads": 2, "expand_k": 1.0, "expand_v": 0.5, "gate_low_rank_dim": 3},
        {"num_heads": 1, "output_norm_eps": 0.1, "gate_logit_normalizer": 16.0},
    ],
    ids=["plain", "expanded", "normaliser"],
)
@pytest.mark.parametrize("conv_size", [0, 1, 4])
@SWITCH
def test_forward_and_step_are_the_protocol(switch, conv_size, options):
    layer = make_layer(GLAConfig(allow_neg_eigval=switch, conv_size=conv_size, **options))
    x = inputs(2, 11)
    for y, state in (layer(x), step_through(layer, x, layer.init_state(2))):
        assert isinstance(state, GLAState)
        for n in range(2):
            expected, S = reference(layer, x[n])
            assert_close(y[n], expected, 1e-11)
            assert_close(state.S[n], S, 1e-11)


@pytest.mark.parametrize("normalizer", [0.5, 1.0, 16.0])
@SWITCH
def test_transitions_are_the_gates(switch, normalizer):
    layer = make_layer(GLAConfig(switch, num_heads=3, gate_logit_normalizer=normalizer))
    x = inputs(2, 20)
    values = layer.transitions(x).values
    assert values.shape == (2, 20, 3, 2)
    assert_close(values, torch.stack([gates(layer, row) for row in x]), 1e-12)


def test_the_switch_changes_only_the_transition():
    """From a zero state the first token only writes, which is the same; the second differs."""
    x = inputs(1, 2)
    (y, _), (signed_y, _) = (
        make_layer(GLAConfig(allow_neg_eigval=switch, num_heads=2))(x) for switch in (False, True)
    )
    assert_close(signed_y[:, 0], y[:, 0], 1e-12)
    assert (signed_y - y)[:, 1].abs().max() > 1e-6
    plain, signed = (
        make_layer(GLAConfig(allow_neg_eigval=switch, num_heads=2)).transitions(x).values
        for switch in (False, True)
    )
    assert_close(signed, 2 * plain - 1, 1e-12)


@pytest.mark.parametrize(
    ("normalizer", "logit", "value"),
    [(1.0, 0.0, 0.0), (1.0, -math.log(19), -0.9), (16.0, -11.09, 0.0), (16.0, -47.93, -0.9)],
)
def test_logits_that_negative_eigenvalues_take(normalizer, logit, value):
    layer = GLA(12, num_heads=2, allow_neg_eigval=True, gate_logit_normalizer=normalizer)
    with torch.no_grad():
        layer.decay_proj[1].bias.fill_(logit)
    values = layer.transitions(torch.zeros(1, 1, 12)).values
    assert (values - value).abs().max() < 1e-3


@pytest.mark.parametrize("normalizer", [1.0, 16.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@SWITCH
def test_reach(switch, dtype, normalizer):
    """Both ends are reached without a gradient that is not finite."""
    layer = make_layer(GLAConfig(switch, gate_logit_normalizer=normalizer, num_heads=1)).to(dtype)
    with torch.no_grad():
        layer.decay_proj[1].bias.copy_(torch.tensor([-2e4, -100.0, -1.0, 1.0, 100.0, 2e4]))
    transition = layer.transitions(inputs(1, 4).to(dtype))
    low, high = transition.bounds
    assert transition.values[..., 0].max() == transition.values.min() == low
    assert transition.values[..., -1].min() == transition.values.max() == high
    transition.values.sum().backward()
    gradients = [p.grad for p in layer.decay_proj.parameters()]
    assert all(g.isfinite().all() and g.any() for g in gradients)


def test_initialisation():
    torch.manual_seed(0)
    layer = GLA(128, expand_v=2.0)
    down, up = layer.decay_proj
    parts = layer.qkv_proj.weight.split([64, 64, 256])
    for weight in (*parts, down.weight, up.weight, layer.gate_proj.weight, layer.o_proj.weight):
        bound = 2**-2.5 * math.sqrt(6 / sum(weight.shape))  # Xavier's, for a uniform distribution
        assert 0.98 * bound < weight.abs().max() <= bound
        assert float(weight.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.1)
    assert down.weight.shape == (16, 128)
    assert up.weight.shape == (64, 16)
    assert not up.bias.any()
    assert layer.gate_proj.weight.shape == (256, 128)
    assert layer.o_proj.weight.shape == (128, 256)
    assert torch.equal(layer.norm.weight, torch.ones(64))
    assert {name for name, _ in layer.named_parameters()} == {
        *("qkv_proj.weight", "decay_proj.0.weight", "decay_proj.1.weight", "decay_proj.1.bias"),
        *("gate_proj.weight", "norm.weight", "o_proj.weight"),
    }
    assert GLA.no_weight_decay == ()


@pytest.mark.parametrize(("switch", "middle"), [(False, 0.5), (True, 0.0)], ids=["[0,1]", "[-1,1]"])
def test_gates_start_in_the_middle(switch, middle):
    torch.manual_seed(0)
    values = GLA(128, allow_neg_eigval=switch).transitions(inputs(2, 50, 128).float()).values
    assert float(values.detach().mean()) == pytest.approx(middle, abs=0.01)
    assert float(values.detach().std()) < 0.1


def test_states_are_float32_whatever_the_weights():
    layer = GLA(8, num_heads=2, conv_size=4).bfloat16()
    y, state = layer(torch.randn(1, 40, 8).bfloat16())
    assert y.dtype == torch.bfloat16
    assert state.S.dtype == torch.float32
    y, state = layer.step(torch.randn(1, 8).bfloat16(), state)
    assert y.dtype == torch.bfloat16
    assert state.S.dtype == torch.float32


def test_title():
    assert GLAConfig().title == "GLA [0,1]"
    assert GLAConfig(allow_neg_eigval=True).title == "GLA [-1,1]"
