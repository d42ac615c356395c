"""What a layer sees of each token, and weights that map those few inputs to given outputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from statetrack.models import SequenceModel
from statetrack.models.sequence_model import Block
from statetrack.tasks import IGNORE, Batch

SOME = 256  # sequences that a layer is listened to on


@dataclass(frozen=True)
class Seen:
    """The tokens of some sequences, up to the last position where something is asked."""

    ids: NDArray[np.int64]  # [n]
    recurring: Tensor  # [n] bool: not only at the start of a sequence, as a BOS is
    counts: Tensor  # [n] float64: how often it has been read, on average over what is asked
    x: Tensor  # [n, D] float64: the first layer's input, a function of the token alone
    tokens: Tensor  # [B, T]: some of the sequences
    place: Tensor  # [B, T]: which of the n stands here, -1 after the last one

    @classmethod
    @torch.no_grad()
    def of(cls, model: SequenceModel, batch: Batch) -> Seen:
        """The tokens of a batch as this float64 model sees them."""
        asked = batch.targets != IGNORE
        read = np.flip(np.logical_or.accumulate(np.flip(asked, 1), 1), 1)
        ids = np.unique(batch.tokens[read])
        recurring = np.isin(ids, batch.tokens[:, 1:][read[:, 1:]])
        counts = [np.cumsum(batch.tokens == i, 1)[asked].mean() for i in ids]
        block = model.blocks[0]
        assert isinstance(block, Block)
        x = block.mixer_input(model._embed(torch.from_numpy(ids)))
        tokens = batch.tokens[:SOME]
        place = np.where(read[:SOME], np.searchsorted(ids, tokens), -1)
        told = torch.from_numpy(recurring), torch.tensor(counts).double(), x
        return cls(ids, *told, torch.from_numpy(tokens), torch.from_numpy(place))

    def average(self, values: Tensor, delay: int = 0) -> Tensor:
        """The means [n, ...] of values [B, T, ...] by token, or by the one so many before it.

        Of a token that has none so many after it: 0.
        """
        here = self.place[:, delay:] >= 0
        values, place = values[:, delay:][here], self.place[:, : here.shape[1]][here]
        sums = values.new_zeros(len(self.ids), *values.shape[1:]).index_add_(0, place, values)
        counts = place.bincount(minlength=len(self.ids)).clamp(min=1)
        return sums / counts.view(-1, *[1] * (sums.ndim - 1))


def window(model: SequenceModel) -> int:
    """How many tokens the convolution of the model's only layer looks at; 1 if there is none."""
    conv = getattr(model.blocks[0].mixer, "conv", None)
    return conv.width if conv else 1


def independent(inputs: Tensor) -> bool:
    """Whether a linear map can send inputs [n, D] to any outputs, with room for float32."""
    if len(inputs) > inputs.shape[1]:
        return False
    sizes = torch.linalg.svdvals(inputs)
    return bool(sizes[-1] > 1e-4 * sizes[0])


def refit(weight: Tensor, inputs: Tensor, outputs: Tensor) -> Tensor:
    """The matrix [m, D] nearest to `weight` that maps inputs [n, D] to outputs [n, m]."""
    missing = outputs - inputs @ weight.T
    return weight + (torch.linalg.pinv(inputs) @ missing).T
