"""Layers through the conformance kit on the kernels that they get on a GPU, interpreted.

One small layer of each range. The interpreter takes a millisecond for a token, so that these checks
are left out, all of which run on the CPU's kernels (tests/layers):

- those of sequences and padding that call the kernels as others here do: chunks, steps, decoder,
  rows, left and right padding, packed sequences (a layer pads them, as it does rows with a mask);
- long_sequences (515 tokens), and finite_differences, which are those of the definition in float64;
- bfloat16 and autocast: the interpreter cannot multiply matrices in bfloat16, as fla does;
- those in which a GPU takes the torch backend: vmap, forward mode, second derivatives, float64;
- those of the module and of its eigenvalues, which no backend changes.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from triton.runtime.interpreter import GridExecutor, InterpreterOptions, interpreter_builder

from statetrack.kernels import library
from statetrack.layers import MIXERS, MixerConfig
from statetrack.testing import CHECKS, Report, check_layer
from statetrack.testing.case import Case
from tests.gpu.fla_kernels import interpreted_fla  # noqa: F401
from tests.layers.common import HIDDEN, LAYERS

SMALL: dict[str, MixerConfig] = {}
for parameter in LAYERS:
    SMALL.setdefault(parameter.values[0].title, parameter.values[0])
TORCH_ONLY = ("attention", "diagonal_rnn", "full_matrix", "slstm")  # their recurrences, that is
ON_TRITON = ["single_token", "holes", "garbage_in_padding", "float32"]

# heads of 16 channels, the least that fla takes
SIZES = {"mamba2": {"head_dim": 16, "d_state": 16, "expand": 1}, "mlstm": {"expand": 0.5}}
BOTH_SIGNED = ("gated_delta_net", "gated_delta_product")
FLA_LAYERS = [
    MIXERS[name](
        allow_neg_eigval=signed,
        **({"allow_neg_gate": signed} if name in BOTH_SIGNED else {}),
        **({} if name == "mamba2" else {"num_heads": 1}),
        **SIZES.get(name, {}),
    )
    for name in ("delta_net", "delta_product", *BOTH_SIGNED, "gla", "mamba2", "mlstm")
    for signed in (False, True)
]
ON_FLA = ["single_token", "holes"]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Dispatch tensors on the CPU as on a GPU; the modules of the kernels that were launched."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda x: True))
    monkeypatch.setattr(library, "serves", lambda *tensors: False)
    # tests of ops let the interpreter look for overflows of integers, in a third of its time
    options = InterpreterOptions(sanitize_overflow=False)
    monkeypatch.setattr(interpreter_builder, "options", options)
    modules, launch = set(), GridExecutor.__call__

    def spy(self, *args, **kwargs):
        modules.add(self.fn.__module__)
        return launch(self, *args, **kwargs)

    monkeypatch.setattr(GridExecutor, "__call__", spy)
    return modules


@pytest.mark.parametrize("config", [pytest.param(c, id=title) for title, c in SMALL.items()])
def test_conforms_on_triton(config, launched):
    check_layer(partial(config.build, HIDDEN), only=ON_TRITON).raise_for_failures()
    scans = ("recurrence", "selective_scan")
    found = any(f"statetrack.ops.{scan}.gpu_kernels" in launched for scan in scans)
    assert found == (config.name not in TORCH_ONLY)


def test_every_layer_has_both_ranges():
    for config in MIXERS.values():
        ranges = {small.allow_neg_eigval for small in SMALL.values() if small.name == config.name}
        assert ranges == ({False} if config.no_switch else {False, True})


@pytest.mark.usefixtures("interpreted_fla")
@pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")  # above the diagonals
@pytest.mark.parametrize("config", [pytest.param(c, id=c.title) for c in FLA_LAYERS])
def test_conforms_on_fla(config, launched):
    """In float16, against the same weights in float64 and between calls."""
    build, noise = partial(config.build, 32), 0.1  # with more, float16 itself is far off
    check_layer(build, only=["float16"], perturb=noise).raise_for_failures()
    assert any(name.startswith("fla.ops.") for name in launched)
    assert "statetrack.ops.recurrence.gpu_kernels" not in launched
    case = Case(build, torch.float16, noise)
    case.dtypes = [torch.float16]  # float32 is not for fla
    Report(config.title, tuple(CHECKS[name](case) for name in ON_FLA)).raise_for_failures()
