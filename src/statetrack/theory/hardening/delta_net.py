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
from functools import partial
from itertools import product
from typing import NamedTuple

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
NEAR = 1e-4  # how much it counts that the output projection stays as it was
LOUDEST = 0.999  # the size that a head without memory has at most beside that of its norm's output


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
    heard = listen(model, seen)
    said = seen.average(heard.normed)  # [n, H, V]
    tries = product((0.005, 0.02, 0.1), RESTS, (True, False))
    for tau, rest, forget in tries:
        rule = Rule(tau, rest, orders)
        made, parts = [], []
        for i, head in enumerate(heads):
            try:
                exact, error = snap(head, seen.recurring, seen.counts, rule)
                parts.append(Part(f"head {i}", error=error))
            except CannotHardenError as why:
                exact = without_memory(head, said[:, i]) if forget else head
                parts.append(Part(f"head {i}", skipped=str(why), silenced=forget))
            made.append(exact)
        skipped = [part.skipped is not None for part in parts]
        if all(skipped) or (forget and not any(skipped)):
            continue  # nothing is exact, or there is nothing to forget
        slow, any_ = zip(*(inexact(head, seen.recurring) for head in made), strict=True)
        write = partial(write_model, model, seen, heard, made)
        settings = {"tau": tau, "rest": rest, "forget": forget}
        yield Candidate(write(1.0), settings, tuple(parts), (sum(slow), sum(any_)), steadier=write)


@torch.no_grad()
def read_heads(model: SequenceModel, seen: Seen) -> list[Head]:
    """The constants of every head, by token."""
    layer = _layer(model)
    x = seen.x[None]
    _, k, v, _ = layer._project(x, layer.init_state(1).conv, None)
    rows = zip(k[0].unbind(1), v[0].unbind(1), layer.beta(x)[0].unbind(1), strict=True)
    return [Head(*row) for row in rows]


class Heard(NamedTuple):
    """What a layer does with some sequences [B, T] of tokens."""

    normed: Tensor  # [B, T, H, V]: from the heads' norm, before its weight
    mixed: Tensor  # [B, T, H V]: into the output projection
    out: Tensor  # [B, T, D]: from it


@torch.no_grad()
def listen(model: SequenceModel, seen: Seen) -> Heard:
    """Run a model on the sequences that were seen."""
    layer, heard = _layer(model), []
    with (
        layer.norm.register_forward_pre_hook(lambda _, args: heard.append(args[0])),
        layer.o_proj.register_forward_hook(lambda _, args, out: heard.extend((*args, out))),
    ):
        model(seen.tokens)
    o, mixed, out = heard
    return Heard(F.rms_norm(o, o.shape[-1:], eps=layer.config.head_norm_eps), mixed, out)


def without_memory(head: Head, says: Tensor) -> Head:
    """A head in which every token overwrites what the one before it wrote."""
    k = torch.zeros_like(head.k)
    k[:, 0] = 1.0
    return Head(k, torch.zeros_like(head.v), torch.ones_like(head.beta), says)


@torch.no_grad()
def write_model(
    model: SequenceModel, seen: Seen, before: Heard, heads: list[Head], steadier: float
) -> SequenceModel:
    """The model with these heads, whose output projection says what was said before.

    That is by least squares: what one head tells no longer, others may know as well.
    """
    made = write_heads(model, seen, heads, steadier)
    here = seen.place >= 0
    mixed = listen(made, seen).mixed[here]
    weight = _layer(made).o_proj.weight
    gram = mixed.T @ mixed + NEAR * len(mixed) * torch.eye(mixed.shape[1]).double()
    weight += torch.linalg.solve(gram, mixed.T @ (before.out[here] - mixed @ weight.T)).T
    return made


@torch.no_grad()
def write_heads(
    model: SequenceModel, seen: Seen, heads: list[Head], steadier: float = 1.0
) -> SequenceModel:
    """The model whose heads have these constants for the tokens that were seen.

    The epsilon of its head norm is `steadier` times as large, without which the norm magnifies the
    rounding of a state of 0.
    """
    old = _layer(model)
    eps = steadier * old.config.head_norm_eps
    v = torch.cat([_values(head, eps) for head in heads], 1)
    scale = min(1.0, LEAST / float(v.min())) if v.min() < 0 else 1.0
    config = replace(
        old.config,
        beta_stretch=old.config.beta_stretch or STRETCH,
        head_norm_eps=eps * scale**2,
    )
    made = SequenceModel(replace(model.config, mixer=config)).double()
    made.load_state_dict(model.state_dict())
    layer = _layer(made)
    q_rows, k_rows, v_rows = layer.qkv_proj.weight.split(layer.sizes)
    k = torch.cat([head.k for head in heads], 1)
    beta = torch.stack([head.beta for head in heads], 1)
    k_rows.copy_(refit(k_rows, seen.x, LONG * k))
    v_rows.copy_(refit(v_rows, seen.x, inverse_silu(scale * v)))
    for head, rows in zip(heads, q_rows.split(layer.key_size), strict=True):
        if head.says is not None:
            rows.copy_(refit(rows, seen.x, LONG * head.k))  # asks for what was just written
    logits = _logits(beta / layer.beta.top, config.beta_stretch)
    layer.beta.proj.weight.copy_(refit(layer.beta.proj.weight, seen.x, logits))
    return made.eval()


def _values(head: Head, eps: float) -> Tensor:
    """Those of a head; without memory: those for which the norm says what it should."""
    if head.says is None:
        return head.v
    size = head.says.square().mean(-1, keepdim=True).clamp(max=LOUDEST**2)
    return head.says * (head.k.shape[1] * eps / (1 - size)).sqrt()


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
