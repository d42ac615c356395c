"""The heads of DeltaNet and its kin: their constants out of a model, and others into one.

What a token does in a layer without convolution is a function of the layer's input for it, one of
a few vectors. So there are weights that give each token any key at all; any beta from 0 to 2, its
ends included, since a stretched beta reaches them; and any value above the least one of SiLU. As
the norm on a head's output does not care for its scale, all values may be made smaller until they
are above it, the norm's epsilon with them.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from statetrack.hardening.outputs import said, say
from statetrack.hardening.reflections import Head
from statetrack.hardening.tokens import (
    EXACT,
    NO_STEP,
    DependentError,
    Seen,
    independent,
    refit,
    with_mixer,
)
from statetrack.layers import DeltaNet, GatedDeltaNet
from statetrack.models import SequenceModel
from statetrack.ops.l2_norm import l2_normalize

LEAST = -0.25  # a value that SiLU takes with room to spare: its least is -0.278
LONG = 1e4  # of a key before it is normalised, so that the normalisation's epsilon is nothing
STRETCH = 0.1  # where the trained layer had none
ROUNDING = 1e-12  # of a key's numbers
LOUDEST = 0.999  # the size that a head without memory has at most beside that of its norm's output


@torch.no_grad()
def read_heads(model: SequenceModel, seen: Seen) -> list[Head]:
    """The constants of every head, by token and factor."""
    layer = layer_of(model, seen)
    x = seen.x[None]
    inputs = layer.op_inputs(x)
    k, v, beta = inputs.k[0], inputs.v[0], inputs.beta[0]
    gates = None if inputs.gate is None else inputs.gate.values()[0]
    return [
        Head(k[:, i], v[:, i], beta[:, i], None if gates is None else gates[:, i])
        for i in range(layer.num_v_heads)
    ]


class Heard(NamedTuple):
    """What a layer does with some sequences [B, T] of tokens."""

    normed: Tensor  # [B, T, H, V]: from the heads' norm, before its weight
    out: Tensor  # [B, T, D]: from the layer


@torch.no_grad()
def listen(model: SequenceModel, seen: Seen) -> Heard:
    """Run a model on the sequences that were seen."""
    layer, heard = layer_of(model, seen), []
    with layer.norm.register_forward_pre_hook(lambda _, args: heard.append(args[0])):
        out = said(model, seen)
    (o,) = heard
    return Heard(F.rms_norm(o, o.shape[-1:], eps=layer.config.output_norm_eps), out)


def without_memory(head: Head, says: Tensor) -> Head:
    """A head in which every token overwrites what the one before it wrote, with its last factor."""
    k, beta = torch.zeros_like(head.k), torch.zeros_like(head.beta)
    k[:, 0] = 1.0
    beta[len(beta) // len(says) - 1 :: len(beta) // len(says)] = 1.0
    return Head(k, torch.zeros_like(head.v), beta, says=says)


@torch.no_grad()
def write_model(
    model: SequenceModel, seen: Seen, before: Heard, heads: list[Head], steadier: float
) -> SequenceModel:
    """The model with these heads, whose output projection says what was said before."""
    made = write_heads(model, seen, heads, steadier)
    say(made, seen, before.out)
    return made


@torch.no_grad()
def write_heads(
    model: SequenceModel, seen: Seen, heads: list[Head], steadier: float = 1.0
) -> SequenceModel:
    """The model whose heads have these constants for the tokens that were seen.

    The epsilon of its head norm is `steadier` times as large, without which the norm magnifies the
    rounding of a state of 0.
    """
    old = layer_of(model, seen)
    if old.qk_silu and not independent(seen.x):  # the ideal one needs queries for all of them
        raise DependentError
    eps = steadier * old.config.output_norm_eps
    v = torch.stack([_values(head, eps) for head in heads], 1)  # [n factors, H, V]
    scale = min(1.0, LEAST / float(v.min())) if v.min() < 0 else 1.0
    config = replace(
        old.config,
        beta_stretch=old.config.beta_stretch or STRETCH,
        output_norm_eps=eps * scale**2,
    )
    made = with_mixer(model, seen.layer, config)
    made.load_state_dict(model.state_dict())
    layer = layer_of(made, seen)
    q_rows, k_rows, v_rows = layer.qkv_proj.weight.split(layer.sizes)
    keys = [head.k for head in heads]
    if not layer.qk_silu:  # which has other effects along other axes
        for i, rows in enumerate(q_rows.split(layer.key_size)):
            keys[i], turn = _along_axes(heads[i])
            rows.copy_(turn.T @ rows)
    k, length = before_norm(torch.stack(keys, 1), layer.qk_silu)
    beta = torch.stack([head.beta for head in heads], 1)
    n = len(seen.ids)
    matters = (beta > 0).view(n, -1).T  # [factors H, n]: what it would write, and where
    for rows, wanted in ((k_rows, k), (v_rows, inverse_silu(scale * length * v))):
        parts = wanted.view(n, len(matters), -1).unbind(1)
        for here, part, some in zip(matters, parts, rows.chunk(len(matters)), strict=True):
            some[~part[here].any(0)] = 0.0  # so that what should be 0 is
            some.copy_(refit(some, seen.x[here], part[here]))
    for i, rows in enumerate(q_rows.split(layer.key_size)):
        if heads[i].says is not None:  # asks for what was just written
            rows.copy_(refit(rows, seen.x, k[:: layer.config.factors, i]))
    logits = _logits(beta.view(n, -1) / layer.beta.top, config.beta_stretch)
    layer.beta.proj.weight.copy_(refit(layer.beta.proj.weight, seen.x, logits, loosely=True))
    if (layer.beta(seen.x[None])[0] - beta.view(n, -1)).abs().max() > EXACT:
        raise DependentError
    if isinstance(layer, GatedDeltaNet):
        for i, row in enumerate(layer.a_proj.weight):
            if heads[i].gate is None:  # none any more: it is 1
                row.zero_()
                layer.dt_bias[i] = NO_STEP
    return made


def _along_axes(head: Head) -> tuple[Tensor, Tensor]:
    """The keys of a head turned so that its first reflection is along an axis, and the turn [K, K].

    The next one lies in the plane of the first two, and so on. Along an axis a reflection has no
    rounding: a head that flips between two states does so for ever, in float32 as well.
    """
    turn, _ = torch.linalg.qr(head.k[head.beta == 2].T, mode="complete")
    keys = head.k @ turn
    return torch.where(keys.abs() < ROUNDING, 0.0, keys), turn


@torch.no_grad()
def ideal(model: SequenceModel, seen: Seen) -> SequenceModel:
    """The model with keys of length 1: see `before_norm`. It has no SiLU on q and k."""
    if not layer_of(model, seen).qk_silu:
        return model
    made = copy.deepcopy(model)
    layer = layer_of(made, seen)
    _, k, v, *_ = layer.op_inputs(seen.x[None])
    length, n = k[0].norm(dim=-1, keepdim=True), len(seen.ids)
    length = torch.where(length > 0.5, length, 1.0)  # others are not written along, and may be 0
    layer.qk_silu = False  # type: ignore[misc]  # of this one alone
    q_rows, k_rows, v_rows = layer.qkv_proj.weight.split(layer.sizes)
    q_rows.copy_(refit(q_rows, seen.x, F.silu(seen.x @ q_rows.T)))
    k_rows.copy_(refit(k_rows, seen.x, (LONG * k[0] / length).reshape(n, -1)))
    v_rows.copy_(refit(v_rows, seen.x, inverse_silu(v[0] / length).reshape(n, -1)))
    return made


def _values(head: Head, eps: float) -> Tensor:
    """Those of a head; without memory: those for which the norm says what it should."""
    if head.says is None:
        return head.v
    says = head.says.repeat_interleave(len(head.beta) // len(head.says), 0)
    size = says.square().mean(-1, keepdim=True).clamp(max=LOUDEST**2)
    return says * (head.k.shape[1] * eps / (1 - size)).sqrt()


def before_norm(k: Tensor, silu: bool) -> tuple[Tensor, Tensor]:
    """What gives keys k [..., K] when it is normalised, SiLU before if there is one; their length.

    After SiLU no number is below -0.278, so that such keys stay short beside the normalisation's
    epsilon and become a little shorter than 1: a reflection has an eigenvalue around -1 + 1e-6.
    """
    if not silu:
        return LONG * k, torch.ones_like(k[..., :1])
    lowest = k.amin(-1, keepdim=True).clamp(max=LEAST / LONG)
    made = k * (LEAST / lowest)
    return inverse_silu(made), l2_normalize(made).norm(dim=-1, keepdim=True)


def layer_of(model: SequenceModel, seen: Seen) -> DeltaNet:
    """The layer that sees this."""
    layer = seen.mixer(model)
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
    return torch.where(y == 0, 0.0, (low + high) / 2)
