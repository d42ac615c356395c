"""Decoders give the numbers of `step`, by recorded kernels, and refuse what they cannot do."""

from __future__ import annotations

import copy
import gc
import inspect
import threading
import weakref

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
from statetrack.kernels.program import NotRecordableError, Program
from statetrack.layers import MIXERS, DeltaNet, DeltaNetConfig, GatedDeltaNetConfig
from statetrack.layers.base import register
from statetrack.layers.common import HeadwiseLinear
from statetrack.layers.decoder import MAX_ROWS, Decoder
from statetrack.layers.operations import TensorOps, recordable
from statetrack.layers.step_recorder import StepRecorder, Value
from statetrack.testing.inputs import draw
from tests.layers.common import HIDDEN, LAYERS, make_layer, make_state
from tests.ops.common import assert_close
from tests.ops.pointwise import needs_native

pytestmark = [needs_native, pytest.mark.native]
RECORDED = [p for p in LAYERS if hasattr(p.values[0].layer.mix, "recordable")]


@pytest.fixture
def runs(monkeypatch) -> list[Program]:
    """The programs that ran."""
    seen: list[Program] = []
    run = Program.run
    monkeypatch.setattr(Program, "run", lambda self, x: (seen.append(self), run(self, x))[1])
    return seen


def wide_step(layer: nn.Module, x: Tensor, state):
    """The same step by definition in float64."""
    wide = copy.deepcopy(layer).double()
    return wide.step(x.double(), type(state)(*(part.double() for part in state)))


def assert_right(decoder: Decoder, x: Tensor, state) -> None:
    """The decoder's step is that of its layer in float64."""
    y, after = decoder.step(x, state)
    expected, expected_after = wide_step(decoder.layer, x, state)
    assert y.dtype == torch.float32
    assert_close(y.double(), expected, 5e-6, "y")
    for name, part, wanted in zip(after._fields, after, expected_after, strict=True):
        assert part.shape == wanted.shape
        assert part.dtype == torch.float32
        if part.numel():
            assert_close(part.double(), wanted, 5e-6, name)


def setting(config, batch: int = 1, hidden_size: int = HIDDEN):
    layer = make_layer(config, hidden_size).float()
    state = make_state(layer, batch)
    return layer, draw(3)(batch, hidden_size).float(), type(state)(*(s.float() for s in state))


def test_which_layers_are_recorded() -> None:
    recorded = {name for name, config in MIXERS.items() if config().build(64).decoder(2).recorded}
    assert recorded >= {"delta_net", "delta_product", "gated_delta_net", "gated_delta_product"}
    assert recorded >= {"gla", "mamba", "mamba2", "mlstm"}
    for config in (p.values[0] for p in LAYERS):
        declared = hasattr(config.layer.mix, "recordable")
        assert config.build(HIDDEN).decoder(1).recorded == declared


def test_both_kinds_of_operations_have_the_same_signatures() -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        found = inspect.getmembers(kind, inspect.isfunction)
        return {name: list(inspect.signature(f).parameters) for name, f in found if name[0] != "_"}

    recorder = methods(StepRecorder)
    del recorder["empty"]
    tensors = methods(TensorOps)
    del tensors["linear_scan"]  # of the diagonal RNN, whose steps are not recorded
    assert tensors == recorder


@pytest.mark.parametrize("level", library.LEVELS)
@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("config", RECORDED)
def test_a_decoder_is_the_definition(config, batch, level, runs) -> None:
    layer, x, state = setting(config, batch)
    with torch.no_grad(), library.forced(level):
        decoder = layer.decoder(batch)
        assert_right(decoder, x, state)
        assert_right(decoder, x + 1, state)  # the second time it is not recorded again
    assert len(runs) == 2
    assert runs[0] is runs[1]


@pytest.mark.parametrize("config", [MIXERS[name]() for name in ("gated_delta_net", "mamba", "gla")])
def test_large_layers_and_many_threads(config, runs) -> None:
    layer, x, state = setting(config, batch=17, hidden_size=256)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            with torch.no_grad():
                results.append(layer.decoder(17).step(x, state))
    finally:
        torch.set_num_threads(before)
    (y, after), (same, same_after) = results
    assert torch.equal(y, same)
    assert all(map(torch.equal, after, same_after))
    with torch.no_grad():
        assert_right(layer.decoder(17), x, state)
    assert len(set(map(id, runs))) == 3


@pytest.mark.parametrize("config", RECORDED)
def test_states_are_never_changed(config, runs) -> None:
    layer, x, state = setting(config, batch=2)
    kept = [part.clone() for part in state]
    decoder = layer.decoder(2)
    with torch.no_grad():
        first, after = decoder.step(x, state)
        kept_after = [part.clone() for part in after]
        decoder.step(-x, after)
        second, _ = decoder.step(x, state)
    assert torch.equal(first, second)
    assert len(runs) == 3
    assert all(map(torch.equal, state, kept))
    assert all(map(torch.equal, after, kept_after))


def test_a_strided_state_is_taken(runs) -> None:
    layer, x, state = setting(DeltaNetConfig(num_heads=2))
    strided = state._replace(S=state.S.mT.contiguous().mT)
    decoder = layer.decoder(1)
    with torch.no_grad():
        assert torch.equal(decoder.step(x, strided)[0], decoder.step(x, state)[0])
    assert len(runs) == 2


def test_changes_of_parameters_in_place_are_seen(runs) -> None:
    layer, x, state = setting(GatedDeltaNetConfig(num_heads=2))
    decoder = layer.decoder(1)
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(0.1)
        assert_right(decoder, x, state)
    assert len(runs) == 1


def test_another_decoder_after_a_replacement(runs) -> None:
    layer, x, state = setting(GatedDeltaNetConfig(num_heads=2))
    with torch.no_grad():
        old = layer.decoder(1)
        expected, _ = old.step(x, state)
        layer.o_proj.weight = nn.Parameter(torch.randn_like(layer.o_proj.weight))
        assert_right(layer.decoder(1), x, state)
        layer.o_proj = nn.Linear(*reversed(layer.o_proj.weight.shape), bias=False)
        assert_right(layer.decoder(1), x, state)
        layer.o_proj.weight.data = layer.o_proj.weight.data.clone()
        assert_right(layer.decoder(1), x, state)
        layer.beta.top = 1.5
        assert_right(layer.decoder(1), x, state)
        layer.norm.eps = 0.5
        assert_right(layer.decoder(1), x, state)
        gc.collect()
        assert torch.equal(old.step(x, state)[0], expected)  # it keeps the weights it reads
    assert len(runs) == 7


class Doubled(nn.Linear):
    """As adapters replace a projection."""

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


def _bias(layer: nn.Module) -> None:
    layer.o_proj = nn.Linear(*reversed(layer.o_proj.weight.shape))


def _added_bias(layer: nn.Module) -> None:
    layer.qkv_proj.bias = nn.Parameter(torch.randn(len(layer.qkv_proj.weight)))


@pytest.mark.parametrize("conv_size", [0, 4])
@pytest.mark.parametrize("change", [_bias, _added_bias])
def test_biases_are_recorded(change, conv_size, runs) -> None:
    layer, x, state = setting(GatedDeltaNetConfig(num_heads=2, conv_size=conv_size))
    change(layer)
    with torch.no_grad():
        assert_right(layer.decoder(1), x, state)
    assert len(runs) == 1


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_whatever_the_default_type_is(dtype, runs) -> None:
    layer, x, state = setting(GatedDeltaNetConfig(num_heads=2))
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        assert all(part.dtype == torch.float32 for part in layer.init_state(1))
        with torch.no_grad():
            assert_right(layer.decoder(1), x, state)
    finally:
        torch.set_default_dtype(before)
    assert len(runs) == 1


def test_whatever_the_default_device_is(runs) -> None:
    layer, x, state = setting(GatedDeltaNetConfig(num_heads=2))
    with torch.no_grad():
        with torch.device("meta"):
            decoder = layer.decoder(1)
            y, _ = decoder.step(x, state)
        assert torch.equal(y, decoder.step(x, state)[0])
    assert len(runs) == 2


def test_inference_mode(runs) -> None:
    layer, x, state = setting(GatedDeltaNetConfig(num_heads=2))
    with torch.inference_mode():
        decoder = layer.decoder(1)
        y, after = decoder.step(x, state)
        again, _ = decoder.step(x, after)
    with torch.no_grad():
        assert torch.equal(y, decoder.step(x, state)[0])
        assert torch.equal(again, decoder.step(x, after)[0])
    assert len(runs) == 4


@pytest.mark.parametrize("config", RECORDED)
def test_many_steps_are_one_forward(config, runs) -> None:
    layer, _, state = setting(config, batch=2)
    x = draw(11)(2, 40, HIDDEN).float()
    decoder = layer.decoder(2)
    with torch.no_grad():
        expected, _ = layer(x, state)
        ys = []
        for x_t in x.unbind(1):
            y, state = decoder.step(x_t, state)
            ys.append(y)
    assert_close(torch.stack(ys, 1), expected, 1e-4)
    assert len(runs) == 40


@pytest.mark.parametrize("poison", [float("nan"), 1e30])
@pytest.mark.parametrize("config", RECORDED)
def test_buffers_are_not_read_before_they_are_written(config, poison, runs, monkeypatch) -> None:
    layer, x, state = setting(config, batch=3)
    decoder = layer.decoder(3)
    with torch.no_grad():
        expected, expected_after = decoder.step(x, state)
        for buffer in runs[0]._buffers.values():
            if buffer.shape[:1] == (3,):
                buffer.fill_(poison)
        empty = torch.empty
        monkeypatch.setattr(torch, "empty", lambda *a, **o: empty(*a, **o).fill_(poison))
        y, after = decoder.step(x, state)
    assert torch.equal(y, expected)
    assert all(map(torch.equal, after, expected_after))


def test_a_layer_dies_with_its_decoder() -> None:
    layer, x, state = setting(DeltaNetConfig(num_heads=2))
    decoder = layer.decoder(1)
    with torch.no_grad():
        decoder.step(x, state)
    weight = weakref.ref(layer.qkv_proj.weight)
    del layer, decoder
    gc.collect()
    assert weight() is None


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


def test_threads_with_decoders_of_their_own(runs) -> None:
    layer, x, state = setting(DeltaNetConfig(num_heads=2))
    found: list[bool] = []

    def work(factor: float) -> None:
        decoder = layer.decoder(1)
        with torch.no_grad():
            wanted = decoder.step(factor * x, state)[0]
            found.append(
                all(torch.equal(decoder.step(factor * x, state)[0], wanted) for _ in range(200))
            )

    threads = [threading.Thread(target=work, args=(factor,)) for factor in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 3


def test_layers_can_still_be_copied_and_saved(tmp_path) -> None:
    layer, x, state = setting(DeltaNetConfig(num_heads=2))
    with torch.no_grad():
        expected = layer.decoder(1).step(x, state)[0]
        assert torch.equal(copy.deepcopy(layer).decoder(1).step(x, state)[0], expected)
    torch.save(layer, tmp_path / "layer.pt")
