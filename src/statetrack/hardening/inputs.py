"""The distinct inputs of a layer, and models in which this layer is replaced or refitted."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from statetrack.layers import Mixer
from statetrack.models import SequenceModel
from statetrack.models.block import Block
from statetrack.tasks import IGNORE, Batch

RECORDED_SEQUENCES = 256  # on which a layer's inputs and outputs are recorded
INPUT_TOLERANCE = 1e-6  # relative distance below which inputs of a later layer count as one
RIDGE = 1e-4  # penalty on the change of the output projection in its refit


@dataclass(frozen=True)
class LayerInputs:
    """The n distinct inputs of a layer in some sequences, up to their last scored positions.

    The first layer has one input for each token. A later layer has one for each token in each state
    of the layers before it; these are few if those layers are exact.
    """

    layer: int
    token_ids: NDArray[np.int64]  # [n]: a token at which the input occurs
    recurring: Tensor  # [n] bool: occurs after the first position; False for a BOS
    counts: Tensor  # [n] float64: how often it was read up to a scored position, on average
    x: Tensor  # [n, D] float64
    tokens: Tensor  # [B, T]: some of the sequences
    index: Tensor  # [B, T]: which of the n inputs occurs here; -1 after the last scored position
    targets: Tensor  # [B, T]: the answers, or IGNORE

    @classmethod
    @torch.no_grad()
    def of_tokens(cls, model: SequenceModel, batch: Batch) -> LayerInputs:
        """Return the inputs of the first layer of a float64 model in the sequences of a batch."""
        scored = batch.targets != IGNORE
        read = np.flip(np.logical_or.accumulate(np.flip(scored, 1), 1), 1)
        ids = np.unique(batch.tokens[read])
        index = torch.from_numpy(np.where(read, np.searchsorted(ids, batch.tokens), -1))
        x = block_of(model, 0).mixer_input(model.embed(torch.from_numpy(ids)))
        tokens = torch.from_numpy(batch.tokens)
        return cls._counted(0, ids, x, tokens, index, torch.from_numpy(batch.targets))

    @torch.no_grad()
    def next_layer(self, model: SequenceModel) -> LayerInputs:
        """Return the inputs of the next layer of a float64 model, at most D + 1 of them.

        Inputs that are close together are replaced by their mean and count as one.
        """
        layer, recorded = self.layer + 1, []
        mixer = block_of(model, layer).mixer
        with mixer.register_forward_pre_hook(lambda _, args: recorded.append(args[0])):
            model(self.tokens)
        here = self.index >= 0
        inputs = recorded[0][here]  # [N, D]
        which = _cluster(inputs, model.config.hidden_size + 1)
        first = torch.stack([torch.nonzero(which == i)[0, 0] for i in range(int(which.max()) + 1)])
        index = torch.full_like(self.index, -1).masked_scatter(here, which)
        ids = self.tokens[here][first].numpy()
        made = self._counted(layer, ids, inputs[first], self.tokens, index, self.targets)
        return replace(made, x=made.mean_by_input(recorded[0]))

    @classmethod
    def _counted(
        cls,
        layer: int,
        token_ids: NDArray[np.int64],
        x: Tensor,
        tokens: Tensor,
        index: Tensor,
        targets: Tensor,
    ) -> LayerInputs:
        recurring = torch.isin(torch.arange(len(x)), index[:, 1:])
        counts = [(index == i).cumsum(1)[targets != IGNORE].double().mean() for i in range(len(x))]
        some = (part[:RECORDED_SEQUENCES] for part in (tokens, index, targets))
        return cls(layer, token_ids, recurring, torch.stack(counts), x, *some)

    def mixer(self, model: SequenceModel) -> Mixer:
        """Return the layer of a model that has these inputs."""
        return block_of(model, self.layer).mixer

    def mean_by_input(self, values: Tensor, delay: int = 0) -> Tensor:
        """Return the means [n, ...] of values [B, T, ...], by the input `delay` positions earlier.

        The mean of an input that no value belongs to is 0.
        """
        here = self.index[:, delay:] >= 0
        values, index = values[:, delay:][here], self.index[:, : here.shape[1]][here]
        sums = values.new_zeros(len(self.x), *values.shape[1:]).index_add_(0, index, values)
        counts = index.bincount(minlength=len(self.x)).clamp(min=1)
        return sums / counts.view(-1, *[1] * (sums.ndim - 1))

    def replace_mixer(self, model: SequenceModel, mixer: Mixer) -> SequenceModel:
        """Return a model with another layer in this place; the given model is not changed."""
        made = copy.deepcopy(model).eval()
        block_of(made, self.layer).mixer = mixer.eval()
        mixers = list(model.config.mixers)
        mixers[self.layer] = mixer.config
        same = len(set(mixers)) == 1
        made.config = replace(model.config, mixer=mixer.config if same else tuple(mixers))
        return made

    @torch.no_grad()
    def run(self, model: SequenceModel) -> tuple[Tensor, Tensor]:
        """Return the layer's input and output on the sequences, [B, T, D] each."""
        recorded: list[Tensor] = []
        with self.mixer(model).register_forward_hook(
            lambda _, args, out: recorded.extend((args[0], out[0]))
        ):
            model(self.tokens)
        x, y = recorded
        return x, y

    @torch.no_grad()
    def with_output(self, model: SequenceModel, wanted: Tensor) -> SequenceModel:
        """Return a model whose output projection is refitted to a wanted output [B, T, D].

        The refit is a ridge regression on the recorded sequences; other heads may provide what one
        head has lost. A layer without an output projection stays as it is.
        """
        made = copy.deepcopy(model)
        projection, recorded = self.mixer(made).output_projection, []
        if projection is None:
            return made
        with projection.register_forward_pre_hook(lambda _, args: recorded.append(args[0])):
            made(self.tokens)
        here = self.index >= 0
        read, weight = recorded[0][here], projection.weight  # [N, H V], [D, H V]
        gram = read.T @ read + RIDGE * len(read) * torch.eye(read.shape[1]).double()
        weight += torch.linalg.solve(gram, read.T @ (wanted[here] - read @ weight.T)).T
        return made


def _cluster(inputs: Tensor, limit: int) -> Tensor:
    """Return the cluster of each input [N, D], as numbers [N] from 0 to at most `limit` - 1.

    Clustering is greedy: the first input that is near no center becomes the next center.
    """
    tolerance = INPUT_TOLERANCE * inputs.norm(dim=1).max()
    nearest = torch.full((len(inputs),), torch.inf).double()
    which = torch.zeros(len(inputs), dtype=torch.int64)
    for i in range(limit):
        new = nearest > tolerance
        if not new.any():
            break
        distance = (inputs - inputs[int(new.int().argmax())]).norm(dim=1)
        which = torch.where(distance < nearest, i, which)
        nearest = torch.minimum(distance, nearest)
    return which


def block_of(model: SequenceModel, layer: int) -> Block:
    """Return one block of a model."""
    block = model.blocks[layer]
    assert isinstance(block, Block)
    return block
