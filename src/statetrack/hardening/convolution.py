"""A layer that looks at one token, in place of one whose convolution looks at several.

With a convolution a token's key, value or step size hangs on the tokens before it. A model that has
learned to track a state needs the same effect of a token wherever it stands, so that it has learned
to make little of them, or to make them cancel. Then every token may as well have its mean. In Mamba
all of the recurrence hangs on the convolution, which may have learned to look at a token before the
current one: the state is then late by as many tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from statetrack.hardening.heads import before_norm, inverse_silu
from statetrack.hardening.outputs import said, say
from statetrack.hardening.tokens import Seen, refit, with_mixer
from statetrack.layers import GLA, DeltaNet, Mamba
from statetrack.models import SequenceModel


@torch.no_grad()
def one_token(model: SequenceModel, seen: Seen) -> Iterator[SequenceModel]:
    """Float64 models like this one in which a token has the mean of what came out of it.

    They have no convolution, or one that hands on a token before the current one. Each is given as
    it is and with an output projection that makes up for what it can: neither is always better.
    """
    old = seen.mixer(model)
    assert isinstance(old, DeltaNet | GLA | Mamba)
    assert old.conv is not None
    heard: list[Tensor] = []
    with old.conv.register_forward_hook(lambda _, args, out: heard.extend(out[0])):
        before = said(model, seen)
    for delay in range(old.conv.width if isinstance(old, Mamba) else 1):
        made = _with_means(model, seen, [seen.average(part, delay) for part in heard], delay)
        yield made
        moved = copy.deepcopy(made)
        say(moved, seen, before)
        yield moved


@torch.no_grad()
def without_convolution(model: SequenceModel, seen: Seen, delay: int = 0) -> SequenceModel:
    """The same whose layer has no convolution, or a new one that looks so far back."""
    config: Any = replace(seen.mixer(model).config, conv_size=delay and delay + 1)  # type: ignore[call-arg]
    made = with_mixer(model, seen.layer, config)
    old = f"blocks.{seen.layer}.mixer.conv."
    weights = {name: w for name, w in model.state_dict().items() if not name.startswith(old)}
    made.load_state_dict({**made.state_dict(), **weights})
    return made


def _with_means(model: SequenceModel, seen: Seen, means: list[Tensor], delay: int) -> SequenceModel:
    """The model whose tokens have these means [n, channels] of q, k and v, or of Mamba's u."""
    made = without_convolution(model, seen, delay)
    layer = seen.mixer(made)
    if isinstance(layer, Mamba):
        rows = layer.in_proj.weight[: layer.channels]
        wanted = [inverse_silu(part) for part in means]
        if layer.conv:  # hands on the first of its inputs
            for p in layer.conv.parameters():
                p.zero_()
            layer.conv.weight[:, 0] = 1.0
    else:
        assert isinstance(layer, DeltaNet | GLA)
        rows = layer.qkv_proj.weight
        wanted = _before_heads(layer, *means) if isinstance(layer, DeltaNet) else means
    rows.copy_(refit(rows, seen.x, torch.cat(wanted, -1), loosely=True))
    return made


def _before_heads(layer: DeltaNet, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """What gives the heads these q, k and v, [n, channels], without convolution."""
    units = (F.normalize(part.unflatten(-1, (-1, layer.key_size)), dim=-1) for part in (q, k))
    return [*(before_norm(unit, layer.qk_silu)[0].flatten(1) for unit in units), inverse_silu(v)]
