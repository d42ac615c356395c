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


@dataclass(frozen=True)
class Seen:
    """The tokens of some sequences, up to the last position where something is asked."""

    ids: NDArray[np.int64]  # [n]
    recurring: Tensor  # [n] bool: not only at the start of a sequence, as a BOS is
    counts: Tensor  # [n] float64: how often it has been read, on average over what is asked
    x: Tensor  # [n, D] float64: the first layer's input, a function of the token alone

    @classmethod
    @torch.no_grad()
    def of(cls, model: SequenceModel, batch: Batch) -> Seen:
        """The tokens of a batch as this model sees them."""
        asked = batch.targets != IGNORE
        read = np.flip(np.logical_or.accumulate(np.flip(asked, 1), 1), 1)
        ids = np.unique(batch.tokens[read])
        recurring = np.isin(ids, batch.tokens[:, 1:][read[:, 1:]])
        counts = [np.cumsum(batch.tokens == i, 1)[asked].mean() for i in ids]
        block = model.blocks[0]
        assert isinstance(block, Block)
        x = block.mixer_input(model._embed(torch.from_numpy(ids)))
        return cls(ids, torch.from_numpy(recurring), torch.tensor(counts).double(), x.double())


def independent(inputs: Tensor) -> bool:
    """Whether a linear map can send inputs [n, D] to any outputs, with room for float32."""
    if len(inputs) > inputs.shape[1]:
        return False
    sizes = torch.linalg.svdvals(inputs)
    return bool(sizes[-1] > 1e-4 * sizes[0])


def refit(weight: Tensor, inputs: Tensor, outputs: Tensor) -> Tensor:
    """The matrix [m, D] nearest to `weight` that maps inputs [n, D] to outputs [n, m]."""
    weight = weight.double()
    missing = outputs - inputs @ weight.T
    return weight + (torch.linalg.pinv(inputs) @ missing).T
