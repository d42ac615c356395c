"""The short causal convolution in front of a recurrence, with what follows it there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from statetrack.errors import UserError
from statetrack.ops.backends import check_shape, choose, compute_dtype
from statetrack.ops.ragged import Ragged, check_cu_seqlens, mask_lengths
from statetrack.ops.short_conv.naive import short_conv_naive
from statetrack.ops.short_conv.native import MAX_WIDTH, short_conv_native

_IMPLEMENTATIONS: dict[str, Callable[..., tuple[list[Tensor], Tensor]]] = {
    "naive": short_conv_naive,
    "native": short_conv_native,
}


def short_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    silu: bool = False,
    sizes: Sequence[int] | None = None,
    head_sizes: Sequence[int] | None = None,
    eps: float = 1e-6,
    window: Tensor | None = None,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> tuple[tuple[Tensor, ...], Tensor]:
    """y_t = sum_w weight[:, w] x_{t - W + 1 + w} + bias, causal and channel by channel.

    Then the SiLU if asked for. The channels can come out in parts, a tensor each, of which some
    are cut into heads h that become h / sqrt(sum(h^2) + eps): the q, k and v of a fused
    projection, with q and k of length 1. Gradients flow to every input, to `window` and through
    the next window. Computed in float32 or wider.

    Args:
        x: [B, T, D].
        weight: [D, W]; the native and triton backends take W up to 8.
        bias: [D].
        silu: whether y becomes silu(y).
        sizes: the channels of each part, D in all; one part if absent.
        head_sizes: for each part the size of its heads, 0 for a part that is not normalised.
        eps: what keeps heads of zeros finite.
        window: [B, W - 1, D] ([N, W - 1, D] for N sequences in `cu_seqlens`), the inputs before x;
            zeros if absent.
        mask: [B, T] bool, False for padding at the right ends.
        cu_seqlens: [N + 1] boundaries of sequences packed into one row (B = 1); instead of `mask`.
        backend: "auto", "naive" (plain torch), "native" (C++ kernels for CPUs) or "triton"
            (kernels for GPUs).

    Returns:
        The parts [B, T, size], in the type of `x`, but in float32 or wider if normalised: a key
        that is longer than 1 by a rounding of bfloat16 makes a reflection an expansion. And the
        next window, [B, W - 1, D] in the type of `x`: the last inputs that exist.
    """
    op = "short_conv"
    if x.dim() != 3 or 0 in x.shape:
        raise UserError(f"{op}: x must be [B, T, D], none of them 0; got {list(x.shape)}")
    batch, length, channels = x.shape
    check_shape(op, "x", x, "[B, T, D]", (batch, length, channels))
    ragged = None
    if cu_seqlens is not None:
        if mask is not None:
            raise UserError(f"{op} takes mask or cu_seqlens, not both")
        bounds = check_cu_seqlens(cu_seqlens, batch, length)
        ragged = Ragged.from_bounds(bounds, x.device)
        x, mask = ragged.pad(x), ragged.valid
        batch, length, _ = x.shape
    width = weight.shape[-1]
    if width < 1:
        raise UserError(f"{op}: weight must be [D, W], none of them 0; got {list(weight.shape)}")
    check_shape(op, "weight", weight, "[D, W]", (channels, width))
    if bias is not None:
        check_shape(op, "bias", bias, "[D]", (channels,))
    if window is not None:
        check_shape(op, "window", window, "[B, W - 1, D]", (batch, width - 1, channels))
    lengths = mask_lengths(op, mask, batch, length)
    parts = [channels] if sizes is None else list(sizes)
    if min(parts, default=0) < 1 or sum(parts) != channels:
        raise UserError(f"{op}: sizes must be at least 1 and sum to D = {channels}; got {parts}")
    units = [0] * len(parts) if head_sizes is None else list(head_sizes)
    if len(units) != len(parts) or any(
        h < 0 or (h and size % h) for h, size in zip(units, parts, strict=False)
    ):
        raise UserError(f"{op}: head_sizes must divide sizes {parts}, or be 0; got {units}")

    tensors = x, weight, bias, window
    limit = f"it takes widths up to {MAX_WIDTH}; got {width}"
    unfit = {} if width <= MAX_WIDTH else dict.fromkeys(("native", "triton"), limit)
    backend = choose(op, backend, (*_IMPLEMENTATIONS, "triton"), *tensors, unfit=unfit)
    if backend == "triton":
        from statetrack.ops.short_conv.gpu import short_conv_triton  # imports Triton

        ys, after = short_conv_triton(*tensors, lengths, parts, units, silu, eps)
    else:
        dtype = compute_dtype(*tensors)
        wide_dtype = torch.promote_types(x.dtype, torch.float32)
        wide = [None if t is None else t.to(dtype) for t in tensors]
        outputs, after = _IMPLEMENTATIONS[backend](*wide, lengths, parts, units, silu, eps)
        ys = [y.to(wide_dtype if h else x.dtype) for y, h in zip(outputs, units, strict=True)]
        after = after.to(x.dtype)
    return tuple(ys if ragged is None else map(ragged.unpad, ys)), after
