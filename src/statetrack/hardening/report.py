"""The result of hardening, for people and for programs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from statetrack.automata import DFA
from statetrack.compiler.wording import listed
from statetrack.devices import on_cpu
from statetrack.hardening.automaton import Reading, read_automaton
from statetrack.hardening.candidate import Component
from statetrack.hardening.inputs import LayerInputs
from statetrack.models import SequenceModel


class DecayLengths(NamedTuple):
    """The shortest and the longest decay length over all heads and channels, in fp32.

    Only negative or non-real eigenvalues count; see `measure_decay`.
    """

    least: float  # tokens
    most: float

    def __str__(self) -> str:
        ends = ["unlimited" if math.isinf(end) else f"{end:,.0f} tokens" for end in self]
        return " to ".join(dict.fromkeys(ends))

    def to_dict(self) -> dict[str, float | None]:
        """Return plain values, for JSON: null is unlimited."""
        return {k: v if math.isfinite(v) else None for k, v in self._asdict().items()}


@dataclass(frozen=True)
class Hardened:
    """A hardened model, or the trained one and why it was kept."""

    model: SequenceModel
    exact: SequenceModel  # before its weights are rounded: float64, keys of length 1, on the CPU
    inputs: LayerInputs
    loss: tuple[float, float]  # before and after; of the best candidate if it was kept
    mistakes: tuple[int, int]  # wrong and scored answers of the trained model, training lengths
    decay_length: tuple[DecayLengths | None, DecayLengths | None]  # before, after
    components: tuple[Component, ...]
    reason: str | None = None  # why the trained model was kept
    settings: tuple[dict[str, Any], ...] = ()  # by layer
    memoryless: tuple[int, ...] = ()  # layers whose memory was removed
    slow: int | None = None  # channels or Householder factors that decay slowly (SLOW) or drift

    @property
    def changed(self) -> bool:
        """Whether an exact model replaces the trained one."""
        return self.reason is None

    @on_cpu()
    def read(self, vocab: Sequence[str]) -> Reading:
        """Return the automaton of the model's answers and how certain it is."""
        return read_automaton(self.exact, self.inputs, vocab, self.memoryless)

    def automaton(self, vocab: Sequence[str]) -> DFA:
        """Return the minimal automaton of the model's answers."""
        return self.read(vocab).dfa

    def sentences(self, verbose: bool = False) -> Iterator[str]:
        """Yield the result, the verdict first; `verbose` adds the settings of each layer."""
        if not self.changed:
            yield f"Kept as it was: {self.reason}."
        elif self.slow:
            yield (
                "Hardened, but not exact yet, so errors may still grow with length: "
                f"{self.slow} channels or Householder factors decay too slowly for the training "
                "lengths to show it, or drift."
            )
        else:
            yield "Hardened: the model is as good at its training lengths as before."
        early, late = (h or "no such eigenvalue" for h in self.decay_length)
        lasts = f"{early} before, {late} after" if self.changed else str(early)
        yield (
            "Decay length of negative and complex eigenvalues in fp32, shortest to longest over "
            f"heads or channels: {lasts}."
        )
        before, after = self.loss
        best = "" if self.changed else ", the best that was tried"
        losses = f"{before:.2g} before, {after:.2g} after{best}"
        yield f"Cross-entropy at the training lengths: {losses}."
        wrong, scored = self.mistakes
        yield f"The trained model has {wrong:,} of {scored:,} answers wrong there."
        tolerances = {s["tolerance"] for s in self.settings if "tolerance" in s}
        if tolerances:
            yield f"Rounded values within {max(tolerances):g}."
        if any(s.get("infer") for s in self.settings):
            yield "Effects of tokens that an exact head ignored, if any, were inferred."
        if verbose:
            for layer, settings in enumerate(self.settings):
                text = ", ".join(f"{key} {value}" for key, value in settings.items())
                yield f"Settings of layer {layer}: {text}."
        yield from self._component_sentences()

    def _component_sentences(self) -> Iterator[str]:
        exact = [c for c in self.components if c.error is not None]
        if exact:
            worst = max(c.error or 0.0 for c in exact)
            verb = "made" if self.changed else "could be made"
            total = f"{len(exact)} of {len(self.components)} heads or channels"
            yield f"{total} {verb} exact, at most {worst:.3f} off."
        reasons = dict.fromkeys((c.reason, c.memory_removed) for c in self.components if c.reason)
        for reason, removed in reasons:
            key = reason, removed
            names = [c.name for c in self.components if (c.reason, c.memory_removed) == key]
            outcome = "Memory removed" if removed and self.changed else "Left as it was"
            yield f"{outcome}, {', '.join(listed(names, 'in all'))}: {reason}."

    def __str__(self) -> str:
        return "\n".join(self.sentences())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON. A decay length is null if no eigenvalue counts."""
        lengths = [h and h.to_dict() for h in self.decay_length]
        return {
            "changed": self.changed,
            "reason": self.reason,
            "loss": dict(zip(("before", "after"), self.loss, strict=True)),
            "mistakes": dict(zip(("wrong", "scored"), self.mistakes, strict=True)),
            "decay_length": dict(zip(("before", "after"), lengths, strict=True)),
            "settings": list(self.settings),
            "slow": self.slow,
            "components": [asdict(component) for component in self.components],
        }
