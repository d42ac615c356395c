"""From a trained model to an exact one, if there is one that is as good."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import torch

from statetrack.config import at_least
from statetrack.errors import UserError
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
from statetrack.models import SequenceModel
from statetrack.ops import cross_entropy
from statetrack.tasks import IGNORE, Batch
from statetrack.theory.diagnostics.spectrum import Extremes, horizon
from statetrack.theory.hardening import delta_net, diagonal
from statetrack.theory.hardening.convolution import one_token
from statetrack.theory.hardening.reflections import SLOW
from statetrack.theory.hardening.report import Candidate, Hardened, Horizon, Part
from statetrack.theory.hardening.tokens import Seen, independent, window

SLACK = 0.003  # nats that an exact model may lose and still be as good
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
    with `allow_neg_eigval`. A convolution is first replaced by one that looks at one token, or by
    none. Several roundings are tried. Of those that are as good on `validation` (no more mistakes,
    and a cross-entropy at most SLACK greater) the one is taken that leaves least inexact. If none
    is, the model is kept. The result is an ordinary model, exact for the tokens of `validation`;
    what it does with others is arbitrary. The given model is not changed.

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
    seen = Seen.of(wide, validation)
    judge = _Judge(model, validation)
    start, mixes = wide, None
    if window(wide) > 1:
        alone = [judge.try_(Candidate(m, {}, (), (0, 0))) for m in one_token(wide, seen)]
        best = min(alone, key=lambda t: t.loss)
        start = best.candidate.model
        if not best.good:  # an exact one may be, all the same
            mixes = (
                f"its convolution mixes tokens: without it {best.wrong} answers are wrong instead "
                f"of {judge.mistakes}, with a cross-entropy of {best.loss:.2g}"
            )
    turns = lasting(start, seen)

    def kept(why: str, after: float, parts: tuple[Part, ...] = ()) -> Hardened:
        losses = judge.before, after
        return Hardened(model, wide, False, why, losses, (turns, turns), {}, parts, None, seen)

    if not independent(seen.x):
        why = f"the embeddings of its {len(seen.ids)} tokens are not independent"
        return kept(why, judge.before)
    tried = [judge.try_(c) for c in family.candidates(start, seen, orders)]
    if not tried:
        return kept(mixes or "no part of it comes near enough to an exact one", judge.before)
    if not any(t.good for t in tried):
        tried += [judge.try_(c) for t in tried for c in t.candidate.fewer()]
    good = [t for t in tried if t.good]
    if not good:
        best = min(tried, key=lambda t: t.loss)
        why = mixes or "every exact model tried is worse at the training lengths"
        return kept(why, best.loss, best.candidate.parts)
    best = judge.least(min(good, key=lambda t: (t.candidate.inexact, t.loss)))
    best = next((t for t in map(judge.try_, best.candidate.steadier()) if t.good), best)
    made, settings = best.rounded, best.candidate.settings
    if start is not wide:
        settings = {"delay": window(start) - 1, **settings}
    return Hardened(
        made,
        family.ideal(best.candidate.model, seen),
        changed=True,
        why=f"as good as it was, with {_text(settings)}",
        loss=(judge.before, best.loss),
        horizon=(turns, lasting(copy.deepcopy(made).double(), seen)),
        settings=settings,
        parts=best.candidate.parts,
        slow=best.candidate.inexact[0],
        seen=seen,
    )


class _Tried(NamedTuple):
    """A candidate, as it would be written, on the sequences of the training lengths."""

    candidate: Candidate
    rounded: SequenceModel
    loss: float
    wrong: int  # answers
    good: bool  # as good as the trained model


class _Judge:
    """Tells which candidates are as good as a trained model."""

    def __init__(self, model: SequenceModel, batch: Batch) -> None:
        self.batch = batch
        self.dtype = next(model.parameters()).dtype
        self.before, self.mistakes = _score(model, batch)

    def try_(self, candidate: Candidate) -> _Tried:
        """Measure a candidate."""
        made = copy.deepcopy(candidate.model).to(self.dtype)
        loss, wrong = _score(made, self.batch)
        good = loss <= self.before + SLACK and wrong <= self.mistakes
        return _Tried(candidate, made, loss, wrong, good)

    def least(self, tried: _Tried) -> _Tried:
        """The same, if it is good, with no more parts that remember something than it takes."""
        for fewer in map(self.try_, tried.candidate.fewer()):
            if fewer.good:
                return self.least(fewer)
        return tried


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


def _score(model: SequenceModel, batch: Batch) -> tuple[float, int]:
    """The mean cross-entropy of a batch, and how many answers are wrong."""
    logits, _ = model(torch.from_numpy(batch.tokens))
    targets = torch.from_numpy(batch.targets).flatten()
    logits, asked = logits.flatten(0, 1), targets != IGNORE
    wrong = (logits.argmax(-1) != targets)[asked].sum()
    return float(cross_entropy(logits, targets, ignore_index=IGNORE)), int(wrong)


def lasting(model: SequenceModel, seen: Seen) -> Horizon | None:
    """How many tokens what turns, and hardly fades, lasts in fp32: of the worst part and the best.

    A part, a head or a channel, lasts as long as with the token that wears it out most.
    """
    ids = torch.from_numpy(seen.ids)[seen.recurring]
    (transition,) = model.transitions(ids[:, None].expand(-1, window(model)))
    assert transition is not None
    values = transition.eigvals()[:, -1].numpy()  # [n, ..., eigenvalues]
    if isinstance(transition, Diagonal):
        values = values[..., None]
    parts = values.reshape(len(values), -1, values.shape[-1]).swapaxes(0, 1)  # [P, n, eigenvalues]
    moduli = [
        [Extremes.of(v, tolerance=1e-4).turning_modulus or 0.0 for v in by_token]
        for by_token in parts
    ]
    turning = [[m for m in by_token if m > SLOW] for by_token in moduli]
    worst = [min(by_token) for by_token in turning if by_token]
    return Horizon(*(horizon(end(worst), "fp32") for end in (min, max))) if worst else None


def _text(settings: dict[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.items())
