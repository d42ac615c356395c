"""The report of a diagnosis: text for people, plain values for programs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from statetrack.config import at_least
from statetrack.diagnosis.horizon import Horizon
from statetrack.diagnosis.period import LayerPeriod
from statetrack.diagnosis.rounded_states import RoundedStates
from statetrack.diagnosis.spectrum import PRECISIONS, Spectrum, decay_length, overflow_length
from statetrack.diagnosis.verdicts import Bound, Kind, Verdict, language
from statetrack.layers import Guarantee
from statetrack.terminal import PlainConsole, print_table

MODULI = range(2, 13)  # the m for which the report says whether (w^m)* is excluded
CAVEAT = (
    "These are necessary conditions: what is not ruled out need not be possible. They hold for "
    "exact products that are rounded once, as in the theorems; rounding at each step can differ."
)


@dataclass(frozen=True)
class LayerReport:
    """What is known of one layer; spectrum and guarantee are None if it is no linear RNN."""

    guarantee: Guarantee | None  # for single transitions
    spectrum: Spectrum | None
    before: Spectrum | None  # training; None if that is not known
    period: LayerPeriod | None  # None after a layer whose factor is unknown


@dataclass(frozen=True)
class Diagnosis:
    """The horizon of a model, its eigenvalues, and the languages (word^m)* that they exclude."""

    title: str
    word: tuple[str, ...]
    vocab: tuple[str, ...]
    tolerance: float
    layers: tuple[LayerReport, ...]
    architectural: Bound
    probed: Bound
    horizon: Horizon
    rounded: tuple[RoundedStates, ...] = ()  # on the word, in each datatype that was asked for

    def verdict(self, m: int) -> Verdict:
        """What is known of the language (word^m)*."""
        at_least("m", m, 1)
        name = language(self.word, m)
        for kind, bound in self._bounds():
            if bound.excludes(m):
                claim = f"cannot recognise {name} at arbitrary length"
                return Verdict(kind, name, self._because(kind, bound, claim))
        if self.probed.factor is None:
            return Verdict(Kind.NOT_EXCLUDED, name, f"undetermined: {self.probed.why}")
        return Verdict(Kind.NOT_EXCLUDED, name, f"{m} divides {self.probed.factor}")

    def verdicts(self) -> list[Verdict]:
        """One sentence of each kind, on all the languages (word^m)* at once."""
        family = language(self.word, "m")
        verdicts = []
        for kind, bound in self._bounds():
            if bound.factor is None:
                claim = "nothing is ruled out"
            elif bound.factor == 1:
                claim = f"cannot recognise {language(self.word, 2)}, nor {family} for any m >= 2, "
                claim += "at arbitrary length"
            else:
                claim = f"cannot recognise {family} at arbitrary length unless m divides "
                claim += str(bound.factor)
            verdicts.append(Verdict(kind, family, self._because(kind, bound, claim)))
        left = [m for m in MODULI if self.verdict(m).kind is Kind.NOT_EXCLUDED]
        text = f"{'every' if len(left) < len(MODULI) else 'no'} modulus from {MODULI[0]} to "
        text += f"{MODULI[-1]} is ruled out"
        if 0 < len(left) < len(MODULI):
            text += f" except {', '.join(map(str, left))}"
        return [*verdicts, Verdict(Kind.NOT_EXCLUDED, family, text)]

    def warnings(self) -> list[str]:
        """What may go wrong with the model, or with this diagnosis."""
        found = []
        for i, layer in enumerate(self.layers):
            modulus = layer.spectrum.total.max_modulus if layer.spectrum else 0.0
            if modulus > 1 + self.tolerance:
                tokens = f"{overflow_length(modulus):,.0f} tokens"
                overflows = f"bf16 and fp32 overflow after about {tokens} of it"
                found.append(f"layer {i}: an eigenvalue has modulus {modulus:.5g} > 1; {overflows}")
            if layer.period is not None and layer.period.ill_conditioned:
                found.append(f"layer {i}: eigenvalues over a period are nearly defective")
        return found

    def table(self) -> tuple[str, list[str], list[list[str]]]:
        """Title, columns and rows, one row per layer."""
        columns = [
            "layer", "min Re", "max |Im|", "max |λ|",
            f"λ < 0 or complex lasts, tokens in {' / '.join(PRECISIONS)}", "guarantee", "period",
        ]  # fmt: skip
        rows = [[str(i), *_cells(layer)] for i, layer in enumerate(self.layers)]
        return "Eigenvalues of single transitions", columns, rows

    def sentences(self) -> Iterator[str]:
        """The horizon, what is ruled out, and warnings."""
        yield from self.horizon.sentences()
        for verdict in self.verdicts():
            subject = "It " if verdict.text.startswith("cannot") else ""
            text = subject + verdict.text
            yield f"{text[0].upper()}{text[1:]}."
        for rounded in self.rounded:
            yield self._rounded(rounded)
        for warning in self.warnings():
            yield f"Warning: {warning}."

    def print(self, console: PlainConsole, verbose: bool = False) -> None:
        """Print the verdicts, the eigenvalues, and the remedy last; `verbose` adds each head."""
        console.print(self.title, style="bold")
        for sentence in self.sentences():
            console.print(sentence)
        print_table(console, *self.table())
        if verbose and (heads := self.horizon.table()) is not None:
            print_table(console, *heads)
        if verbose:
            console.print(f"{CAVEAT} Tolerance of eigenvalues: {self.tolerance:g}.", style="dim")
        if self.horizon.remedy:
            console.print(f"Remedy: {self.horizon.remedy}")

    def text(self, verbose: bool = False) -> str:
        """What `print` prints, in lines of at most 120 characters."""
        file = StringIO()
        self.print(PlainConsole(file=file, width=120), verbose)
        return file.getvalue()

    def __str__(self) -> str:
        return self.text()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON; null for what has no end or does not apply."""
        return {
            "title": self.title,
            "horizon": asdict(self.horizon),
            "word": list(self.word),
            "tolerance": self.tolerance,
            "layers": [self._layer_dict(i, layer) for i, layer in enumerate(self.layers)],
            "architectural": asdict(self.architectural),
            "probed": asdict(self.probed),
            "verdicts": [asdict(verdict) for verdict in self.verdicts()],
            "languages": [{"m": m, **asdict(self.verdict(m))} for m in MODULI],
            "rounded": [asdict(rounded) for rounded in self.rounded],
            "warnings": self.warnings(),
        }

    def plot(self, path: Path | str) -> None:
        """Draw the eigenvalues on the complex plane, one panel per layer."""
        from statetrack.diagnosis.figure import plot

        plot(self, Path(path))

    def _bounds(self) -> list[tuple[Kind, Bound]]:
        return [(Kind.ARCHITECTURAL, self.architectural), (Kind.PROBED, self.probed)]

    def _because(self, kind: Kind, bound: Bound, claim: str) -> str:
        """A claim with its scope and reason; for probed ones, how long fading eigenvalues last."""
        scope = "whatever the weights" if kind is Kind.ARCHITECTURAL else "with these weights"
        text = f"{claim}, {scope}: {bound.why}"
        fading = [layer.period.fading for layer in self.layers if layer.period]
        moduli = [modulus for modulus in fading if modulus is not None]
        if kind is Kind.PROBED and bound.factor is not None and moduli:
            tokens = (f"{decay_length(max(moduli), p):,.0f} tokens in {p}" for p in PRECISIONS)
            text += f"; the slowest other eigenvalue along the word lasts {', '.join(tokens)}"
        return text

    def _rounded(self, rounded: RoundedStates) -> str:
        """Say from where on the states of each layer repeat."""
        word = " ".join((self.word * 3)[: max(3, len(self.word))])
        layers = "; ".join(f"layer {i}: {layer}" for i, layer in enumerate(rounded.layers))
        precision = f"In {rounded.precision} (products and sums rounded once)"
        read = f"{rounded.tokens:,} tokens were read"
        return f"{precision} on {word} ...: {layers or 'no layer is covered'} ({read})."

    def _layer_dict(self, index: int, layer: LayerReport) -> dict[str, Any]:
        after, before = (s and s.to_dict(self.vocab) for s in (layer.spectrum, layer.before))
        return {
            "layer": index,
            "linear": layer.spectrum is not None,
            "guarantee": layer.guarantee,
            "period": None if layer.period is None else asdict(layer.period),
            "after": after,
            "before": before,
        }


def _cells(layer: LayerReport) -> list[str]:
    period = "-"
    if layer.period is not None:
        period = "?" if layer.period.factor is None else f"x {layer.period.factor}"
    if layer.spectrum is None:
        return ["-"] * 4 + ["no linear RNN", period]
    total = layer.spectrum.total
    numbers = [f"{v:.4f}" for v in (total.min_real, total.max_imag, total.max_modulus)]
    lengths = [total.decay_length(precision) for precision in PRECISIONS]
    lasts = ["no end" if n is None or math.isinf(n) else f"{n:,.0f}" for n in lengths]
    decay = "-" if total.oscillating_modulus is None else " / ".join(lasts)
    return [*numbers, decay, str(layer.guarantee), period]
