"""From a trained model to an exact one, if there is one that is as good."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch

from statetrack.config import at_least
from statetrack.diagnosis.spectrum import horizon, turning
from statetrack.errors import UserError, check_type
from statetrack.hardening import delta_net, diagonal
from statetrack.hardening.judge import Judge
from statetrack.hardening.reflections import SLOW
from statetrack.hardening.report import Hardened, Horizon
from statetrack.hardening.search import NoneIsGoodError, Search, Way
from statetrack.hardening.tokens import Seen
from statetrack.layers import (
    DeltaNetConfig,
    DeltaProductConfig,
    Diagonal,
    DiagonalRNNConfig,
    GatedDeltaNetConfig,
    GatedDeltaProductConfig,
    GLAConfig,
    MambaConfig,
    MixerConfig,
)
from statetrack.models import SequenceModel, check_finite
from statetrack.tasks import Batch

WATCHED = 64  # sequences whose eigenvalues are looked at
FAMILIES: dict[type[MixerConfig], ModuleType] = {
    DeltaNetConfig: delta_net,
    DeltaProductConfig: delta_net,
    GatedDeltaNetConfig: delta_net,
    GatedDeltaProductConfig: delta_net,
    MambaConfig: diagonal,
    GLAConfig: diagonal,
    DiagonalRNNConfig: diagonal,
}


def check_orders(orders: Sequence[int]) -> None:
    """Raise unless these are orders that `harden` takes."""
    check_type("orders", orders, (tuple, list), "a list of whole numbers")
    if not orders:
        raise UserError("orders must have at least one m")
    for m in orders:
        check_type("an order", m, int, "a whole number")
        at_least("an order", m, 1)


@torch.no_grad()
def harden(
    model: SequenceModel, validation: Batch, *, orders: Sequence[int] = (1, 2, 3)
) -> Hardened:
    """Make a trained model exact, so that it goes on for ever as it does at the training lengths.

    For layers of DeltaNet, DeltaProduct, their gated forms, Mamba, GLA or the diagonal RNN, with
    `allow_neg_eigval`, one after the other. A convolution is first replaced by one that looks at
    one token, or by none. Several roundings are tried. Of those that are as good on `validation`
    (no more mistakes, and a cross-entropy at most SLACK greater) the one is taken that leaves least
    inexact. If none is, the model is kept. The result is an ordinary model, exact for the tokens of
    `validation`; what it does with others is arbitrary. The given model is not changed.

    Args:
        model: a trained model.
        validation: sequences of the training lengths, as `task.sample` draws them.
        orders: the m such that two reflections may be pi / m apart, where a token has one; 1, 2 and
            3 suit permutations.
    """
    check_orders(orders)
    if not isinstance(model, SequenceModel) or not isinstance(validation, Batch):
        got = f"{type(model).__name__} and {type(validation).__name__}"
        raise UserError(f"harden takes a SequenceModel and a Batch of sequences; got {got}")
    check_finite(model)
    families = families_of(model)
    wide = copy.deepcopy(model).double()  # what is exact is so before its weights are rounded
    seen = Seen.of(wide, validation)
    turns = lasting(model, seen)
    judge = Judge(model, validation)
    search = Search(judge, families, orders)
    try:
        way = search.finish(Way(wide, judge.before), seen)
    except NoneIsGoodError as no:
        return Hardened(
            model,
            wide,
            changed=False,
            why=str(no),
            loss=(judge.before, no.loss if math.isfinite(no.loss) else judge.before),
            mistakes=(judge.mistakes, judge.asked),
            horizon=(turns, turns),
            settings=(),
            parts=no.parts,
            idle=(),
            slow=None,
            seen=seen,
        )
    made = judge.rounded(way.model)
    return Hardened(
        made,
        search.ideal(way),
        changed=True,
        why=f"as good as it was, with {_text(way.settings)}",
        loss=(judge.before, way.loss),
        mistakes=(judge.mistakes, judge.asked),
        horizon=(turns, lasting(made, seen)),
        settings=way.settings,
        parts=way.parts,
        idle=tuple(layer for layer, idle in enumerate(way.idle) if idle),
        slow=way.slow,
        seen=seen,
    )


def families_of(model: SequenceModel) -> list[ModuleType]:
    """By layer the module that hardens its kind, or a UserError that says why none does."""
    families = []
    for config in model.config.mixers:
        family = FAMILIES.get(type(config))
        if family is None:
            known = ", ".join(c.label for c in FAMILIES)
            raise UserError(f"harden knows {known}; got {config.label}")
        why = family.refusal(config)
        if why is not None:
            raise UserError(f"{config.title} cannot be hardened: {why}")
        families.append(family)
    return families


def lasting(model: SequenceModel, seen: Seen) -> Horizon | None:
    """How many tokens what turns, and hardly fades, lasts in fp32: of the worst part and the best.

    A part, a head or a channel, lasts as long as with the token that wears it out most: one that
    lets it grow, if only by rounding, is as bad as one that lets it fade.
    """
    here = seen.place[:WATCHED] >= 0
    here &= seen.recurring[seen.place[:WATCHED]]
    worst: list[float] = []
    for transition in model.transitions(seen.tokens[:WATCHED]):
        assert transition is not None
        values = transition.eigvals()[here].numpy()  # [N, ..., eigenvalues]
        if isinstance(transition, Diagonal):
            values = values[..., None]
        moduli = np.where(turning(values, 1e-4), np.abs(values), 0.0).max(-1)
        moduli = 1 - np.abs(1 - moduli)
        least = np.where(moduli > SLOW, moduli, np.inf).min(0)  # by part
        worst += least[least < np.inf].tolist()
    return Horizon(*(horizon(end(worst), "fp32") for end in (min, max))) if worst else None


def _text(settings: Sequence[dict[str, Any]]) -> str:
    layers = [", ".join(f"{key} {value}" for key, value in s.items()) for s in settings]
    if len(layers) == 1:
        return layers[0]
    return "; ".join(f"layer {i}: {text}" for i, text in enumerate(layers))
