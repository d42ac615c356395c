"""Decoders give the numbers of `step`, by recorded kernels."""

from __future__ import annotations

import copy
import gc
import inspect
import threading
import weakref

import pytest
import torch
from torch import nn

from statetrack.kernels import library
from statetrack.layers import MIXERS, DeltaNetConfig, GatedDeltaNetConfig
from statetrack.layers.operations import TensorOps
from statetrack.layers.step_recorder import StepRecorder
from statetrack.testing.inputs import draw
from tests.layers.common import HIDDEN, LAYERS
from tests.layers.decoders import assert_right, setting
from tests.ops.common import assert_close
from tests.ops.pointwise import needs_native

pytestmark = [needs_native, pytest.mark.native]
RECORDED = [p for p in LAYERS if hasattr(p.values[0].layer.mix, "recordable")]


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
