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
from statetrack.kernels.operators import differentiable, needs_gradients
from statetrack.ops.selective_scan.gpu_kernels import backward_kernel, forward_kernel, step_kernel
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


def _grid(u: Tensor, bounds: Tensor | None, BD: int) -> tuple[int, int]:
    """The number of sequences and of blocks of channels."""
    return len(u) if bounds is None else len(bounds) - 1, triton.cdiv(u.shape[2], BD)


def _forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    u, delta, A, B, C, D, z, initial, bounds, negative, final, keep = inputs
    y, state, checkpoints = _fake_forward(*inputs)
    BT, BN, BD, num_warps = scan_blocks(u.shape[2], A.shape[1])
    sequences, blocks = _grid(u, bounds, BD)
    forward_kernel[(sequences * blocks,)](
        **_rows(u=u, delta=delta, B=B, C=C, z=z),
        A=A.contiguous(),
        D=_dense(D),
        initial=_dense(initial),
        bounds=_dense(bounds),
        y=y,
        final=state if final else None,
        checkpoints=checkpoints if keep else None,
        T=u.shape[1],
        channels=u.shape[2],
        N=A.shape[1],
        NEGATIVE=negative,
        BT=BT,
        BN=BN,
        BD=BD,
        num_warps=num_warps,
        enable_fp_fusion=True,
    )
    return y, state, checkpoints


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


def _backward(
    dy: Tensor, d_final: Tensor | None, checkpoints: Tensor, *inputs: Any
) -> tuple[Tensor, ...]:
    u, delta, A, B, C, D, z, initial, bounds, negative = inputs
    batch, length, channels = u.shape
    N = A.shape[1]
    BT, BN, BD, num_warps = scan_blocks(channels, N)
    sequences, blocks = _grid(u, bounds, BD)
    grads = _fake_backward(dy, d_final, checkpoints, *inputs)
    du, ddelta, _, _, _, _, dz, d_initial = grads
    of_states = u.new_empty(sequences, channels, N, dtype=torch.float32)
    of_skip = u.new_empty(sequences, channels, dtype=torch.float32)
    of_B, of_C = u.new_empty(2, blocks, batch * length, N, dtype=torch.float32)
    backward_kernel[(sequences * blocks,)](
        **_rows(u=u, delta=delta, B=B, C=C, z=z, dy=dy),
        A=A.contiguous(),
        D=_dense(D),
        bounds=_dense(bounds),
        checkpoints=checkpoints,
        d_final=_dense(d_final),
        du=du,
        ddelta=ddelta,
        dA=of_states,
        dB=of_B,
        dC=of_C,
        dD=of_skip,
        dz=dz,
        d_initial=None if initial is None else d_initial,
        T=length,
        tokens=batch * length,
        channels=channels,
        N=N,
        NEGATIVE=negative,
        BT=BT,
        BN=BN,
        BD=BD,
        num_warps=num_warps,
        enable_fp_fusion=True,
    )
    dA = of_states.sum(0).to(A.dtype)
    dB, dC = (x.sum(0).view(B.shape) for x in (of_B, of_C))
    dD = grads[5] if D is None else of_skip.sum(0).to(D.dtype)
    return du, ddelta, dA, dB.to(B.dtype), dC.to(C.dtype), dD, dz, d_initial


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


def _step(state: Tensor, *inputs: Any) -> Tensor:
    u, delta, A, B, C, D, z, negative = inputs
    y = _fake_step(state, *inputs)
    batch, channels, N = state.shape
    BN = triton.next_power_of_2(N)
    BD = max(1, min(triton.next_power_of_2(channels), 512 // BN))
    rows = {"u": u, "delta": delta, "B": B, "C": C, "z": z}
    rows = {name: x if x is None or x.stride(1) == 1 else x.contiguous() for name, x in rows.items()}
    strides = {f"{name}_row": 0 if x is None else x.stride(0) for name, x in rows.items()}
    step_kernel[(batch * triton.cdiv(channels, BD),)](
        state,
        **rows,
        **strides,
        A=A.contiguous(),
        D=_dense(D),
        y=y,
        channels=channels,
        state_row=state.stride(0),
        state_channel=state.stride(1),
        state_n=state.stride(2),
        N=N,
        NEGATIVE=negative,
        BN=BN,
        BD=BD,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return y


def _fake_step(state: Tensor, u: Tensor, *others: Any) -> Tensor:
    return u.new_empty(u.shape)


selective_scan_step_triton = gpu_operator(
    f"selective_scan_step_triton(Tensor(a!) state, {INPUTS}, bool negative) -> Tensor",
    _step,
    _fake_step,
)
"""y [B, D] of one token; `state` [B, D, N] is updated in place."""
