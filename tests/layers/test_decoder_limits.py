"""A decoder takes the plain step, or raises, where a step cannot be recorded."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from statetrack.errors import UserError
from statetrack.kernels import library
from statetrack.kernels.program import NotRecordableError
from statetrack.layers import MIXERS, DeltaNet, DeltaNetConfig, GatedDeltaNetConfig
from statetrack.layers.base import register
from statetrack.layers.common import HeadwiseLinear
from statetrack.layers.decoder import MAX_ROWS
from statetrack.layers.operations import recordable
from statetrack.layers.step_recorder import Value
from tests.layers.common import HIDDEN
from tests.layers.decoders import assert_right, setting
from tests.ops.common import assert_close
from tests.ops.pointwise import needs_native

pytestmark = [needs_native, pytest.mark.native]


class Doubled(nn.Linear):
    """A projection with another forward pass, such as an adapter puts in place of a Linear."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class CountOperators(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


class CountFunctions(TorchFunctionMode):
    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_hooks_and_modes_see_a_step(runs) -> None:
    layer, seen = DeltaNet(12, num_heads=3), []
    x, state = torch.randn(2, 12), layer.init_state(2)
    with torch.no_grad():
        handle = register_module_forward_hook(lambda module, inputs, y: seen.append(module))
        layer.step(x, state)
        handle.remove()
        assert layer.o_proj in seen
        for mode in (CountOperators(), CountFunctions()):
            with mode:
                layer.step(x, state)
            assert mode.count > 0
        with FlopCounterMode(display=False) as counter:
            layer.step(x, state)
        assert counter.get_total_flops() > 0
    assert not runs


def _doubled(layer: nn.Module) -> None:
    doubled = Doubled(*reversed(layer.o_proj.weight.shape), bias=False)
    doubled.weight, layer.o_proj = layer.o_proj.weight, doubled


def _plain_tensor(layer: nn.Module) -> None:
    weight = torch.randn_like(layer.o_proj.weight)
    del layer.o_proj.weight
    layer.o_proj.weight = weight


def _transposed(layer: nn.Module) -> None:
    layer.g_proj.weight.data = torch.randn(*reversed(layer.g_proj.weight.shape)).t()


def _method(layer: nn.Module) -> None:
    forward = layer.o_proj.forward
    layer.o_proj.forward = lambda x: 2 * forward(x)


def _gate(layer: nn.Module) -> None:
    forward = layer.beta.forward
    layer.beta.forward = lambda x: 0.5 * forward(x)


def _mix(layer: nn.Module) -> None:
    mix = layer.mix
    layer.mix = lambda *args: (2 * mix(*args)[0], mix(*args)[1])


def _weight_norm(layer: nn.Module) -> None:
    torch.nn.utils.parametrizations.weight_norm(layer.o_proj)


@pytest.mark.parametrize(
    "change", [_doubled, _plain_tensor, _transposed, _method, _gate, _mix, _weight_norm]
)
def test_what_cannot_be_recorded_takes_the_plain_step(change, runs) -> None:
    layer, x, state = setting(GatedDeltaNetConfig(num_heads=2))
    change(layer)
    decoder = layer.decoder(1)
    assert not decoder.recorded
    with torch.no_grad():
        y, _ = decoder.step(x, state)
        right, _ = layer(x[:, None], state)
    assert_close(y, right[:, 0], 1e-5)
    assert not runs


def test_a_projection_that_does_not_fit_is_an_error(runs) -> None:
    layer, x, state = setting(DeltaNetConfig(num_heads=2))
    layer.o_proj = nn.Linear(HIDDEN + 1, HIDDEN, bias=False)
    with torch.no_grad(), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        layer.decoder(1).step(x, state)
    layer, x, state = setting(MIXERS["mlstm"](num_heads=2))
    layer.q_proj = HeadwiseLinear(2 * layer.channels, 2)
    with torch.no_grad(), pytest.raises(RuntimeError, match="unflatten"):
        layer.decoder(1).step(x, state)
    assert not runs


@pytest.mark.parametrize("width", [9, 16])
def test_wide_convolutions_take_the_plain_step(width, runs) -> None:
    layer, x, state = setting(DeltaNetConfig(num_heads=2, conv_size=width))
    with torch.no_grad():
        assert_right(layer.decoder(1), x, state)
    assert not runs


class Loud(DeltaNet):
    config_class = type("LoudConfig", (DeltaNetConfig,), {"name": "loud"})

    def mix(self, *args):
        y, state = super().mix(*args)
        return 2 * y, state


class LoudInput(DeltaNet):
    config_class = type("LoudInputConfig", (DeltaNetConfig,), {"name": "loud_input"})

    def op_inputs(self, *args):
        inputs = super().op_inputs(*args)
        return inputs._replace(v=2 * inputs.v)


class LoudWithOps(DeltaNet):
    config_class = type("LoudWithOpsConfig", (DeltaNetConfig,), {"name": "loud_with_ops"})

    @recordable
    def mix(self, x, state, ops):
        y, state = super().mix(x, state, ops)
        return ops.add(y, y), state


@pytest.mark.parametrize("kind", [Loud, LoudInput, LoudWithOps])
def test_subclasses_with_another_formula(kind, monkeypatch) -> None:
    monkeypatch.setitem(MIXERS, kind.config_class.name, kind.config_class)
    register(kind)
    layer, x, state = setting(kind.config_class(num_heads=2))
    with torch.no_grad():
        decoder = layer.decoder(1)
        assert decoder.recorded == (kind is LoudWithOps)
        assert_right(decoder, x, state)


@pytest.mark.parametrize(
    "compute",
    [
        lambda v: torch.exp(v),
        lambda v: torch.ones(2) * v,
        lambda v: v * 2,
        lambda v: 2 - v,
        lambda v: -v,
        lambda v: v.view(-1),
        lambda v: v[0],
        lambda v: nn.Linear(2, 2)(v),
        lambda v: v.shape,
    ],
)
def test_torch_on_a_recorded_value_raises(compute) -> None:
    with pytest.raises(NotRecordableError, match="ops"):
        compute(Value(torch.zeros(1, 2)))


@pytest.mark.parametrize(
    ("around", "message"),
    [
        (torch.enable_grad, "no gradients"),
        (lambda: torch.autocast("cpu"), "autocast"),
        (forward_ad.dual_level, "traced or transformed"),
        (lambda: FlopCounterMode(display=False), "traced or transformed"),
        (CountFunctions, "traced or transformed"),
    ],
)
@pytest.mark.parametrize("name", ["delta_net", "slstm"])
def test_what_a_decoder_refuses(name, around, message, runs) -> None:
    layer, x, state = setting(MIXERS[name](num_heads=2))
    decoder = layer.decoder(1)
    with torch.no_grad(), around(), pytest.raises(UserError, match=message):
        decoder.step(x, state)
    assert not runs


def test_inputs_that_a_decoder_refuses(runs) -> None:
    layer, x, state = setting(DeltaNetConfig(num_heads=2), batch=2)
    decoder = layer.decoder(2)
    wide = type(state)(*(part.double() for part in state))
    with torch.no_grad():
        for wrong, message in (
            ((x[:1], state), r"must be \[B, hidden_size\] = \[2, 12\]; got \[1, 12\]"),
            ((x[:, None], state), r"got \[2, 1, 12\]"),
            ((x.tolist(), state), "got list"),
            ((x, layer.init_state(3)), "the state has batch 3, the input 2"),
            ((x, state.S), "the state must be a DeltaNetState"),
            ((x, wide), "float32 tensors on the CPU; got torch.float64"),
            ((x.bfloat16(), state), "float32 tensors on the CPU; got torch.bfloat16"),
            ((x.to("meta"), state), "on meta"),
        ):
            with pytest.raises(UserError, match=message):
                decoder.step(*wrong)
    for size in (0, -1, 2.0, "2"):
        with pytest.raises(UserError, match="batch_size"):
            layer.decoder(size)
    assert not runs


@pytest.mark.parametrize("kind", ["bfloat16", "float64", "rows", "no library"])
def test_the_plain_step(kind, runs, monkeypatch) -> None:
    batch = MAX_ROWS + 1 if kind == "rows" else 1
    layer, x, state = setting(DeltaNetConfig(num_heads=2), batch=batch)
    if kind == "bfloat16":
        layer, x = layer.bfloat16(), x.bfloat16()
    elif kind == "float64":
        layer, x = layer.double(), x.double()
    elif kind == "no library":
        monkeypatch.setattr(library, "WHY_MISSING", "not built")
    decoder = layer.decoder(batch)
    assert not decoder.recorded
    with torch.no_grad():
        y, _ = decoder.step(x, state)
        assert torch.equal(y, layer.step(x, state)[0])
    assert not runs
