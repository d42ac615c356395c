"""fla's kernels compile for a real GPU with the dtypes that the backend fla hands them.

The interpreter that compares their values knows neither Triton's types nor shared memory. Here each
call runs forward and backward with kernels that are compiled but not launched.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from statetrack.kernels import gpu
from statetrack.ops import delta_product, delta_rule, gated_linear_attention
from tests.gpu.fla_kernels import CachedAutotuner, first_config
from tests.ops.inputs import delta_product_inputs, delta_rule_inputs, linear_attention_inputs

SHARED_MEMORY = 166912  # bytes that a program can have on an A100


class A100:
    """What Triton asks of a driver before it compiles a kernel."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 80, 32)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of the kernels that were compiled."""
    names = set()
    launch = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = launch(self, *args, grid=grid, warmup=True, **kwargs)
        assert kernel.metadata.shared <= SHARED_MEMORY
        names.add(self.__name__)
        return kernel

    monkeypatch.setattr(JITFunction, "run", compile_only)
    for autotuner in (Autotuner, CachedAutotuner):
        monkeypatch.setattr(autotuner, "run", first_config)
    monkeypatch.setattr(gpu, "refusal", lambda *_: None)
    monkeypatch.setattr(triton.runtime.driver, "_active", A100())
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # its default is about to change
    return names


@pytest.mark.parametrize(
    ("op", "inputs", "T", "kernel"),
    [
        pytest.param(
            delta_rule, delta_rule_inputs, 9, "fused_recurrent_delta_rule_bwd_kernel", id="loop"
        ),
        pytest.param(
            delta_rule, delta_rule_inputs, 67, "prepare_wy_repr_bwd_kernel", id="delta_rule"
        ),
        pytest.param(
            partial(delta_product, num_householder=2),
            partial(delta_product_inputs, n=2, gate="decay"),
            67,
            "chunk_gated_delta_product_fwd_kernel_h_blockdim64",
            id="product-decay",
        ),
        pytest.param(
            gated_linear_attention,
            partial(linear_attention_inputs, gate="decay"),
            67,
            "chunk_bwd_kernel_dqkwg",
            id="attention-decay",
        ),
        pytest.param(
            gated_linear_attention,
            partial(linear_attention_inputs, gate="g", per_channel=True),
            67,
            "chunk_gla_bwd_kernel_inter",
            id="gla-g",
        ),
    ],
)
def test_calls_compile(
    op: Callable[..., Any],
    inputs: Callable[..., Any],
    T: int,
    kernel: str,
    compiled: set[str],
) -> None:
    """Values in bfloat16, all else in float32."""
    tensors = {
        name: x.to(torch.bfloat16 if name == "v" else torch.float32).requires_grad_(
            name != "initial_state"
        )
        for name, x in inputs(1, T, 1, 32, 32).items()
    }
    o, state = op(**tensors, output_final_state=True, backend="fla")
    (o.float().sum() + state.sum()).backward()
    assert kernel in compiled
