"""The few different inputs of a layer, and weights that map them to given outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from statetrack.layers import Mixer, MixerConfig
from statetrack.models import SequenceModel
from statetrack.models.sequence_model import Block
from statetrack.tasks import IGNORE, Batch

SOME = 256  # sequences that a layer is listened to on
ROOM = 1e-4  # a smaller singular value, beside the largest one, is none in float32
EXACT = 1e-9  # what is off by less is right
TINY = 1e-6  # what has no larger number is as good as 0
ALIKE = 1e-6  # inputs of a later layer that are so close, beside the largest one, are the same
NO_STEP = -60.0  # softplus of it: a step size that keeps everything and writes nothing


@dataclass(frozen=True)
class Seen:
    """The inputs of a layer in some sequences, up to the last position where something is asked.

    Those of the first layer are the tokens. Those of a later layer depend on the states of the ones
    before it, and are few if these are.
    """

    layer: int
    ids: NDArray[np.int64]  # [n]: the token, or one of the tokens, at which it is seen
    recurring: Tensor  # [n] bool: not only at the start of a sequence, as a BOS is
    counts: Tensor  # [n] float64: how often it has been read, on average over what is asked
    x: Tensor  # [n, D] float64
    tokens: Tensor  # [B, T]: some of the sequences
    place: Tensor  # [B, T]: which of the n stands here, -1 after the last one
    asked: Tensor  # [B, T] bool

    @classmethod
    @torch.no_grad()
    def of(cls, model: SequenceModel, batch: Batch) -> Seen:
        """The tokens of a batch as the first layer of this float64 model sees them."""
        asked = batch.targets != IGNORE
        read = np.flip(np.logical_or.accumulate(np.flip(asked, 1), 1), 1)
        ids = np.unique(batch.tokens[read])
        place = torch.from_numpy(np.where(read, np.searchsorted(ids, batch.tokens), -1))
        x = block_of(model, 0).mixer_input(model._embed(torch.from_numpy(ids)))
        tokens = torch.from_numpy(batch.tokens)
        return cls._placed(0, ids, x, tokens, place, torch.from_numpy(asked))

    @torch.no_grad()
    def above(self, model: SequenceModel) -> Seen:
        """What the next layer sees in this float64 model; no more inputs than D + 1 are told apart.

        Those that are close are one, their mean.
        """
        layer, heard = self.layer + 1, []
        block = block_of(model, layer)
        with block.mixer.register_forward_pre_hook(lambda _, args: heard.append(args[0])):
            model(self.tokens)
        here = self.place >= 0
        inputs = heard[0][here]  # [N, D]
        which = _alike(inputs, model.config.hidden_size + 1)
        first = torch.stack([torch.nonzero(which == i)[0, 0] for i in range(int(which.max()) + 1)])
        place = torch.full_like(self.place, -1).masked_scatter(here, which)
        ids = self.tokens[here][first].numpy()
        made = self._placed(layer, ids, inputs[first], self.tokens, place, self.asked)
        return replace(made, x=made.average(heard[0]))

    @classmethod
    def _placed(
        cls,
        layer: int,
        ids: NDArray[np.int64],
        x: Tensor,
        tokens: Tensor,
        place: Tensor,
        asked: Tensor,
    ) -> Seen:
        recurring = torch.isin(torch.arange(len(ids)), place[:, 1:])
        counts = [(place == i).cumsum(1)[asked].double().mean() for i in range(len(ids))]
        some = tokens[:SOME], place[:SOME], asked[:SOME]
        return cls(layer, ids, recurring, torch.stack(counts), x, *some)

    def mixer(self, model: SequenceModel) -> Mixer:
        """The layer of a model that sees this."""
        return block_of(model, self.layer).mixer

    def average(self, values: Tensor, delay: int = 0) -> Tensor:
        """The means [n, ...] of values [B, T, ...] by input, or by the one so many before it.

        Of an input that has none so many after it: 0.
        """
        here = self.place[:, delay:] >= 0
        values, place = values[:, delay:][here], self.place[:, : here.shape[1]][here]
        sums = values.new_zeros(len(self.ids), *values.shape[1:]).index_add_(0, place, values)
        counts = place.bincount(minlength=len(self.ids)).clamp(min=1)
        return sums / counts.view(-1, *[1] * (sums.ndim - 1))


def _alike(inputs: Tensor, most: int) -> Tensor:
    """[N]: which of at most `most` inputs each of inputs [N, D] is, the first one being 0."""
    room = ALIKE * inputs.norm(dim=1).max()
    nearest = torch.full((len(inputs),), torch.inf).double()
    which = torch.zeros(len(inputs), dtype=torch.int64)
    for i in range(most):
        new = nearest > room
        if not new.any():
            break
        distance = (inputs - inputs[int(new.int().argmax())]).norm(dim=1)
        which = torch.where(distance < nearest, i, which)
        nearest = torch.minimum(distance, nearest)
    return which


def block_of(model: SequenceModel, layer: int) -> Block:
    """One block of a model."""
    block = model.blocks[layer]
    assert isinstance(block, Block)
    return block


def with_mixer(model: SequenceModel, layer: int, config: MixerConfig) -> SequenceModel:
    """A new float64 model with another layer in this place, and no weights of the old one yet."""
    mixers = list(model.config.mixers)
    mixers[layer] = config
    mixer = config if len(set(mixers)) == 1 else tuple(mixers)
    return SequenceModel(replace(model.config, mixer=mixer)).double().eval()


def window(mixer: Mixer) -> int:
    """How many inputs the convolution of a layer looks at; 1 if there is none."""
    conv = getattr(mixer, "conv", None)
    return conv.width if conv else 1


def independent(inputs: Tensor) -> bool:
    """Whether a linear map can send inputs [n, D] to any outputs, with room for float32."""
    return int(torch.linalg.matrix_rank(inputs, rtol=ROOM)) == len(inputs)


class DependentError(Exception):
    """No weights give each input what it should have: what some have decides about others."""


def refit(weight: Tensor, inputs: Tensor, outputs: Tensor, loosely: bool = False) -> Tensor:
    """The matrix [m, D] nearest to `weight` that maps inputs [n, D] to outputs [n, m].

    Without one that leaves room for float32 a DependentError, or `loosely` the one that comes
    nearest to it.
    """
    missing = outputs - inputs @ weight.T
    made = weight + (torch.linalg.pinv(inputs, rtol=ROOM) @ missing).T
    if not loosely and len(inputs):
        off = (inputs @ made.T - outputs).abs().max()
        if off > EXACT * outputs.abs().max().clamp(min=TINY):
            raise DependentError
    return made
