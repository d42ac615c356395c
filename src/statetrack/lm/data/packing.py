"""Pack tokens to the context length, in batches that are a function of the step alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from statetrack.config import at_least, within
from statetrack.errors import UserError
from statetrack.lm.data.shards import Ints, TokenData

ORDER = 0x7061636B  # separates the random stream of the order from others with the same seed


class PackedBatch(NamedTuple):
    """Windows of T + 1 tokens: the model reads all but the last and predicts all but the first."""

    tokens: Tensor  # [B, T + 1]
    # [N + 1] boundaries in tokens[:, :-1].reshape(1, B * T), of rows and of documents in them
    cu_seqlens: Tensor | None


class PackedBatches:
    """Windows of T + 1 tokens, in a new order in each epoch.

    Window i has the tokens i*T .. i*T + T: windows overlap by one token, so that each token but the
    first is predicted once per epoch. A tail shorter than a window is left out. Epoch e visits the
    windows in an order that depends on the seed and e only; a batch may hold the end of one epoch
    and the start of the next. A run that stopped after step s goes on with `batch(s)`.

    Args:
        data: The tokens.
        context_length: T.
        batch_size: Windows in a batch, of all processes together.
        seed: Of the order.
        keep_documents_apart: Whether batches have `cu_seqlens`, which reset the state between
            documents; the first token of one is still predicted at the EOS before it.

    Attributes:
        num_windows: Windows in an epoch.
        steps_per_epoch: The number of batches after which every window was read.
    """

    def __init__(
        self,
        data: TokenData,
        context_length: int,
        batch_size: int,
        seed: int,
        keep_documents_apart: bool = False,
    ) -> None:
        at_least("the context length", context_length, 1)
        at_least("the batch size", batch_size, 1)
        within("the seed of the order", seed, 0, 2**32 - 1)
        self.data, self.context_length, self.batch_size = data, context_length, batch_size
        self.seed, self.keep_documents_apart = seed, keep_documents_apart
        self.num_windows = (data.num_tokens - 1) // context_length
        if self.num_windows < 1:
            has = f"{data.num_tokens} tokens in {data.split}"
            raise UserError(f"{data.folder} has {has}, too few for context length {context_length}")
        self.steps_per_epoch = -(-self.num_windows // batch_size)
        self._orders: dict[int, Ints] = {}

    def batch(self, step: int, rank: int = 0, world_size: int = 1) -> PackedBatch:
        """Return the batch of training step `step`, counted from 0.

        Args:
            step: The step.
            rank: The process, if there are several: it gets rows rank, rank + world_size, ...
            world_size: The number of processes, a divisor of the batch size.
        """
        at_least("the step", step, 0)
        if self.batch_size % world_size:
            raise UserError(
                f"{world_size} processes cannot share a batch of {self.batch_size} equally"
            )
        first = step * self.batch_size
        visits = range(first + rank, first + self.batch_size, world_size)
        starts = [self._window(visit) * self.context_length for visit in visits]
        tokens = np.stack([self.data.read(s, s + self.context_length + 1) for s in starts])
        bounds = self._bounds(starts) if self.keep_documents_apart else None
        return PackedBatch(torch.from_numpy(tokens), bounds)

    def _window(self, visit: int) -> int:
        epoch, position = divmod(visit, self.num_windows)
        if epoch not in self._orders:
            rng = np.random.default_rng([self.seed, ORDER, epoch])
            recent = {e: order for e, order in self._orders.items() if e == epoch - 1}
            self._orders = {**recent, epoch: rng.permutation(self.num_windows)}
        return int(self._orders[epoch][position])

    def _bounds(self, starts: list[int]) -> Tensor:
        documents, length = self.data.document_starts, self.context_length
        bounds = []
        for row, start in enumerate(starts):
            low, high = np.searchsorted(documents, [start + 1, start + length])
            bounds += [row * length, *(documents[low:high] - start + row * length)]
        return torch.tensor([*bounds, len(starts) * length])
