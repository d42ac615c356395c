"""Steps that run as programs of native kernels: the same numbers, and never behind one's back."""

from __future__ import annotations

import copy
import gc
import threading
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from statetrack.kernels import library
from statetrack.layers import MIXERS, DeltaNet, DeltaNetConfig, GatedDeltaNetConfig, decoding
from statetrack.layers.base import register
from statetrack.ops.program import Program
from statetrack.testing.inputs import draw
from tests.layers.common import HIDDEN, LAYERS, make_layer, make_state
from tests.ops.common import assert_close
from tests.ops.pointwise import needs_native

pytestmark = [needs_native, pytest.mark.native]
RECORDED = [p for p in LAYERS if "record" in p.values[0].layer.__dict__]


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


def assert_right(layer, x: Tensor, state) -> None:
    y, after = layer.step(x, state)
    expected, expected_after = wide_step(layer, x, state)
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


def test_which_layers_record_their_steps() -> None:
    recorded = {name for name, config in MIXERS.items() if "record" in config.layer.__dict__}
    assert recorded >= {"delta_net", "delta_product", "gated_delta_net", "gated_delta_product"}
    assert recorded >= {"gla", "mamba", "mamba2", "mlstm"}


@pytest.mark.parametrize("level", library.LEVELS)
@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("config", RECORDED)
def test_a_program_is_the_definition(config, batch, level, runs) -> None:
    layer, x, state = setting(config, batch)
    with torch.no_grad(), library.forced(level):
        assert_right(layer, x, state)
        assert_right(layer, x + 1, state)  # the second time it is not recorded again
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
                results.append(layer.step(x, state))
    finally:
        torch.set_num_threads(before)
    assert len(runs) == 2
    assert runs[0] is not runs[1]
    (y, after), (same, same_after) = results
    assert torch.equal(y, same)
    assert all(map(torch.equal, after, same_after))
    with torch.no_grad():
        assert_right(layer, x, state)


@pytest.mark.parametrize("config", RECORDED)
def test_states_are_never_changed(config, runs) -> None:
    layer, x, state = setting(config, batch=2)
    kept = [part.clone() for part in state]
    with torch.no_grad():
        first, after = layer.step(x, state)
        kept_after = [part.clone() for part in after]
        layer.step(-x, after)
        second, _ = layer.step(x, state)
    assert torch.equal(first, second)
    assert len(runs) == 3
    assert all(map(torch.equal, state, kept))
    assert all(map(torch.equal, after, kept_after))


def test_a_strided_state_is_taken(runs) -> None:
    layer, x, state = setting(DeltaNetConfig(num_heads=2))
    strided = state._replace(S=state.S.mT.contiguous().mT)
    with torch.no_grad():
        assert torch.equal(layer.step(x, strided)[0], layer.step(x, state)[0])
    assert len(runs) == 2


def test_changed_parameters_count(runs) -> None:
    layer, x, state = setting(GatedDeltaNetConfig(num_heads=2))
    with torch.no_grad():
        layer.step(x, state)
        for p in layer.parameters():
            p.add_(0.1)  # in place: the program finds it
        assert_right(layer, x, state)
        layer.o_proj.weight = nn.Parameter(torch.randn_like(layer.o_proj.weight))
        assert_right(layer, x, state)
        layer.o_proj = nn.Linear(*reversed(layer.o_proj.weight.shape), bias=False)
        assert_right(layer, x, state)
        layer.o_proj.weight.data = layer.o_proj.weight.data.clone()
        assert_right(layer, x, state)
        layer.beta.top = 1.5
        assert_right(layer, x, state)
        layer.norm.eps = 0.5
        assert_right(layer, x, state)
    assert len(runs) == 7
    assert len(set(map(id, runs))) == 6


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


def test_global_hooks_and_modes_see_a_step() -> None:
    layer, seen = DeltaNet(12, num_heads=3), []
    x, state = torch.randn(2, 12), layer.init_state(2)
    with torch.no_grad():
        layer.step(x, state)  # recorded
        handle = register_module_forward_hook(lambda module, inputs, y: seen.append(module))
        layer.step(x, state)
        handle.remove()
        assert layer.o_proj in seen
        for mode in (CountOperators(), CountFunctions()):
            with mode:
                layer.step(x, state)
            assert mode.count > 0


def test_foreign_modules_and_hooks_go_the_ordinary_way(runs) -> None:
    layer, x, state = setting(DeltaNetConfig(num_heads=2))
    with torch.no_grad():
        plain, _ = layer.step(x, state)
        handle = layer.o_proj.register_forward_hook(lambda module, inputs, y: 2 * y)
        assert_close(layer.step(x, state)[0], 2 * plain, 1e-5)
        handle.remove()
        doubled = Doubled(*reversed(layer.o_proj.weight.shape), bias=False)
        doubled.weight, layer.o_proj = layer.o_proj.weight, doubled
        assert_close(layer.step(x, state)[0], 2 * plain, 1e-5)
    assert len(runs) == 1


def _bias(layer: nn.Module) -> None:
    layer.o_proj = nn.Linear(*reversed(layer.o_proj.weight.shape))


def _added_bias(layer: nn.Module) -> None:
    layer.qkv_proj.bias = nn.Parameter(torch.randn(len(layer.qkv_proj.weight)))


def _plain_tensor(layer: nn.Module) -> None:
    weight = torch.randn_like(layer.o_proj.weight)
    del layer.o_proj.weight
    layer.o_proj.weight = weight


def _transposed(layer: nn.Module) -> None:
    layer.g_proj.weight.data = torch.randn(*reversed(layer.g_proj.weight.shape)).t()


def _method(layer: nn.Module) -> None:
    forward = layer.o_proj.forward
    layer.o_proj.forward = lambda x: 2 * forward(x)


@pytest.mark.parametrize("change", [_bias, _added_bias, _plain_tensor, _transposed, _method])
def test_what_a_program_does_not_know(change, runs) -> None:
    """After a step, too: what was recorded does not hold any more."""
    layer, x, state = setting(GatedDeltaNetConfig(num_heads=2))
    with torch.no_grad():
        layer.step(x, state)
        change(layer)
        y, _ = layer.step(x, state)
        right, _ = layer(x[:, None], state)
    assert_close(y, right[:, 0], 1e-5)
    assert len(runs) == 1


def test_a_projection_that_does_not_fit_is_an_error(runs) -> None:
    layer, x, state = setting(DeltaNetConfig(num_heads=2))
    layer.o_proj = nn.Linear(HIDDEN + 1, HIDDEN, bias=False)
    with torch.no_grad(), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        layer.step(x, state)
    assert not runs


@pytest.mark.parametrize("width", [9, 16])
def test_wide_convolutions_go_the_ordinary_way(width, runs) -> None:
    layer, x, state = setting(DeltaNetConfig(num_heads=2, conv_size=width))
    with torch.no_grad():
        assert_right(layer, x, state)
    assert not runs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_whatever_the_default_type_is(dtype, runs) -> None:
    layer, x, state = setting(GatedDeltaNetConfig(num_heads=2))
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        assert all(part.dtype == torch.float32 for part in layer.init_state(1))
        with torch.no_grad():
            assert_right(layer, x, state)
    finally:
        torch.set_default_dtype(before)
    assert len(runs) == 1


def test_whatever_the_default_device_is(runs) -> None:
    layer, x, state = setting(GatedDeltaNetConfig(num_heads=2))
    with torch.no_grad(), torch.device("meta"):
        y, _ = layer.step(x, state)
    with torch.no_grad():
        assert torch.equal(y, layer.step(x, state)[0])
    assert len(runs) == 2


def test_inference_mode(runs) -> None:
    layer, x, state = setting(GatedDeltaNetConfig(num_heads=2))
    with torch.inference_mode():
        y, after = layer.step(x, state)
        again, _ = layer.step(x, after)
    with torch.no_grad():
        assert torch.equal(y, layer.step(x, state)[0])
        assert torch.equal(again, layer.step(x, after)[0])
    assert len(runs) == 4


def test_tracing_and_transforms_see_operations(runs) -> None:
    layer, x, state = setting(DeltaNetConfig(num_heads=2))
    for p in layer.parameters():
        p.requires_grad_(False)
    with torch.no_grad():
        y, _ = layer.step(x, state)
        traced = make_fx(lambda x: layer.step(x, state)[0])(x)
        assert_close(traced(2 * x), layer.step(2 * x, state)[0], 1e-5)
        compiled = torch.compile(lambda x: layer.step(x, state)[0], backend="eager")
        assert_close(compiled(x), y, 1e-5)
        with FlopCounterMode(display=False) as counter:
            layer.step(x, state)
        assert counter.get_total_flops() > 0
        with forward_ad.dual_level():
            layer.step(x, state)
    assert len(runs) == 2


@pytest.mark.parametrize("config", RECORDED)
def test_many_steps_are_one_forward(config, runs) -> None:
    layer, _, state = setting(config, batch=2)
    x = draw(11)(2, 40, HIDDEN).float()
    with torch.no_grad():
        expected, _ = layer(x, state)
        ys = []
        for x_t in x.unbind(1):
            y, state = layer.step(x_t, state)
            ys.append(y)
    assert_close(torch.stack(ys, 1), expected, 1e-4)
    assert len(runs) == 40


@pytest.mark.parametrize("poison", [float("nan"), 1e30])
@pytest.mark.parametrize("config", RECORDED)
def test_buffers_are_not_read_before_they_are_written(config, poison, runs, monkeypatch) -> None:
    layer, x, state = setting(config, batch=3)
    with torch.no_grad():
        expected, expected_after = layer.step(x, state)
        for buffer in runs[0]._made.values():
            if buffer.shape[:1] == (3,):
                buffer.fill_(poison)
        empty = torch.empty
        monkeypatch.setattr(torch, "empty", lambda *a, **o: empty(*a, **o).fill_(poison))
        y, after = layer.step(x, state)
    assert torch.equal(y, expected)
    assert all(map(torch.equal, after, expected_after))
    assert runs[0] is runs[1]


def test_programs_die_with_their_layer() -> None:
    layer, x, state = setting(DeltaNetConfig(num_heads=2))
    with torch.no_grad():
        layer.step(x, state)
    weight = weakref.ref(layer.qkv_proj.weight)
    del layer
    gc.collect()
    assert weight() is None


def test_a_subclass_with_another_mix_is_asked() -> None:
    class Loud(DeltaNet):
        config_class = type("LoudConfig", (DeltaNetConfig,), {"name": "loud"})

        def mix(self, *args, **options):
            y, state = super().mix(*args, **options)
            return 2 * y, state

    try:
        register(Loud)
        layer, x, state = setting(Loud.config_class(num_heads=2))
        plain = DeltaNet(HIDDEN, num_heads=2)
        plain.load_state_dict(layer.state_dict())
        with torch.no_grad():
            assert_close(layer.step(x, state)[0], 2 * plain.step(x, state)[0], 1e-5)
    finally:
        del MIXERS["loud"]


@pytest.mark.parametrize("way", ["gradients", "autocast", "bfloat16", "float64 state", "rows"])
def test_the_ordinary_way(way, runs) -> None:
    layer, x, state = setting(
        DeltaNetConfig(num_heads=2), batch=decoding.MOST_ROWS + 1 if way == "rows" else 1
    )
    if way == "gradients":
        layer.step(x, state)[0].sum().backward()
        assert all(p.grad is not None for p in layer.parameters())
    elif way == "autocast":
        with torch.no_grad(), torch.autocast("cpu"):
            layer.step(x, state)
    else:
        if way == "bfloat16":
            layer, x = layer.bfloat16(), x.bfloat16()
        elif way == "float64 state":
            state = type(state)(*(part.double() for part in state))
        with torch.no_grad():
            layer.step(x, state)
    assert not runs


def test_threads_do_not_share_buffers(runs) -> None:
    layer, x, state = setting(DeltaNetConfig(num_heads=2))
    with torch.no_grad():
        expected = layer.step(x, state)[0]
        found: list[bool] = []

        def work(factor: float) -> None:
            with torch.no_grad():
                wanted = expected if factor == 1 else layer.step(factor * x, state)[0]
                found.append(
                    all(torch.equal(layer.step(factor * x, state)[0], wanted) for _ in range(200))
                )

        threads = [threading.Thread(target=work, args=(factor,)) for factor in (1, 2, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [True] * 3
    assert len({id(program) for program in runs}) == 4


def test_layers_can_still_be_copied_and_saved(tmp_path, runs) -> None:
    layer, x, state = setting(DeltaNetConfig(num_heads=2))
    with torch.no_grad():
        expected = layer.step(x, state)[0]
        assert torch.equal(copy.deepcopy(layer).step(x, state)[0], expected)
    torch.save(layer, tmp_path / "layer.pt")
    assert len(runs) == 2


def test_programs_of_many_batch_sizes_are_forgotten(runs) -> None:
    layer, x, state = setting(DeltaNetConfig(num_heads=2), batch=20)
    with torch.no_grad():
        for batch in [*range(1, 20), 1, 19]:
            layer.step(x[:batch], type(state)(*(part[:batch] for part in state)))
    assert len(decoding._programs.of[layer]) == decoding.MOST_PROGRAMS
    assert runs[-1] is runs[18]
    assert runs[-2] is not runs[0]
