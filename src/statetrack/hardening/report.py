"""What hardening did, for people and for programs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from statetrack.automata import DFA
from statetrack.compiler.wording import listed
from statetrack.hardening.automaton import Reading, read_automaton
from statetrack.hardening.candidate import Part
from statetrack.hardening.tokens import Seen
from statetrack.models import SequenceModel


class Horizon(NamedTuple):
    """How many tokens what turns lasts in fp32."""

    least: float  # in the part, a head or a channel, where it wears out first
    most: float

    def __str__(self) -> str:
        ends = ["without end" if math.isinf(end) else f"{end:,.0f} tokens" for end in self]
        return " to ".join(dict.fromkeys(ends))

    def to_dict(self) -> dict[str, float | None]:
        """Plain values, for JSON: null is without end."""
        return {k: v if math.isfinite(v) else None for k, v in self._asdict().items()}


@dataclass(frozen=True)
class Hardened:
    """A model after hardening, or the model as it was, and why."""

    model: SequenceModel
    exact: SequenceModel  # the same without rounding: float64, keys of length 1
    changed: bool
    why: str  # it is, or is not
    loss: tuple[float, float]  # before and, for the best candidate if it was not taken, after
    mistakes: tuple[int, int]  # of how many answers at the training lengths, before
    horizon: tuple[Horizon | None, Horizon | None]  # before and after; None: no eigenvalue turns
    settings: tuple[dict[str, Any], ...]  # by layer; none if it is kept
    parts: tuple[Part, ...]
    idle: tuple[int, ...]  # layers without any memory now
    slow: int | None  # tokens or gates that still fade too slowly for training to show; None: kept
    seen: Seen

    def read(self, vocab: Sequence[str]) -> Reading:
        """The automaton of what the model answers, and how sure that is: see `read_automaton`."""
        return read_automaton(self.exact, self.seen, vocab, self.idle)

    def automaton(self, vocab: Sequence[str]) -> DFA:
        """The minimal automaton of what the model answers."""
        return self.read(vocab).dfa

    def sentences(self) -> Iterator[str]:
        """The result, one sentence a line."""
        yield f"{'Hardened' if self.changed else 'Kept as it was'}: {self.why}."
        before, after = self.loss
        losses = f"{before:.2g} before, {after:.2g} after"
        wrong, asked = self.mistakes
        best = "" if self.changed else ", the best that was tried"
        yield f"Cross-entropy at the training lengths: {losses}{best}."
        yield f"The trained model has {wrong:,} of {asked:,} answers wrong there."
        early, late = (h or "nothing does" for h in self.horizon)
        lasts = f"{early} before, {late} after" if self.changed else str(early)
        yield f"What turns lasts, by part: {lasts}."
        if self.slow:
            yield f"Not exact yet: {self.slow} still fade more slowly than training shows."
        done = [part for part in self.parts if part.error is not None]
        if done:
            worst = max(part.error or 0.0 for part in done)
            verb = "made" if self.changed else "could be made"
            yield f"{len(done)} of {len(self.parts)} parts {verb} exact, at most {worst:.3f} off."
        reasons = dict.fromkeys((p.skipped, p.silenced) for p in self.parts if p.skipped)
        for why, silenced in reasons:
            names = [p.name for p in self.parts if (p.skipped, p.silenced) == (why, silenced)]
            verb = "without memory now" if silenced and self.changed else "left"
            yield f"{len(names)} {verb} ({', '.join(listed(names, 'in all'))}): {why}."

    def __str__(self) -> str:
        return "\n".join(self.sentences())

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON. A horizon is null where nothing turns, its ends without end."""
        horizons = [h and h.to_dict() for h in self.horizon]
        return {
            "changed": self.changed,
            "why": self.why,
            "loss": dict(zip(("before", "after"), self.loss, strict=True)),
            "mistakes": dict(zip(("wrong", "asked"), self.mistakes, strict=True)),
            "horizon": dict(zip(("before", "after"), horizons, strict=True)),
            "settings": list(self.settings),
            "slow": self.slow,
            "parts": [asdict(part) for part in self.parts],
        }
