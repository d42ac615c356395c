"""The short convolution on GPUs, by Triton kernels, as torch operators.

Importing this module imports Triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from statetrack.kernels.gpu import KernelExample, gpu_operator
from statetrack.kernels.launch import Launch
from statetrack.kernels.operators import differentiable
from statetrack.ops.short_conv.gpu_kernels import (
    short_conv_backward_kernel,
    short_conv_forward_kernel,
    short_conv_inputs_kernel,
)
from statetrack.ops.short_conv.naive import short_conv_naive
from statetrack.ops.short_conv.native import INPUTS

TOKENS = 32
"""Tokens of a program."""
ELEMENTS = 2048
"""Numbers of a program, tokens times channels, if heads are not larger."""
NUM_WARPS = 4


def conv_blocks(length: int, size: int, head: int) -> tuple[dict[str, int], int]:
    """Choose a program's block [BT, BH, BC] of a part, and count its blocks of channels.

    A program has all channels of a head.
    """
    BC = triton.next_power_of_2(head) if head else min(64, triton.next_power_of_2(size))
    BH = max(1, min(64 // BC, triton.next_power_of_2(size // head))) if head else 1
    BT = max(1, min(TOKENS, triton.next_power_of_2(length), ELEMENTS // (BH * BC)))
    blocks = triton.cdiv(size, BH * head if head else BC)
    return {"BT": BT, "BH": BH, "BC": BC}, blocks


def _part_dtype(x: Tensor, head: int) -> torch.dtype:
    """Parts of unit vectors are float32: rounded to bfloat16 they could be longer than 1."""
    return torch.promote_types(x.dtype, torch.float32) if head else x.dtype


def _launches(
    kernel: Any, of_parts: Sequence[dict[str, Any]], inputs: Sequence[Any], BT: int | None = None
) -> list[Launch]:
    """The kernel for each part, with arguments of its own; with a given BT if there is one."""
    x, weight, bias, window, _, sizes, head_sizes, silu, eps = inputs
    batch, length, channels = x.shape
    x = x if x.stride(2) == 1 else x.contiguous()
    shared = {
        "x": x,
        "weight": weight.contiguous(),
        "bias": None if bias is None else bias.contiguous(),
        "window": None if window is None else window.contiguous(),
        "T": length,
        "channels": channels,
        "x_row": x.stride(0),
        "x_token": x.stride(1),
        "eps": float(eps),
        "W": weight.shape[1],
        "SILU": silu,
    }
    launches, first = [], 0
    for size, head, own in zip(sizes, head_sizes, of_parts, strict=True):
        block, blocks = conv_blocks(length, size, head)
        if BT is not None:
            block["BT"] = BT
        programs = batch * triton.cdiv(length, block["BT"]) * blocks
        part = {"first": first, "size": size, "HEAD": head}
        launches.append(Launch(kernel, programs, NUM_WARPS, shared | block | part | own))
        first += size
    return launches


def _next_window(x: Tensor, window: Tensor | None, lengths: Tensor | None, W: int) -> Tensor:
    """The last W - 1 inputs that exist, the window's among them; never a view."""
    batch, length, channels = x.shape
    before = x.new_zeros(batch, W - 1, channels) if window is None else window.to(x.dtype)
    if lengths is None:
        return torch.cat([before[:, length:], x[:, max(0, length - W + 1) :]], 1)
    # positions lengths .. lengths + W - 2 of the window and x in one row
    p = (lengths[:, None] + torch.arange(W - 1, device=x.device))[..., None]
    p = p.expand(-1, -1, channels)
    old, new = before.gather(1, p.clamp(max=W - 2)), x.gather(1, (p - W + 1).clamp(min=0))
    return torch.where(p < W - 1, old, new)


def _forward(*inputs: Any) -> tuple[list[Tensor], Tensor]:
    x, weight, _, window, lengths, *_ = inputs
    parts = _fake_forward(*inputs)[0]
    for launch in _launches(short_conv_forward_kernel, [{"y": y} for y in parts], inputs):
        launch.run()
    return parts, _next_window(x, window, lengths, weight.shape[1])


def _fake_forward(*inputs: Any) -> tuple[list[Tensor], Tensor]:
    x, weight, _, _, _, sizes, head_sizes, *_ = inputs
    parts = [
        x.new_empty(*x.shape[:2], size, dtype=_part_dtype(x, head))
        for size, head in zip(sizes, head_sizes, strict=True)
    ]
    return parts, x.new_empty(x.shape[0], weight.shape[1] - 1, x.shape[2])


def _backward_launches(
    dz: Tensor, d_parts: Sequence[Tensor], inputs: Sequence[Any]
) -> tuple[list[Launch], Tensor]:
    """The kernels for all parts, and their sums over blocks of tokens, [., W + 1, D]."""
    x, weight, _, _, _, sizes, head_sizes, *_ = inputs
    batch, length, channels = x.shape
    # blocks of tokens must be the same for all parts: a table has their sums
    pairs = zip(sizes, head_sizes, strict=True)
    BT = min(conv_blocks(length, size, head)[0]["BT"] for size, head in pairs)
    steps = batch * triton.cdiv(length, BT)
    sums = x.new_empty(steps, weight.shape[1] + 1, channels, dtype=torch.float32)
    of_parts = []
    for dy in d_parts:
        dy = dy if dy.stride(2) == 1 else dy.contiguous()
        own = {"dy": dy, "dy_row": dy.stride(0), "dy_token": dy.stride(1)}
        of_parts.append(own | {"dz": dz, "partial": sums})
    return _launches(short_conv_backward_kernel, of_parts, inputs, BT), sums


def _inputs_launch(
    dz: Tensor, d_final: Tensor | None, dx: Tensor, d_window: Tensor | None, inputs: Sequence[Any]
) -> Launch:
    weight, lengths = inputs[1].contiguous(), inputs[4]
    batch, length, channels = dx.shape
    W = weight.shape[1]
    block, blocks = conv_blocks(length + W - 1, channels, 0)
    arguments = {
        "dz": dz,
        "weight": weight,
        "lengths": None if lengths is None else lengths.contiguous(),
        "d_final": None if d_final is None else d_final.contiguous(),
        "dx": dx,
        "d_window": d_window,
        "T": length,
        "channels": channels,
        "W": W,
        "BT": block["BT"],
        "BC": block["BC"],
    }
    programs = batch * triton.cdiv(length + W - 1, block["BT"]) * blocks
    return Launch(short_conv_inputs_kernel, programs, NUM_WARPS, arguments)


def _backward(
    d_parts: list[Tensor], d_final: Tensor | None, *inputs: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, weight, bias, window, *_ = inputs
    W = weight.shape[1]
    dx, _, dbias, d_window = _fake_backward(d_parts, d_final, *inputs)
    dz = x.new_empty(x.shape, dtype=torch.float32)
    launches, sums = _backward_launches(dz, d_parts, inputs)
    of_window = None if window is None else d_window
    for launch in (*launches, _inputs_launch(dz, d_final, dx, of_window, inputs)):
        launch.run()
    total = sums.sum(0)
    dweight = total[:W].mT.to(weight.dtype, memory_format=torch.contiguous_format)
    if bias is not None:
        dbias = total[W].to(bias.dtype, copy=True)
    return dx, dweight, dbias, d_window


def _fake_backward(
    d_parts: list[Tensor], d_final: Tensor | None, *inputs: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, weight, bias, window, *_ = inputs
    return (
        x.new_empty(x.shape),
        weight.new_empty(weight.shape),
        x.new_empty(0) if bias is None else bias.new_empty(bias.shape),
        x.new_empty(0) if window is None else window.new_empty(window.shape),
    )


def _gradients(grads: Sequence[Any], inputs: Sequence[Any], _: Any) -> tuple[Tensor, ...]:
    x, sizes, head_sizes = inputs[0], inputs[5], inputs[6]
    d_parts, d_final = grads
    given = [
        x.new_zeros(*x.shape[:2], size, dtype=_part_dtype(x, head)) if d is None else d
        for d, size, head in zip(d_parts, sizes, head_sizes, strict=True)
    ]
    return torch.ops.statetrack.short_conv_triton_backward(given, d_final, *inputs)


def _definition(*inputs: Any) -> tuple[list[Tensor], Tensor]:
    x, head_sizes = inputs[0], inputs[6]
    wide: list[Any] = [None if t is None else t.float() for t in inputs[:4]]
    parts, after = short_conv_naive(*wide, *inputs[4:])
    parts = [y.to(_part_dtype(x, head)) for y, head in zip(parts, head_sizes, strict=True)]
    return parts, after.to(x.dtype)


short_conv_triton = gpu_operator(
    f"short_conv_triton({INPUTS}) -> (Tensor[], Tensor)", _forward, _fake_forward
)
"""The arguments of short_conv_naive; parts of unit vectors are float32, others as x is."""
gpu_operator(
    f"short_conv_triton_backward(Tensor[] d_parts, Tensor? d_final, {INPUTS}) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
    _backward,
    _fake_backward,
)
differentiable("short_conv_triton", _gradients, _definition)


def examples() -> list[KernelExample]:
    """Describe the kernels in training: a part without heads, and one of heads."""
    B, T, D, W, head = 8, 2048, 2048, 4, 128

    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    x, weight = empty(B, T, D), empty(D, W, dtype=torch.float32)
    bias, dz = empty(D, dtype=torch.float32), empty(B, T, D, dtype=torch.float32)
    found = []
    for heads, name in ((0, ""), (head, f", heads of {head}")):
        inputs = x, weight, bias, None, None, [D], [heads], True, 1e-6
        (y,), _ = _fake_forward(*inputs)
        (forward,) = _launches(short_conv_forward_kernel, [{"y": y}], inputs)
        (backward,), sums = _backward_launches(dz, [y], inputs)
        size = f"B {B}, T {T}, D {D}, W {W}{name}"
        # operations for each number of x: products and sums, the SiLU, the norm
        work = 2 * W + 5 + (4 if heads else 0)
        moved, moved_back = x.nbytes + y.nbytes, x.nbytes + y.nbytes + dz.nbytes + sums.nbytes
        found += [
            forward.example("short_conv forward", size, work * x.numel(), moved),
            backward.example(
                "short_conv backward", size, (2 * work + 2 * W) * x.numel(), moved_back
            ),
        ]
    size = f"B {B}, T {T}, D {D}, W {W}"
    last = _inputs_launch(dz, None, x, None, inputs)
    moved = dz.nbytes + x.nbytes
    return [*found, last.example("short_conv backward, inputs", size, 2 * W * x.numel(), moved)]
