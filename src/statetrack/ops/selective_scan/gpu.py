"""The selective scan on GPUs, by Triton kernels, as torch operators.

Importing this module imports Triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from statetrack.kernels.gpu import KernelExample, gpu_operator
from statetrack.kernels.launch import Launch
from statetrack.kernels.operators import differentiable, needs_gradients
from statetrack.ops.selective_scan.gpu_kernels import (
    selective_scan_backward_kernel,
    selective_scan_forward_kernel,
    selective_scan_step_kernel,
)
from statetrack.ops.selective_scan.native import INPUTS, STATES, definition


class Blocks(NamedTuple):
    """What a program works on at a time: [BT, BN, BD] numbers, BT tokens being a chunk."""

    BT: int
    BN: int
    BD: int
    num_warps: int


def scan_blocks(channels: int, N: int) -> Blocks:
    """Choose blocks of up to 32 channels, a warp's lanes, and 32 numbers of each thread."""
    BN = triton.next_power_of_2(N)
    BD = max(1, min(32, triton.next_power_of_2(channels), 2048 // BN))
    num_warps = max(1, min(8, BN * BD // 64))
    BT = max(4, min(16, 32 * 32 * num_warps // (BN * BD)))
    return Blocks(BT, BN, BD, num_warps)


def backward_blocks(channels: int, N: int, rocm: bool | None = None) -> Blocks:
    """Choose the blocks of the backward pass, whose chunks are those of the forward pass.

    On ROCm at most 16 channels, with half of the warps: with 32, registers spill. On CUDA they do
    not, and fewer blocks leave fewer partial sums of dB and dC.
    """
    BT, BN, BD, num_warps = scan_blocks(channels, N)
    if (torch.version.hip is not None if rocm is None else rocm) and BD == 32:
        return Blocks(BT, BN, BD // 2, max(1, num_warps // 2))
    return Blocks(BT, BN, BD, num_warps)


def kept_states(batch: int, length: int, sequences: int, packed: bool, chunk: int) -> int:
    """Count the states before chunks, for packed sequences at most."""
    return length // chunk + sequences if packed else batch * -(-length // chunk)


def _rows(**tensors: Tensor | None) -> dict[str, Any]:
    """Tensors [B, T, .], whose last dimension must be dense, and the strides of the others."""
    arguments: dict[str, Any] = {}
    for name, x in tensors.items():
        if x is not None and x.stride(-1) != 1:
            x = x.contiguous()
        strides = (0, 0) if x is None else x.stride()
        arguments |= {name: x, f"{name}_row": strides[0], f"{name}_token": strides[1]}
    return arguments


def _dense(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _shared(
    u: Tensor, A: Tensor, D: Tensor | None, bounds: Tensor | None, blocks: Blocks
) -> dict[str, Any]:
    """What both directions have in common."""
    return {
        "BT": blocks.BT,
        "BN": blocks.BN,
        "BD": blocks.BD,
        "A": A.contiguous(),
        "D": _dense(D),
        "bounds": _dense(bounds),
        "T": u.shape[1],
        "channels": u.shape[2],
        "N": A.shape[1],
    }


def _grid(u: Tensor, bounds: Tensor | None, BD: int) -> tuple[int, int]:
    """The number of sequences and of blocks of channels."""
    return len(u) if bounds is None else len(bounds) - 1, triton.cdiv(u.shape[2], BD)


def _forward_launch(y: Tensor, state: Tensor, checkpoints: Tensor, *inputs: Any) -> Launch:
    u, delta, A, B, C, D, z, initial, bounds, negative, final, keep = inputs
    blocks = scan_blocks(u.shape[2], A.shape[1])
    sequences, channel_blocks = _grid(u, bounds, blocks.BD)
    arguments = _rows(u=u, delta=delta, B=B, C=C, z=z) | _shared(u, A, D, bounds, blocks)
    arguments |= {
        "initial": _dense(initial),
        "y": y,
        "final": state if final else None,
        "checkpoints": checkpoints if keep else None,
        "NEGATIVE": negative,
    }
    programs = sequences * channel_blocks
    return Launch(selective_scan_forward_kernel, programs, blocks.num_warps, arguments)


def _forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    outputs = _fake_forward(*inputs)
    _forward_launch(*outputs, *inputs).run()
    return outputs


def _fake_forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    u, _, A, *_, bounds, _, final, keep = inputs
    batch, length, channels = u.shape
    N = A.shape[1]
    sequences = batch if bounds is None else bounds.shape[0] - 1
    chunk = scan_blocks(channels, N).BT
    kept = kept_states(batch, length, sequences, bounds is not None, chunk)
    return (
        u.new_empty(u.shape),
        u.new_empty((sequences, channels, N) if final else (0,), dtype=torch.float32),
        u.new_empty((kept, N, channels) if keep else (0,), dtype=torch.float32),
    )


def _partial_sums(
    u: Tensor, A: Tensor, bounds: Tensor | None, rocm: bool | None = None
) -> dict[str, Tensor]:
    """Room for the gradients that programs have a part of: first is the dimension to sum over."""
    batch, length, channels = u.shape
    N = A.shape[1]
    sequences, channel_blocks = _grid(u, bounds, backward_blocks(channels, N, rocm).BD)
    shapes = {
        "dA": (sequences, channels, N),
        "dB": (channel_blocks, batch * length, N),
        "dC": (channel_blocks, batch * length, N),
        "dD": (sequences, channels),
    }
    return {name: u.new_empty(shape, dtype=torch.float32) for name, shape in shapes.items()}


def _backward_launch(
    grads: Sequence[Tensor],
    sums: dict[str, Tensor],
    dy: Tensor,
    d_final: Tensor | None,
    checkpoints: Tensor,
    *inputs: Any,
    rocm: bool | None = None,
) -> Launch:
    u, delta, A, B, C, D, z, initial, bounds, negative = inputs
    du, ddelta, _, _, _, _, dz, d_initial = grads
    blocks = backward_blocks(u.shape[2], A.shape[1], rocm)
    sequences, channel_blocks = _grid(u, bounds, blocks.BD)
    arguments = _rows(u=u, delta=delta, B=B, C=C, z=z, dy=dy) | sums
    arguments |= _shared(u, A, D, bounds, blocks)
    arguments |= {
        "checkpoints": checkpoints,
        "d_final": _dense(d_final),
        "du": du,
        "ddelta": ddelta,
        "dz": dz,
        "d_initial": None if initial is None else d_initial,
        "tokens": u.shape[0] * u.shape[1],
        "NEGATIVE": negative,
    }
    programs = sequences * channel_blocks
    return Launch(selective_scan_backward_kernel, programs, blocks.num_warps, arguments)


def _backward(
    dy: Tensor, d_final: Tensor | None, checkpoints: Tensor, *inputs: Any
) -> tuple[Tensor, ...]:
    u, _, A, B, C, D, _, _, bounds, _ = inputs
    grads = _fake_backward(dy, d_final, checkpoints, *inputs)
    sums = _partial_sums(u, A, bounds)
    _backward_launch(grads, sums, dy, d_final, checkpoints, *inputs).run()
    du, ddelta, _, _, _, dD, dz, d_initial = grads
    dA = sums["dA"].sum(0).to(A.dtype)
    dB, dC = (sums[name].sum(0).view(x.shape).to(x.dtype) for name, x in (("dB", B), ("dC", C)))
    dD = dD if D is None else sums["dD"].sum(0).to(D.dtype)
    return du, ddelta, dA, dB, dC, dD, dz, d_initial


def _fake_backward(
    dy: Tensor, d_final: Tensor | None, checkpoints: Tensor, *inputs: Any
) -> tuple[Tensor, ...]:
    u = inputs[0]
    return tuple(u.new_empty(0) if x is None else x.new_empty(x.shape) for x in inputs[:8])


def _gradients(
    grads: Sequence[Any], inputs: Sequence[Any], kept: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    dy, d_final, _ = grads
    *given, _, keep = inputs
    if not keep:
        raise RuntimeError("the scan was told not to keep what its gradients need")
    if dy is None:
        dy = torch.zeros_like(inputs[0])
    return torch.ops.statetrack.selective_scan_triton_backward(dy, d_final, *kept, *given)


_selective_scan = gpu_operator(
    f"selective_scan_triton({INPUTS}, {STATES}, bool final, bool keep) -> (Tensor, Tensor, Tensor)",
    _forward,
    _fake_forward,
)
gpu_operator(
    "selective_scan_triton_backward(Tensor dy, Tensor? d_final, Tensor checkpoints, "
    f"{INPUTS}, {STATES}) -> ({', '.join(['Tensor'] * 8)})",
    _backward,
    _fake_backward,
)
differentiable("selective_scan_triton", _gradients, definition, reads=[2])


def selective_scan_triton(*inputs: Any) -> tuple[Tensor, Tensor | None]:
    """y in the type of u and the final state in float32, as `selective_scan` gives them.

    The inputs are those of `selective_scan_native`; bounds are on the device of the others.
    """
    y, state, _ = _selective_scan(*inputs, needs_gradients(inputs))
    return y, state if inputs[-1] else None


# ---- one token


def _step_launch(y: Tensor, state: Tensor, *inputs: Any) -> Launch:
    u, delta, A, B, C, D, z, negative = inputs
    batch, channels, N = state.shape
    BN = triton.next_power_of_2(N)
    BD = max(1, min(triton.next_power_of_2(channels), 512 // BN))
    arguments: dict[str, Any] = {
        "state": state,
        "A": A.contiguous(),
        "D": _dense(D),
        "y": y,
        "channels": channels,
        "N": N,
        "NEGATIVE": negative,
        "BN": BN,
        "BD": BD,
    }
    strides = zip(("state_row", "state_channel", "state_n"), state.stride(), strict=True)
    arguments |= dict(strides)
    for name, x in (("u", u), ("delta", delta), ("B", B), ("C", C), ("z", z)):
        if x is not None and x.stride(1) != 1:
            x = x.contiguous()
        arguments |= {name: x, f"{name}_row": 0 if x is None else x.stride(0)}
    programs = batch * triton.cdiv(channels, BD)
    return Launch(selective_scan_step_kernel, programs, max(1, min(4, BN * BD // 32)), arguments)


def _step(state: Tensor, *inputs: Any) -> Tensor:
    y = _fake_step(state, *inputs)
    _step_launch(y, state, *inputs).run()
    torch.autograd.graph.increment_version(state)  # autograd must know that it changed
    return y


def _fake_step(state: Tensor, u: Tensor, *others: Any) -> Tensor:
    return u.new_empty(u.shape)


selective_scan_step_triton = gpu_operator(
    f"selective_scan_step_triton(Tensor(a!) state, {INPUTS}, bool negative) -> Tensor",
    _step,
    _fake_step,
)
"""y [B, D] of one token; `state` [B, D, N] is updated in place."""


def examples() -> list[KernelExample]:
    """Describe the kernels in training and decoding, for a model of 370 million parameters."""
    B, T, D, N = 8, 2048, 2048, 16
    size = f"B {B}, T {T}, D {D}, N {N}"

    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    rows, A, skip = empty(B, T, D), empty(D, N, dtype=torch.float32), empty(D, dtype=torch.float32)
    inputs = rows, rows, A, empty(B, T, N), empty(B, T, N), skip, rows, None, None, True
    outputs = _fake_forward(*inputs, False, True)
    forward = _forward_launch(*outputs, *inputs, False, True)
    kept = outputs[2]
    grads = _fake_backward(rows, None, kept, *inputs)
    state, token = empty(B, D, N, dtype=torch.float32), empty(B, D)
    keys = empty(B, N)
    step = _step_launch(token, state, token, token, A, keys, keys, skip, token, True)

    def bytes_of(*tensors: Tensor) -> float:
        return float(sum(x.nbytes for x in tensors))

    given = bytes_of(*(x for x in inputs if isinstance(x, Tensor)))
    moved = given + bytes_of(outputs[0], kept)
    moved_step = bytes_of(state, state, A, skip, *[token] * 4, keys, keys)
    backward = []
    for rocm, title in (
        (False, "selective_scan backward"),
        (True, "selective_scan backward, ROCm"),
    ):
        sums = _partial_sums(rows, A, None, rocm)
        launch = _backward_launch(grads, sums, rows, None, kept, *inputs, rocm=rocm)
        moved_back = given + bytes_of(rows, kept, rows, rows, rows, *sums.values())
        backward.append(launch.example(title, size, 32 * B * T * D * N, moved_back))
    # operations for each number of the states: an exponential counts as one
    return [
        forward.example("selective_scan forward", size, 9 * B * T * D * N, moved),
        *backward,
        step.example("selective_scan step", f"B {B}, D {D}, N {N}", 9 * B * D * N, moved_step),
    ]
