"""The states of a model's layers as a cache of transformers, for `generate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, LinearAttentionLayer

from statetrack.errors import UserError
from statetrack.models import SequenceModel, State
from statetrack.models.sequence_model import ModelDecoder


class StateLayer(LinearAttentionLayer):
    """The state of one layer, as the layer returned it; None before the first token.

    Its tensors are batch-first and never changed in place.
    """

    is_compileable = False  # transformers would make masks for attention

    def __init__(self) -> None:
        super().__init__()
        self.state: Any = None

    def reset(self) -> None:
        """Return to the state before the first token."""
        self.state = None

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Replace the sequences by those at these indices."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the sequences at these indices."""
        self._map(lambda part: part[indices.to(part.device)])

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every sequence."""
        self._map(lambda part: part.repeat_interleave(repeats, 0))

    def _map(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.state is not None:
            self.state = type(self.state)(*map(change, self.state))


class StateTrackCache(Cache):
    """The state of every layer, and how many tokens have been read, padding included.

    Its size does not grow with the number of tokens, except in attention layers.
    """

    def __init__(self, num_layers: int) -> None:
        super().__init__(layers=[StateLayer() for _ in range(num_layers)])
        self.num_tokens = 0
        self._decoder: ModelDecoder | None = None
        self._recorded_for: tuple[int, ...] = ()
        self._weights: list[Tensor] = []

    @property
    def states(self) -> State | None:
        """The states of all layers; None before the first token."""
        return tuple(layer.state for layer in self.layers) if self.num_tokens else None

    def put(self, states: State, new_tokens: int) -> None:
        """Store the states after `new_tokens` more tokens."""
        for layer, state in zip(self.layers, states, strict=True):
            layer.state = state
        self.num_tokens += new_tokens

    def decoder(self, model: SequenceModel, batch_size: int) -> ModelDecoder:
        """Return a decoder of the model.

        Record it anew for another model, batch size or number of threads, or if the weights have
        moved in memory.
        """
        decoder = self._decoder
        recorded = self._recorded_for == self._situation(batch_size)
        if decoder is None or decoder.model is not model or not recorded:
            self._weights = list(model.parameters())
            self._recorded_for = self._situation(batch_size)
            decoder = self._decoder = model.decoder(batch_size)
        return decoder

    def _situation(self, batch_size: int) -> tuple[int, ...]:
        """Return the values that a recording depends on; if one changes, it is made anew."""
        return batch_size, torch.get_num_threads(), *(w.data_ptr() for w in self._weights)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of tokens read, padding included."""
        return self.num_tokens

    def reset(self) -> None:
        """Return to the state before the first token."""
        super().reset()
        self.num_tokens = 0

    def crop(self, tokens_to_remove: int) -> None:
        """Raise a UserError: an earlier state cannot be computed from a later one."""
        raise UserError("tokens cannot be removed from the state of a linear RNN")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_decoder": None, "_weights": []}  # a copy records its own


def decodable(model: SequenceModel, tokens: Tensor) -> bool:
    """Whether a recorded step can be used: one token per sequence, float32, CPU, no gradients."""
    weight = next(model.parameters())
    return (
        tokens.shape[1] == 1
        and weight.is_cpu
        and weight.dtype is torch.float32
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )
