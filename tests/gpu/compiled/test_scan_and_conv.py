"""The kernels of the scan and the convolution compile for GPUs with whatever is optional."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from statetrack.kernels.launch import Launch
from statetrack.ops.selective_scan import gpu as scan
from statetrack.ops.short_conv import gpu as conv

TARGETS = [
    pytest.param(GPUTarget("cuda", 80, 32), id="sm80"),
    pytest.param(GPUTarget("hip", "gfx942", 64), id="gfx942"),
]


def assert_compiles(launch: Launch, target: GPUTarget) -> None:
    example = launch.example("", "", 0, 0)
    types, constants, aligned = {}, {}, {}
    for n, parameter in enumerate(launch.kernel.params):
        value = example.arguments[parameter.name]
        if parameter.is_constexpr or not isinstance(value, str):
            types[parameter.name], constants[parameter.name] = "constexpr", value
            continue
        types[parameter.name], _, divisor = value.partition(":")
        if divisor or value.startswith("*"):
            aligned[(n,)] = [["tt.divisibility", 16]]
    options = {"num_warps": launch.num_warps, "enable_fp_fusion": True}
    source = ASTSource(launch.kernel, types, constants, aligned)
    compiled = triton.compile(source, target=target, options=options)
    assert compiled.asm["cubin" if target.backend == "cuda" else "hsaco"]


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def scan_inputs(
    B: int, T: int, D: int, N: int, dtype: torch.dtype, full: bool, packed: bool = False
) -> tuple[Any, ...]:
    x, n = empty(B, T, D, dtype=dtype), empty(B, T, N, dtype=dtype)
    bounds = empty(4, dtype=torch.int64) if packed else None
    sequences = 3 if packed else B
    rest = (empty(D), x, empty(sequences, D, N)) if full else (None, None, None)
    return x, x, empty(D, N), n, n, *rest, bounds, full


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param(scan_inputs(1, 1, 1, 1, torch.float32, False), id="one-number"),
        pytest.param(scan_inputs(1, 1, 1, 1, torch.float32, True, True), id="one-number-packed"),
        pytest.param(scan_inputs(2, 33, 33, 17, torch.float16, True), id="odd"),
        pytest.param(scan_inputs(1, 64, 64, 16, torch.bfloat16, True, True), id="packed"),
    ],
)
def test_selective_scan(inputs, target):
    full = inputs[-1]
    outputs = scan._fake_forward(*inputs, full, True)
    assert_compiles(scan._forward_launch(*outputs, *inputs, full, True), target)
    u, A, bounds = inputs[0], inputs[2], inputs[8]
    given = outputs[0], outputs[1] if full else None, outputs[2], *inputs
    sums = scan._partial_sums(u, A, bounds)
    assert_compiles(scan._backward_launch(scan._fake_backward(*given), sums, *given), target)
    (B, _, D), N = u.shape, A.shape[1]
    token, state = empty(B, D, dtype=u.dtype), empty(B, D, N, dtype=u.dtype)
    key, gate = empty(B, N, dtype=u.dtype), None if inputs[6] is None else token
    step = state, token, token, A, key, key, inputs[5], gate, full
    assert_compiles(scan._step_launch(token, *step), target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("shape", "heads", "full"),
    [
        pytest.param((1, 1, 1, 1), 0, False, id="one-number"),
        pytest.param((2, 33, 9, 4), 3, True, id="odd"),
        pytest.param((2, 64, 128, 4), 64, True, id="heads"),
        pytest.param((2, 64, 128, 8), 0, True, id="wide"),
    ],
)
def test_short_conv(shape, heads, full, target):
    B, T, D, W = shape
    x, weight, window = empty(B, T, D), empty(D, W), empty(B, W - 1, D)
    lengths = empty(B, dtype=torch.int64)
    rest = (empty(D), window, lengths) if full else (None, None, None)
    inputs = x, weight, *rest, [D], [heads], full, 1e-6
    (y,), after = conv._fake_forward(*inputs)
    (forward,) = conv._launches(conv.short_conv_forward_kernel, [{"y": y}], inputs)
    (backward,), _ = conv._backward_launches(x, [y], inputs)
    last = conv._inputs_launch(x, after if full else None, x, window if full else None, inputs)
    for launch in (forward, backward, last):
        assert_compiles(launch, target)
