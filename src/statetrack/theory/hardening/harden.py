"""From a trained model to an exact one, if there is one that is as good."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from types import ModuleType

import torch

from statetrack.config import at_least
from statetrack.errors import UserError
from statetrack.layers import (
    DeltaNetConfig,
    DeltaProductConfig,
    DiagonalRNNConfig,
    GatedDeltaNetConfig,
    GatedDeltaProductConfig,
    GLAConfig,
    MambaConfig,
    MixerConfig,
)
from statetrack.models import SequenceModel
from statetrack.ops import cross_entropy
from statetrack.tasks import IGNORE, Batch
from statetrack.theory.diagnostics.spectrum import Extremes, horizon
from statetrack.theory.hardening import delta_net, diagonal
from statetrack.theory.hardening.heads import ideal
from statetrack.theory.hardening.reflections import SLOW
from statetrack.theory.hardening.report import Candidate, Hardened
from statetrack.theory.hardening.tokens import Seen, independent

SLACK = 0.003  # nats that an exact model may lose and still be as good
STEADIER = (1e4, 1e3, 1e2, 1e1)  # the head norm's epsilon is tried so many times larger
FAMILIES: dict[type[MixerConfig], ModuleType] = {
    DeltaNetConfig: delta_net,
    DeltaProductConfig: delta_net,
    GatedDeltaNetConfig: delta_net,
    GatedDeltaProductConfig: delta_net,
    MambaConfig: diagonal,
    GLAConfig: diagonal,
    DiagonalRNNConfig: diagonal,
}


@torch.no_grad()
def harden(
    model: SequenceModel, validation: Batch, *, orders: Sequence[int] = (1, 2, 3)
) -> Hardened:
    """Make a trained model exact, so that it goes on for ever as it does at the training lengths.

    For one layer of DeltaNet, DeltaProduct, their gated forms, Mamba, GLA or the diagonal RNN,
    without convolution and with `allow_neg_eigval`. Several roundings are tried. Of those that
    are as good on `validation` (no more mistakes, and a cross-entropy at most SLACK greater) the
    one is taken that leaves least inexact. If none is, the model is kept. The result is an ordinary
    model, exact for the tokens of `validation`; what it does with others is arbitrary. The given
    model is not changed.

    Args:
        model: a trained model.
        validation: sequences of the training lengths, as `task.sample` draws them.
        orders: the m such that two reflections may be pi / m apart, where a token has one; 1, 2 and
            3 suit permutations.
    """
    if not orders:
        raise UserError("orders must have at least one m")
    for m in orders:
        at_least("an order", m, 1)
    family = _family(model)
    wide = copy.deepcopy(model).double()  # what is exact is so before its weights are rounded
    dtype = next(model.parameters()).dtype
    seen = Seen.of(wide, validation)
    judge = partial(_judge, batch=validation)
    before, mistakes = judge(model)
    turns = lasting(wide, seen)

    def kept(why: str, after: float, best: Candidate | None = None) -> Hardened:
        parts = best.parts if best else ()
        losses = before, after
        return Hardened(model, wide, False, why, losses, (turns, turns), {}, parts, None, seen)

    def rounded(exact: SequenceModel) -> SequenceModel:
        return copy.deepcopy(exact).to(dtype)

    def is_good(loss: float, wrong: int) -> bool:
        return loss <= before + SLACK and wrong <= mistakes

    if not independent(seen.x):
        return kept(f"the embeddings of its {len(seen.ids)} tokens are not independent", before)
    every = family.candidates(wide, seen, orders)
    tried = [(*judge(rounded(c.model)), c) for c in every]
    if not tried:
        return kept("no part of it comes near enough to an exact one", before)
    good = [t for t in tried if is_good(*t[:2])]
    if not good:
        after, _, best = min(tried, key=lambda t: t[0])
        return kept("every exact model tried is worse at the training lengths", after, best)
    after, _, best = min(good, key=lambda t: (t[2].inexact, t[0]))
    exact, settings = best.model, best.settings
    for factor in STEADIER if best.steadier else ():
        steady = best.steadier(factor)
        raised, wrong = judge(rounded(steady))
        if is_good(raised, wrong):
            exact, after, settings = steady, raised, {**settings, "eps": factor}
            break
    made = rounded(exact)
    if family is delta_net:
        exact = ideal(exact, seen)
    why = f"as good as it was, with {_text(settings)}"
    horizons = turns, lasting(copy.deepcopy(made).double(), seen)
    return Hardened(
        made,
        exact,
        True,
        why,
        (before, after),
        horizons,
        settings,
        best.parts,
        best.inexact[0],
        seen,
    )


def _family(model: SequenceModel) -> ModuleType:
    """The module that hardens this kind of model, or a UserError that says why none does."""
    if model.config.num_layers != 1:
        raise UserError(
            f"harden takes models of one layer, whose input is the token alone; got "
            f"{model.config.num_layers} layers"
        )
    (config,) = model.config.mixers
    family = FAMILIES.get(type(config))
    if family is None:
        known = ", ".join(c.label for c in FAMILIES)
        raise UserError(f"harden knows {known}; got {config.label}")
    why = family.refusal(config)
    if why is not None:
        raise UserError(f"{config.title} cannot be hardened: {why}")
    return family


def _judge(model: SequenceModel, batch: Batch) -> tuple[float, int]:
    """The mean cross-entropy of a batch, and how many answers are wrong."""
    logits, _ = model(torch.from_numpy(batch.tokens))
    targets = torch.from_numpy(batch.targets).flatten()
    logits, asked = logits.flatten(0, 1), targets != IGNORE
    wrong = (logits.argmax(-1) != targets)[asked].sum()
    return float(cross_entropy(logits, targets, ignore_index=IGNORE)), int(wrong)


def lasting(model: SequenceModel, seen: Seen) -> float | None:
    """How many tokens the eigenvalues that turn, and hardly fade, last in fp32; the worst token."""
    (transition,) = model.transitions(torch.from_numpy(seen.ids)[seen.recurring][None])
    assert transition is not None
    values = transition.eigvals()[0].numpy()  # [n, ...]
    moduli = [Extremes.of(v, tolerance=1e-4).turning_modulus for v in values]
    turning = [modulus for modulus in moduli if modulus is not None and modulus > SLOW]
    return horizon(min(turning), "fp32") if turning else None


def _text(settings: dict[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.items())
