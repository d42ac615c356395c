"""mLSTM against its formula without stabiliser, gates at their ends, initialisation, options."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from statetrack.errors import UserError
from statetrack.layers import MLSTM, MLSTMConfig, MLSTMState
from statetrack.models import ModelConfig, SequenceModel
from statetrack.testing.inputs import draw
from tests.layers.common import (
    HIDDEN,
    inputs,
    linear_state,
    make_layer,
    make_state,
    step_through,
)
from tests.layers.references import causal_conv
from tests.ops.common import assert_close

SWITCH = pytest.mark.parametrize("switch", [False, True], ids=["[0,1]", "[-1,1]"])


def reference(layer: MLSTM, x: Tensor) -> tuple[Tensor, Tensor]:
    """y [T, hidden_size] and C, n [H, K, V + 1], token by token and without a stabiliser."""
    H, K = layer.config.num_heads, layer.head_size
    u, z = torch.chunk(x @ layer.up_proj.weight.T, 2, -1)
    c = u if layer.conv is None else causal_conv(u, layer.conv.weight, layer.conv.bias)
    c = c * torch.sigmoid(c)
    q = c @ torch.block_diag(*layer.q_proj.weight).T
    k = c @ torch.block_diag(*layer.k_proj.weight).T
    v = u @ torch.block_diag(*layer.v_proj.weight).T
    gates = layer.gates(torch.cat([q, k, v], -1)[None])[0]
    i, f = torch.exp(gates[:, :H]), 1 / (1 + torch.exp(-gates[:, H:]))
    if layer.config.allow_neg_eigval:  # 2 f - 1, with all its digits where it is near 0
        f = -f * torch.expm1(-gates[:, H:])
    C, n = torch.zeros(H, K, K).double(), torch.zeros(H, K).double()
    parts = (part.reshape(-1, H, K).unbind() for part in (q, k / math.sqrt(K), v))
    outputs = []
    for q_t, k_t, v_t, i_t, f_t in zip(*parts, i.unbind(), f.unbind(), strict=True):
        C = f_t[:, None, None] * C + i_t[:, None, None] * torch.einsum("hk,hv->hkv", k_t, v_t)
        n = f_t[:, None] * n + i_t[:, None] * k_t
        total = (n * q_t).sum(-1).abs().clamp(min=1)
        h = torch.einsum("hkv,hk->hv", C, q_t) / total[:, None]
        h = h - h.mean(-1, keepdim=True)
        outputs.append(h / torch.sqrt((h**2).mean(-1, keepdim=True) + 1e-5))
    y = torch.stack(outputs).flatten(1) * layer.norm.weight + layer.skip * c
    y = (y * z * torch.sigmoid(z)) @ layer.down_proj.weight.T
    return y, torch.cat([C, n[..., None]], -1) * math.sqrt(K)  # we scale q, not k


def assert_is_the_reference(layer: MLSTM, x: Tensor, tolerance: float) -> None:
    """Outputs, state and the gradients of x and the parameters."""
    x.requires_grad_()
    expected = [reference(layer, sequence) for sequence in x]
    expected_y, expected_state = (torch.stack(parts) for parts in zip(*expected, strict=True))
    y, state = layer(x)
    assert_close(y, expected_y, tolerance, "y")
    assert_close(linear_state(state), expected_state, tolerance, "state")
    wanted = {"x": x, **dict(layer.named_parameters())}
    weights = draw(5)(*y.shape)
    got, exact = (
        torch.autograd.grad((weights * out).sum(), wanted.values()) for out in (y, expected_y)
    )
    for name, a, b in zip(wanted, got, exact, strict=True):
        assert_close(a, b, tolerance, f"gradient of {name}")


class GivenGates(nn.Module):
    """In place of the gates' projection: log i and the forget gate's argument as they are."""

    def __init__(self, gates: Tensor) -> None:
        super().__init__()
        self.value = nn.Parameter(gates)  # [B, T, 2 H]
        self.used = 0

    def forward(self, qkv: Tensor) -> Tensor:
        start = self.used % self.value.shape[1]
        self.used = start + qkv.shape[1]
        return self.value[: len(qkv), start : self.used]


def with_gates(switch: bool, log_i: Tensor, f: Tensor, **options) -> MLSTM:
    """A layer whose gates are given, [1, T, H] each."""
    layer = make_layer(MLSTMConfig(switch, num_heads=log_i.shape[-1], **options))
    layer.gates = GivenGates(torch.cat([log_i, f], -1))
    return layer


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_heads": 1, "gate_init": "standard"},
        {"num_heads": 8, "conv_size": 0, "qkv_block_size": 16},
        {"num_heads": 2, "conv_size": 2, "expand": 6.0},
    ],
    ids=["plain", "one-head", "no-conv", "wide"],
)
@SWITCH
def test_forward_and_gradients_are_the_formula(switch, options):
    layer = make_layer(MLSTMConfig(switch, **options))
    assert_is_the_reference(layer, inputs(2, 11), 1e-10)


@SWITCH
def test_steps_are_the_formula(switch):
    layer = make_layer(MLSTMConfig(switch))
    x = inputs(1, 8)
    y, state = step_through(layer, x, layer.init_state(1))
    assert isinstance(state, MLSTMState)
    expected, expected_state = reference(layer, x[0])
    assert_close(y[0], expected, 1e-11)
    assert_close(linear_state(state)[0], expected_state, 1e-11)


@pytest.mark.parametrize("size", [1.0, 30.0, 100.0])
@SWITCH
def test_gates_of_any_size(switch, size):
    """exp(+-100) for the input gates, forget gates at 0, near it, and at both their ends."""
    normal = draw(2)
    log_i, f = (size * normal(1, 40, 4).clamp(-1, 1) for _ in range(2))
    log_i[0, ::7], log_i[0, 3::7] = size, -size
    f[0, ::5], f[0, 2::11] = -size, 1e-9
    if switch:
        f[0, 4::9] = 0.0  # f is exactly 0
    layer = with_gates(switch, log_i, f)
    assert_is_the_reference(layer, inputs(1, 40), 1e-9)
    y, state = layer(inputs(1, 40))
    stepped, end = step_through(layer, inputs(1, 40), layer.init_state(1))
    assert_close(stepped, y, 1e-9)
    assert_close(linear_state(end), linear_state(state), 1e-9)


@SWITCH
def test_five_thousand_tokens(switch):
    normal = draw(3)
    log_i, f = 3 * normal(1, 5000, 8), normal(1, 5000, 8) + 4
    if switch:
        f *= normal(1, 5000, 8).sign()
    layer = with_gates(switch, log_i, f, expand=1.0)
    x = inputs(1, 5000)
    assert_is_the_reference(layer, x, 1e-9)
    with torch.no_grad():
        y, state = layer(x)
        single, end = layer.float()(x.float())
    assert_close(single, y, 1e-4)
    assert_close(linear_state(end), linear_state(state), 1e-4)


@pytest.mark.parametrize("size", [100.0, 1e4])
@SWITCH
def test_single_precision_stays_finite_at_any_gates(switch, size):
    """Numbers that no float32 holds: the true memory is of the order of exp(size)."""
    normal = draw(4)
    log_i, f = (size * normal(1, 60, 4) for _ in range(2))
    f[0, 4::9] = 0.0
    layer = with_gates(switch, log_i, f).float()
    x = inputs(1, 60).float().requires_grad_()
    y, state = layer(x)
    assert all(part.isfinite().all() for part in (y, *state))
    gradients = torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert state.S.abs().max() < 1e3  # the scale lies in m


@SWITCH
def test_only_the_memory_at_its_true_scale_counts(switch):
    """S exp(m) with m = 0 is the same state, and the gradient of m is that of the scale."""
    layer, x = make_layer(MLSTMConfig(switch)), inputs(2, 9)
    zero = layer.init_state(2)
    normal = draw(6)
    S, m = normal(*zero.S.shape).requires_grad_(), (3 * normal(2, 4)).requires_grad_()
    y, end = layer(x, MLSTMState(S, m, zero.conv))
    scaled = (S * m.exp()[..., None, None]).detach().requires_grad_()
    expected, expected_end = layer(x, MLSTMState(scaled, zero.m, zero.conv))
    assert_close(y, expected, 1e-11)
    assert_close(linear_state(end), linear_state(expected_end), 1e-11)

    weights = normal(*y.shape)
    of_S, of_m = torch.autograd.grad((weights * y).sum(), [S, m])
    (of_scaled,) = torch.autograd.grad((weights * expected).sum(), scaled)
    assert_close(of_S, of_scaled * m.detach().exp()[..., None, None], 1e-10)
    assert_close(of_m, (of_scaled * scaled.detach()).sum((-1, -2)), 1e-10)


def test_a_query_without_answer():
    """No key was ever written along q: 0 / 0 without a floor, however large m is."""
    layer = with_gates(True, torch.full((1, 3, 4), 200.0).double(), torch.zeros(1, 3, 4).double())
    layer = layer.float()
    with torch.no_grad():
        layer.q_proj.weight.zero_()
    x = inputs(1, 3).float().requires_grad_()
    y, _ = layer(x)
    gradients = torch.autograd.grad(y.sum(), [x, *layer.parameters()])
    assert all(part.isfinite().all() for part in (y, *gradients))


def test_a_normaliser_that_cancels():
    """The same token again and again with f = -1: C and n are k v^T and k, then 0, and so on."""
    log_i, f = torch.zeros(1, 4, 2).double(), torch.full((1, 4, 2), -50.0).double()
    layer = with_gates(True, log_i, f, conv_size=0)
    x = inputs(1, 1).expand(1, 4, HIDDEN)
    with torch.no_grad():
        y, state = layer(x)
        layer.norm.weight.zero_()
        only_skip, _ = layer(x)
    assert_close(y[:, 2], y[:, 0], 1e-12)
    assert_close(y[:, 1::2], only_skip[:, 1::2], 1e-12)
    assert (y - only_skip)[:, 0].abs().max() > 1e-3
    assert linear_state(state).abs().max() < 1e-12


def test_the_switch_changes_only_the_transition():
    """From a zero state the first token only writes, which is the same; the second differs."""
    x = inputs(1, 2)
    (y, state), (signed_y, signed_state) = (
        make_layer(MLSTMConfig(allow_neg_eigval=switch))(x) for switch in (False, True)
    )
    assert_close(signed_y[:, 0], y[:, 0], 1e-12)
    assert (signed_y - y)[:, 1].abs().max() > 1e-6
    assert (signed_state.S - state.S).abs().max() > 1e-6


def test_initialisation():
    torch.manual_seed(0)
    layer = MLSTM(128)
    small = math.sqrt(2 / (5 * 128))
    for proj in (layer.up_proj, layer.q_proj, layer.k_proj, layer.v_proj):
        assert proj.weight.std().item() == pytest.approx(small, rel=0.1)
    assert not layer.gates.weight.any()
    i, f = layer.gates.bias.chunk(2)
    assert torch.equal(f, torch.tensor([3.0, 4.0, 5.0, 6.0]))
    assert 0 < i.abs().max() < 0.5
    assert torch.equal(layer.norm.weight, torch.ones(256))
    assert torch.equal(layer.skip, torch.ones(256))
    assert layer.down_proj.weight.std().item() == pytest.approx(2 / math.sqrt(128), rel=0.05)


def test_standard_gates():
    torch.manual_seed(0)
    bias = MLSTM(64, num_heads=64, gate_init="standard").gates.bias
    assert 0.9 / 8 < bias.max() <= 1 / 8
    assert -1 / 8 <= bias.min() < -0.9 / 8
    assert not MLSTM(64, gate_init="standard").gates.weight.any()


def test_the_last_projection_goes_by_depth():
    torch.manual_seed(0)
    model = SequenceModel(ModelConfig(hidden_size=64, num_layers=4, mixer=MLSTMConfig()))
    for block in model.blocks:
        expected = 2 / (4 * math.sqrt(64))
        assert block.mixer.down_proj.weight.std().item() == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(
    ("hidden_size", "expand", "channels"),
    [(128, 2.0, 256), (64, 2.0, 128), (12, 2.0, 64), (33, 2.0, 128), (128, 1.3, 192)],
)
def test_channels_come_in_multiples_of_64(hidden_size, expand, channels):
    assert MLSTM(hidden_size, expand=expand).channels == channels


def test_parameters():
    layer = MLSTM(128)
    shapes = {name: tuple(p.shape) for name, p in layer.named_parameters()}
    assert shapes == {
        "skip": (256,),
        "up_proj.weight": (512, 128),
        "conv.weight": (256, 4),
        "conv.bias": (256,),
        "q_proj.weight": (64, 4, 4),
        "k_proj.weight": (64, 4, 4),
        "v_proj.weight": (64, 4, 4),
        "gates.weight": (8, 768),
        "gates.bias": (8,),
        "norm.weight": (256,),
        "down_proj.weight": (128, 256),
    }


def test_states_are_float32_whatever_the_weights():
    layer = MLSTM(8).bfloat16()
    y, state = layer(torch.randn(1, 40, 8).bfloat16())
    assert y.dtype == torch.bfloat16
    assert state.S.dtype == state.m.dtype == torch.float32
    y, state = layer.step(torch.randn(1, 8).bfloat16(), state)
    assert y.dtype == torch.bfloat16
    assert state.S.dtype == state.m.dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 0}, "num_heads"),
        ({"num_heads": 3}, "num_heads must divide the 64 channels; got 3"),
        ({"qkv_block_size": 3}, "qkv_block_size must divide the 64 channels; got 3"),
        ({"qkv_block_size": 0}, "qkv_block_size"),
        ({"expand": 0.0}, "expand must be a positive number; got 0.0"),
        ({"expand": -1.0}, "expand"),
        ({"expand": math.inf}, "expand"),
        ({"conv_size": -1}, "conv_size"),
        ({"gate_init": "zeros"}, "gate_init"),
        ({"heads": 2}, "mLSTM has no option 'heads'"),
    ],
    ids=str,
)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message):
        MLSTM(HIDDEN, **options)


def test_title():
    assert MLSTMConfig().title == "mLSTM [0,1]"
    assert MLSTMConfig(allow_neg_eigval=True).title == "mLSTM [-1,1]"


def test_the_scale_of_a_given_state_has_its_gradient():
    """C = S exp(m), so that a little more of m is the same factor in S."""
    layer = make_layer(MLSTMConfig(num_heads=2))
    x, state = inputs(2, 5), make_state(layer, 2)
    shift = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)
    in_m = state._replace(m=state.m + shift)
    in_S = state._replace(S=state.S * torch.exp(shift)[..., None, None])
    weights = inputs(2, 5, seed=5)
    got, expected = (
        torch.autograd.grad((weights * layer(x, s)[0]).sum(), shift)[0] for s in (in_m, in_S)
    )
    assert expected.abs().max() > 1e-3
    assert_close(got, expected, 1e-9)
