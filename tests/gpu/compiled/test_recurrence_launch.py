"""Launches of the kernels with a matrix-valued state, up to the GPU that is not there.

They bind their arguments and compile as for a GPU, which the interpreter does not show: Triton
makes constants of arguments that are 1 or None.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction, driver

from statetrack.ops import delta_product, gated_linear_attention
from statetrack.ops.recurrence import gpu
from tests.ops.inputs import delta_product_inputs, linear_attention_inputs


@pytest.fixture
def launched(monkeypatch, tmp_path):
    """The names of launched kernels, which are compiled for an A100 and not run."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    absent = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget("cuda", 80, 32),
    )
    monkeypatch.setattr(driver, "_active", absent)
    names = []
    real = JITFunction.run

    def run(self, *args, grid, warmup, **kwargs):
        names.append(self.__name__)
        assert real(self, *args, grid=grid, warmup=True, **kwargs).asm["cubin"]

    monkeypatch.setattr(JITFunction, "run", run)
    return names


@pytest.fixture
def on_gpu(monkeypatch):
    """Tensors on the CPU are taken for ones on a GPU."""
    monkeypatch.setattr("statetrack.kernels.gpu.interpreting", lambda: True)


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("size", [1, 9])
@pytest.mark.parametrize("name", ["delta_product", "gated_linear_attention"])
def test_launches(launched, name, size):
    if name == "delta_product":
        op = partial(delta_product, num_householder=2)
        inputs = delta_product_inputs(1, size, 1, size, size, 2, gate="g")
    else:
        op = gated_linear_attention
        inputs = linear_attention_inputs(1, size, 1, size, size, gate="decay", per_channel=True)
        del inputs["initial_state"]
    leaves = {key: x.to(torch.bfloat16).requires_grad_() for key, x in inputs.items()}
    ends = torch.tensor([0, size]) if size > 1 else None
    o, state = op(**leaves, output_final_state=True, cu_seqlens=ends, backend="triton")
    torch.autograd.grad(o.sum() + state.sum(), list(leaves.values()))
    assert launched == ["recurrence_forward", "recurrence_states", "recurrence_backward"]


def test_a_step_launches(launched):
    state, k = torch.zeros(1, 1, 4, 3), torch.ones(1, 1, 4)
    v, beta = torch.ones(1, 1, 3), torch.ones(1, 1)
    o = gpu.recurrence_step_triton(state, k, k, v, beta, beta, 1, 0.5)
    assert o.shape == (1, 1, 3)
    assert launched == ["recurrence_forward"]
