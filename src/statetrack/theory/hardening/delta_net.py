"""Hardening DeltaNet: an ordinary DeltaNet again, with other weights.

What a token does in a layer without convolution is a function of the layer's input for it, one of
a few vectors. So there are weights that give each token any key at all; any beta from 0 to 2, its
ends included, since a stretched beta reaches them; and any value above the least one of SiLU. As
the norm on a head's output does not care for its scale, all values may be made smaller until they
are above it, the norm's epsilon with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from statetrack.layers import DeltaNet
from statetrack.layers.delta_net import DeltaNetConfig
from statetrack.models import SequenceModel
from statetrack.theory.hardening.reflections import (
    RESTS,
    CannotHardenError,
    Head,
    Rule,
    inexact,
    snap,
)
from statetrack.theory.hardening.report import Candidate, Part
from statetrack.theory.hardening.tokens import Seen, refit

LEAST = -0.25  # a value that SiLU takes with room to spare: its least is -0.278
LONG = 1e4  # of a key before it is normalised, so that the normalisation's epsilon is nothing
STRETCH = 0.1  # where the trained layer had none


def refusal(config: DeltaNetConfig) -> str | None:
    """Why such a layer cannot be hardened, if it cannot."""
    if not config.allow_neg_eigval:
        return "its eigenvalues lie in [0, 1], so that no token reflects"
    if config.conv_size:
        return "its keys depend on the convolution's window, not on the token alone"
    if config.num_v_heads not in (None, config.num_heads):
        return "its heads share keys"
    return None


def candidates(model: SequenceModel, seen: Seen, orders: Sequence[int]) -> Iterator[Candidate]:
    """Every way of rounding that is tried."""
    heads = read_heads(model, seen)
    tries = product((0.005, 0.02, 0.1), RESTS, (True, False))
    for tau, rest, silence in tries:
        rule = Rule(tau, rest, orders)
        made, parts = [], []
        for i, head in enumerate(heads):
            try:
                exact, error = snap(head, seen.recurring, seen.counts, rule)
                parts.append(Part(f"head {i}", error=error))
            except CannotHardenError as why:
                exact = replace(head, beta=torch.zeros_like(head.beta)) if silence else head
                parts.append(Part(f"head {i}", skipped=str(why), silenced=silence))
            made.append(exact)
        skipped = [part.skipped is not None for part in parts]
        if all(skipped) or (silence and not any(skipped)):
            continue  # nothing is exact, or the same without silence
        slow, any_ = zip(*(inexact(head, seen.recurring) for head in made), strict=True)
        settings = {"tau": tau, "rest": rest, "silence": silence}
        yield Candidate(
            write_heads(model, seen, made), settings, tuple(parts), (sum(slow), sum(any_))
        )


def read_heads(model: SequenceModel, seen: Seen) -> list[Head]:
    """The constants of every head, by token."""
    layer = _layer(model)
    x = seen.x.to(layer.o_proj.weight.dtype)[None]
    with torch.no_grad():
        _, k, v, _ = layer._project(x, layer.init_state(1).conv, None)
        beta = layer.beta(x)
    rows = zip(k[0].unbind(1), v[0].unbind(1), beta[0].unbind(1), strict=True)
    return [Head(*(part.double() for part in row)) for row in rows]


@torch.no_grad()
def write_heads(model: SequenceModel, seen: Seen, heads: list[Head]) -> SequenceModel:
    """The model whose heads have these constants for the tokens that were seen."""
    old = _layer(model)
    v = torch.cat([head.v for head in heads], 1)
    scale = min(1.0, LEAST / float(v.min())) if v.min() < 0 else 1.0
    config = replace(
        old.config,
        beta_stretch=old.config.beta_stretch or STRETCH,
        output_norm_eps=old.config.output_norm_eps * scale**2,
    )
    made = SequenceModel(replace(model.config, mixer=config))
    made.load_state_dict(model.state_dict())
    layer = _layer(made)
    _, k_rows, v_rows = layer.qkv_proj.weight.split(layer.sizes)
    k = torch.cat([head.k for head in heads], 1)
    beta = torch.stack([head.beta for head in heads], 1)
    k_rows.copy_(refit(k_rows, seen.x, LONG * k))
    v_rows.copy_(refit(v_rows, seen.x, inverse_silu(scale * v)))
    logits = _logits(beta / layer.beta.top, config.beta_stretch)
    layer.beta.proj.weight.copy_(refit(layer.beta.proj.weight, seen.x, logits))
    return made.eval()


@torch.no_grad()
def steadied(model: SequenceModel, factor: float) -> SequenceModel:
    """With a larger epsilon in the head norm, which else magnifies the rounding of a state of 0."""
    config = _layer(model).config
    config = replace(config, output_norm_eps=factor * config.output_norm_eps)
    made = SequenceModel(replace(model.config, mixer=config))
    made.load_state_dict(model.state_dict())
    return made.eval()


def _layer(model: SequenceModel) -> DeltaNet:
    layer = model.blocks[0].mixer
    assert isinstance(layer, DeltaNet)
    return layer


def _logits(share: Tensor, stretch: float) -> Tensor:
    """Those of the stretched sigmoid; half the stretch beyond its ends, which clipping undoes."""
    inside = share.clone()
    inside[share == 0] = -stretch / 2
    inside[share == 1] = 1 + stretch / 2
    s = (inside + stretch) / (1 + 2 * stretch)
    return torch.log(s) - torch.log1p(-s)


def inverse_silu(y: Tensor) -> Tensor:
    """x with SiLU(x) = y on its increasing branch, by bisection; y >= LEAST."""
    low, high = torch.full_like(y, -1.278), y.clamp(min=0) + 2.0
    for _ in range(100):
        middle = (low + high) / 2
        below = F.silu(middle) < y
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2
