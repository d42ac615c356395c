"""Mamba-2 against its formula, its options and its initialisation."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from statetrack.errors import UserError
from statetrack.layers import Mamba2, Mamba2Config, Mamba2State
from tests.layers.common import HIDDEN, inputs, make_layer, step_through
from tests.layers.references import causal_conv
from tests.ops.common import assert_close

SWITCH = pytest.mark.parametrize("switch", [False, True], ids=["[0,1]", "[-1,1]"])


def step_sizes(layer: Mamba2, x: Tensor) -> Tensor:
    """dt [T, H] for x [T, hidden_size]."""
    logits = x @ layer.in_proj.weight[-len(layer.dt_bias) :].T + layer.dt_bias
    low, high = layer.config.dt_limit_min, layer.config.dt_limit_max
    return torch.log1p(torch.exp(logits)).clip(low, high)


def reference(layer: Mamba2, x: Tensor) -> tuple[Tensor, Tensor]:
    """y [T, hidden_size] and S [H, N, P] for one sequence x [T, hidden_size], token by token."""
    c = layer.config
    channels, N, P = c.expand * x.shape[-1], c.d_state, c.head_dim
    heads = channels // P
    projected = x @ layer.in_proj.weight.T
    z, xBC = projected[:, :channels], projected[:, channels : projected.shape[1] - heads]
    if layer.conv is not None:
        xBC = causal_conv(xBC, layer.conv.weight, layer.conv.bias)
    xBC = xBC * torch.sigmoid(xBC)
    B = xBC[:, channels : channels + c.n_groups * N].reshape(-1, c.n_groups, N)
    C = xBC[:, channels + c.n_groups * N :].reshape(-1, c.n_groups, N)
    dt, A = step_sizes(layer, x), -torch.exp(layer.A_log)
    states = [torch.zeros(N, P).double()] * heads
    outputs = []
    for t in range(len(x)):
        parts = []
        for h in range(heads):
            u, group = xBC[t, h * P : (h + 1) * P], h * c.n_groups // heads
            a = torch.exp(dt[t, h] * A[h])
            if c.allow_neg_eigval:
                a = 2 * a - 1
            states[h] = a * states[h] + dt[t, h] * torch.outer(B[t, group], u)
            parts.append(states[h].T @ C[t, group] + layer.D[h] * u)
        y = torch.cat(parts) * z[t] * torch.sigmoid(z[t])
        parts = y.reshape(c.n_groups if c.norm_by_group else 1, -1)
        y = (parts / torch.sqrt((parts**2).mean(1, True) + c.output_norm_eps)).flatten()
        y = layer.norm.weight * y
        outputs.append(layer.out_proj.weight @ y)
    return torch.stack(outputs), torch.stack(states)


@pytest.mark.parametrize(
    "options",
    [
        {"head_dim": 8, "d_state": 5},
        {"head_dim": 4, "d_state": 3, "n_groups": 3, "output_norm_eps": 0.1},
        {"head_dim": 4, "d_state": 3, "n_groups": 2, "output_norm_eps": 0.1, "norm_by_group": True},
        {"head_dim": 3, "d_state": 1, "expand": 1, "n_groups": 4, "dt_limit_min": 0.5},
        {"head_dim": 6, "d_state": 2, "dt_limit_min": 0.1, "dt_limit_max": 0.4},
    ],
    ids=["plain", "groups", "group-norms", "group-a-head", "limits"],
)
@pytest.mark.parametrize("conv_size", [0, 1, 4])
@SWITCH
def test_forward_and_step_are_the_formula(switch, conv_size, options):
    """Other implementations' step forgets the limits of dt."""
    layer = make_layer(Mamba2Config(allow_neg_eigval=switch, conv_size=conv_size, **options))
    x = inputs(2, 11)
    for y, state in (layer(x), step_through(layer, x, layer.init_state(2))):
        assert isinstance(state, Mamba2State)
        for n in range(2):
            expected, S = reference(layer, x[n])
            assert_close(y[n], expected, 1e-11)
            assert_close(state.S[n], S, 1e-11)


@SWITCH
def test_transitions_are_one_gate_per_head(switch):
    layer = make_layer(Mamba2Config(switch, head_dim=8, d_state=5))
    x = inputs(1, 20)
    a = torch.exp(-step_sizes(layer, x[0]) * torch.exp(layer.A_log))
    expected = (2 * a - 1 if switch else a)[..., None].expand(20, 3, 5)
    assert_close(layer.transitions(x).values[0], expected, 1e-12)


def test_the_switch_changes_only_the_transition():
    """From a zero state the first token only writes, which is the same; the second differs."""
    x = inputs(1, 2)
    (y, _), (signed_y, _) = (
        make_layer(Mamba2Config(allow_neg_eigval=switch, head_dim=8, d_state=5))(x)
        for switch in (False, True)
    )
    assert_close(signed_y[:, 0], y[:, 0], 1e-12)
    assert (signed_y - y)[:, 1].abs().max() > 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@SWITCH
def test_reach(switch, dtype):
    layer = make_layer(Mamba2Config(switch, head_dim=1)).to(dtype)
    with torch.no_grad():
        layer.dt_bias.copy_(torch.linspace(-50, 50, 24))
    transition = layer.transitions(inputs(4, 50).to(dtype))
    low, high = transition.bounds
    assert low <= transition.values.min() < low + 0.01
    assert high >= transition.values.max() > high - 0.01


def test_initialisation():
    torch.manual_seed(0)
    layer = Mamba2(1024, head_dim=4)
    assert layer.num_heads == 512
    A = layer.A_log.detach().exp()
    assert 1 <= A.min() < 1.2
    assert 15.8 < A.max() <= 16
    assert float(A.mean()) == pytest.approx(8.5, abs=0.5)
    assert torch.equal(layer.D, torch.ones(512))

    dt = F.softplus(layer.dt_bias)
    assert 1e-3 * (1 - 1e-4) <= dt.min() < 1.1e-3
    assert 0.9e-1 < dt.max() <= 1e-1 * (1 + 1e-4)
    # uniform in the logarithm: half of it below the geometric mean
    assert float((dt < 1e-2).float().mean()) == pytest.approx(0.5, abs=0.1)
    assert 0.49 < layer.conv.weight.abs().max() <= 0.5
    assert torch.equal(layer.norm.weight, torch.ones(2048))


def test_step_sizes_have_a_floor():
    layer = Mamba2(64, dt_min=1e-7, dt_max=1e-6)
    dt = F.softplus(layer.dt_bias.double())
    assert_close(dt, torch.full_like(dt, 1e-4), 1e-4)


def test_shapes_of_the_defaults():
    """Those of state-spaces/mamba: 128 states, heads of 64, one group, order z x B C dt."""
    layer = Mamba2(128)
    shapes = {name: tuple(p.shape) for name, p in layer.named_parameters()}
    assert shapes == {
        "in_proj.weight": (256 + 256 + 128 + 128 + 4, 128),
        "conv.weight": (512, 4),
        "conv.bias": (512,),
        "dt_bias": (4,),
        "A_log": (4,),
        "D": (4,),
        "norm.weight": (256,),
        "out_proj.weight": (128, 256),
    }
    assert layer.init_state(2).S.shape == (2, 4, 128, 64)
    assert set(Mamba2.no_weight_decay) == {"A_log", "D", "dt_bias"}


def test_sizes_that_do_not_fit():
    with pytest.raises(UserError, match=r"head_dim must divide expand \* hidden_size; got 5 for 2"):
        Mamba2(HIDDEN, head_dim=5)
    with pytest.raises(UserError, match="n_groups must divide the number of heads; got 2 for 24 /"):
        Mamba2(HIDDEN, head_dim=8, n_groups=2)


def test_states_are_float32_whatever_the_weights():
    layer = Mamba2(32).bfloat16()
    y, state = layer(torch.randn(1, 40, 32).bfloat16())
    assert y.dtype == torch.bfloat16
    assert state.S.dtype == torch.float32
    y, state = layer.step(torch.randn(1, 32).bfloat16(), state)
    assert y.dtype == torch.bfloat16
    assert state.S.dtype == torch.float32


def test_title():
    assert Mamba2Config().title == "Mamba2 [0,1]"
    assert Mamba2Config(allow_neg_eigval=True).title == "Mamba2 [-1,1]"
