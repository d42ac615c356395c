"""The objective of pretraining: the cross-entropy of next tokens."""

from __future__ import annotations

import platform
import warnings
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from statetrack.devices import to_device
from statetrack.lm.data import PackedBatch
from statetrack.lm.pretraining.config import PretrainingConfig
from statetrack.lm.pretraining.distributed import Processes
from statetrack.models import ChunkLoss, chunk_cross_entropy, chunked_backward, chunked_forward


class Objective:
    """The mean cross-entropy of a micro batch's next tokens.

    Args:
        config: says the precision, and how many tokens are back-propagated at once.
        processes: where it is computed.
        model: the model as `Processes.wrap` returns it.
    """

    def __init__(self, config: PretrainingConfig, processes: Processes, model: nn.Module) -> None:
        self.backward_chunk = config.backward_chunk
        self.processes, self.model = processes, model
        bf16 = config.precision == "bf16"
        if bf16 and processes.device.type == "cpu" and not has_bf16_products():
            warnings.warn(
                "This CPU has no instructions for bfloat16, so training is slower than with "
                "--precision fp32 (of `reproduce`: --lm-precision fp32)",
                stacklevel=2,
            )
        self.autocast = (
            torch.autocast(processes.device.type, torch.bfloat16) if bf16 else nullcontext()
        )

    def backward(self, batch: MicroBatch, accumulation: int, *, average: bool) -> Tensor:
        """Add the gradients of loss / accumulation to those of the parameters; return that loss.

        With `average`, the gradients are averaged over the processes afterwards.
        """
        loss, _ = chunked_backward(
            self._run,
            batch.tokens,
            lambda logits, columns: batch.loss(logits, columns) / accumulation,
            batch.chunk_length,
            cu_seqlens=batch.cu_seqlens,
            context=lambda last: self.processes.gradients(self.model, average=average and last),
        )
        return loss

    def loss(self, batch: MicroBatch) -> Tensor:
        """Compute the loss."""
        chunks = chunked_forward(
            self._run, batch.tokens, batch.chunk_length, cu_seqlens=batch.cu_seqlens
        )
        return torch.stack([batch.loss(chunk.logits, chunk.columns) for chunk in chunks]).sum()

    def to_device(self, batch: PackedBatch) -> MicroBatch:
        """Copy a micro batch to the device, without waiting for it."""
        windows, bounds = to_device(batch.tokens, self.processes.device), batch.cu_seqlens
        tokens, targets = windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
        chunk = self.backward_chunk or tokens.shape[1]
        if bounds is not None:  # the B rows become one, so a chunk has B times as many tokens
            chunk *= len(tokens)
            tokens, targets = tokens.view(1, -1), targets.view(1, -1)
        return MicroBatch(tokens, bounds, chunk, chunk_cross_entropy(targets))

    def _run(self, tokens: Tensor, state: Any, **layout: Any) -> tuple[Tensor, Any]:
        with self.autocast:
            logits, state = self.model(tokens, state, **layout)
        return logits, state


def has_bf16_products() -> bool:
    """Return whether the CPU has instructions that multiply bfloat16 matrices."""
    if platform.machine() in ("aarch64", "arm64"):
        available = torch.backends.mkldnn.is_available()
        return available and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()  # noqa: SLF001


class MicroBatch(NamedTuple):
    """A micro batch on the device."""

    tokens: Tensor  # [B, T], or [1, B T] if they are packed
    cu_seqlens: Tensor | None
    chunk_length: int
    loss: ChunkLoss
