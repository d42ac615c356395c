"""Widen a model that has more tokens than dimensions, so that weights can set each token's effect.

The embedding gets entries that make the tokens linearly independent, so small that they do not
change any norm; the first mixer's norm enlarges them, and all other new weights are 0.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from statetrack.hardening.inputs import LayerInputs, block_of
from statetrack.layers.common import RMSNorm
from statetrack.layers.inverse import DependentError, pad_weights
from statetrack.models import SequenceModel
from statetrack.models.block import GatedMLP

WEAK = 0.02  # singular values of the inputs below this share of the largest are replaced
NEW_ENTRIES = 1e-3  # length of the new entries of an embedding / length of the old ones


@torch.no_grad()
def widen(model: SequenceModel, inputs: LayerInputs) -> tuple[SequenceModel, LayerInputs]:
    """Return a model with the same answers and independent inputs of its first layer.

    Raises:
        DependentError: the model's norms, embedding, layers or experts cannot be widened.
    """
    config = model.config
    if config.norm == "layer" or config.norm_after or config.head == "none" or config.experts:
        raise DependentError
    directions, sizes, _ = torch.linalg.svd(inputs.x)  # [n, n]
    strong = int((sizes > WEAK * sizes[0]).sum())
    new = directions[:, strong:]  # [n, E]
    old_width, width = config.hidden_size, config.hidden_size + new.shape[1]
    mixers = tuple(block.mixer.widened(width) for block in model.stack())
    same = len({mixer.config for mixer in mixers}) == 1
    share = old_width / width  # by which the mean square of an embedding falls
    wide = replace(
        config,
        hidden_size=width,
        mixer=mixers[0].config if same else tuple(mixer.config for mixer in mixers),
        norm_eps=config.norm_eps * share,
        mlp_size=_mlp_size(model),
        tie_embeddings=False,
    )
    made = SequenceModel(wide).eval()
    pad_weights(made, model)
    for module in made.modules():
        if isinstance(module, RMSNorm) and len(module.weight) == width:
            module.weight.mul_(math.sqrt(share))
    ids, size = torch.from_numpy(inputs.token_ids), sizes[:strong].median()
    lengths = made.embedding.weight[ids].norm(dim=1, keepdim=True)
    norm = block_of(made, 0).mixer_norm
    if isinstance(norm, RMSNorm):
        made.embedding.weight[ids, old_width:] = NEW_ENTRIES * lengths * new
        norm.weight[old_width:] = size / (NEW_ENTRIES * math.sqrt(width))
    else:
        made.embedding.weight[ids, old_width:] = size * new
    x = block_of(made, 0).mixer_input(made.embed(ids))
    return made, replace(inputs, x=x)


def _mlp_size(model: SequenceModel) -> int | None:
    mlps = [block.mlp for block in model.stack()]
    sizes = [mlp.down.in_features for mlp in mlps if isinstance(mlp, GatedMLP)]
    return sizes[0] if sizes else None
