"""What a diagnosis says: to people as a table and a few sentences, to programs as plain values."""

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
from statetrack.diagnosis.spectrum import (
    MAX_PAIRS,
    PRECISIONS,
    Extremes,
    Spectrum,
    horizon,
    overflow,
)
from statetrack.diagnosis.verdicts import Bound, Kind, Verdict, language
from statetrack.layers import Guarantee
from statetrack.terminal import PlainConsole, print_table

LISTED = range(2, 13)  # the powers m of which each is told whether (w^m)* is excluded
NOTE = (
    "These are necessary conditions: what is not excluded need not be possible. They speak of "
    "exact products that are rounded once, as the theorems do; step by step, rounding can differ."
)


@dataclass(frozen=True)
class Layer:
    """What is known of one layer; spectrum and guarantee are None if it is no linear RNN."""

    guarantee: Guarantee | None  # for single transitions
    spectrum: Spectrum | None
    before: Spectrum | None  # training; None if that is not known
    period: LayerPeriod | None  # None behind a layer of which it cannot be told


@dataclass(frozen=True)
class Diagnosis:
    """The eigenvalues of a model's transitions, and the languages (word^m)* that they exclude."""

    title: str
    word: tuple[str, ...]
    vocab: tuple[str, ...]
    tolerance: float
    layers: tuple[Layer, ...]
    architectural: Bound
    probed: Bound
    horizon: Horizon

    def verdict(self, m: int) -> Verdict:
        """What is known of the language (word^m)*."""
        at_least("m", m, 1)
        name = language(self.word, m)
        for kind, bound in self._bounds():
            if bound.excludes(m):
                whose = "whatever the weights" if kind is Kind.ARCHITECTURAL else "as it is"
                text = f"cannot recognise {name} at arbitrary length, {whose}: {bound.why}"
                return Verdict(kind, name, text + self._fading(kind))
        if self.probed.factor is None:
            return Verdict(Kind.NOT_EXCLUDED, name, f"undetermined: {self.probed.why}")
        return Verdict(Kind.NOT_EXCLUDED, name, f"{m} divides {self.probed.factor}")

    def verdicts(self) -> list[Verdict]:
        """One sentence of each kind, on all the languages (word^m)* at once."""
        family = language(self.word, "m")
        said = []
        for kind, bound in self._bounds():
            whose = "whatever the weights" if kind is Kind.ARCHITECTURAL else "as it is"
            if bound.factor is None:
                text = f"no claim: {bound.why}"
            elif bound.factor == 1:
                pair = language(self.word, 2)
                text = f"cannot recognise {pair}, nor {family} for any m >= 2, at arbitrary length"
                text += f", {whose}: {bound.why}"
            else:
                text = f"cannot recognise {family} at arbitrary length unless m divides "
                text += f"{bound.factor}, {whose}: {bound.why}"
            said.append(Verdict(kind, family, text + self._fading(kind)))
        left = [m for m in LISTED if self.verdict(m).kind is Kind.NOT_EXCLUDED]
        moduli = f"from {LISTED[0]} to {LISTED[-1]}"
        if not left:
            text = f"every modulus {moduli} is ruled out"
        elif left == list(LISTED):
            text = f"no modulus {moduli} is ruled out"
        else:
            text = f"every modulus {moduli} is ruled out except {', '.join(map(str, left))}"
        return [*said, Verdict(Kind.NOT_EXCLUDED, family, text)]

    def warnings(self) -> list[str]:
        """What may go wrong with the model, or with this diagnosis."""
        said = []
        for i, layer in enumerate(self.layers):
            most = layer.spectrum.total.max_modulus if layer.spectrum else 0.0
            if most > 1 + self.tolerance:
                after = f"bf16 and fp32 overflow after about {overflow(most):,.0f} tokens of it"
                said.append(f"layer {i}: an eigenvalue has modulus {most:.5g} > 1; {after}")
            if layer.period is not None and layer.period.ill_conditioned:
                said.append(f"layer {i}: eigenvalues over a period are nearly defective, uncertain")
        return said

    def table(self) -> tuple[str, list[str], list[list[str]]]:
        """Title, columns and rows: one row a layer."""
        columns = [
            "layer", "min Re", "max |Im|", "max |λ|",
            f"best eigenvalue of one token lasts, {' / '.join(PRECISIONS)}", "guarantee", "period",
        ]  # fmt: skip
        rows = [[str(i), *_cells(layer)] for i, layer in enumerate(self.layers)]
        return "Eigenvalues of single transitions", columns, rows

    def sentences(self) -> Iterator[str]:
        """The horizon, verdicts and warnings, for people."""
        yield from self.horizon.sentences()
        *excluded, left = self.verdicts()
        for verdict in excluded:
            yield f"{verdict.kind}: {verdict.text}"
        yield f"{left.text[0].upper()}{left.text[1:]}."
        for warning in self.warnings():
            yield f"warning: {warning}"

    def print(self, console: PlainConsole) -> None:
        """The verdicts first, then the tables, and the remedy last."""
        console.print(self.title, style="bold")
        for sentence in self.sentences():
            console.print(sentence)
        for table in (self.horizon.table(), self.table()):
            if table is not None:
                print_table(console, *table)
        console.print(NOTE, style="dim")
        if self.horizon.remedy:
            console.print(f"Remedy: {self.horizon.remedy}")

    def __str__(self) -> str:
        text = StringIO()
        self.print(PlainConsole(file=text, width=120))
        return text.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; null for what has no end or does not apply."""
        return {
            "title": self.title,
            "horizon": self.horizon.to_dict(),
            "word": list(self.word),
            "tolerance": self.tolerance,
            "layers": [self._layer_dict(i) for i in range(len(self.layers))],
            "architectural": asdict(self.architectural),
            "probed": asdict(self.probed),
            "verdicts": [asdict(verdict) for verdict in self.verdicts()],
            "languages": [{"m": m, **asdict(self.verdict(m))} for m in LISTED],
            "warnings": self.warnings(),
        }

    def plot(self, path: Path | str) -> None:
        """The eigenvalues on the complex plane, a panel a layer, before and after training."""
        from statetrack.diagnosis.figure import plot

        plot(self, Path(path))

    def _bounds(self) -> list[tuple[Kind, Bound]]:
        return [(Kind.ARCHITECTURAL, self.architectural), (Kind.PROBED, self.probed)]

    def _fading(self, kind: Kind) -> str:
        """How long what turns lasts, where that is why nothing turns for ever."""
        found = [layer.period.fading for layer in self.layers if layer.period]
        slowest = max((f for f in found if f is not None), default=None)
        if kind is not Kind.PROBED or self.probed.factor is None or slowest is None:
            return ""
        lasts = (f"{horizon(slowest, p):,.0f} tokens in {p}" for p in PRECISIONS)
        return f"; the slowest other eigenvalue along the word lasts {', '.join(lasts)}"

    def _layer_dict(self, index: int) -> dict[str, Any]:
        layer = self.layers[index]
        out: dict[str, Any] = {
            "layer": index,
            "linear": layer.spectrum is not None,
            "guarantee": layer.guarantee,
            "period": None if layer.period is None else asdict(layer.period),
        }
        for name, spectrum in (("after", layer.spectrum), ("before", layer.before)):
            out[name] = None if spectrum is None else self._spectrum_dict(spectrum)
        return out

    def _spectrum_dict(self, spectrum: Spectrum) -> dict[str, Any]:
        return {
            "heads": spectrum.heads,
            "size": spectrum.size,
            **_extremes_dict(spectrum.total),
            "by_token": {self.vocab[t]: _extremes_dict(e) for t, e in spectrum.by_token.items()},
            "by_head": [_extremes_dict(e) for e in spectrum.by_head],
            "by_token_and_head": self._joint_dict(spectrum),
        }

    def _joint_dict(self, spectrum: Spectrum) -> dict[str, Any]:
        """Tables [tokens][heads] of the extremes."""
        joint, heads = spectrum.joint, spectrum.heads
        if joint is None:
            tokens = len(spectrum.by_token)
            return {
                "left_out": f"{tokens:,} tokens and {heads:,} heads make {tokens * heads:,} pairs; "
                f"at most {MAX_PAIRS:,} are listed: see by_token and by_head"
            }
        turning = joint.turning_modulus.tolist()
        return {
            "tokens": [self.vocab[token] for token in joint.tokens],
            "min_real": joint.min_real.tolist(),
            "max_imag": joint.max_imag.tolist(),
            "max_modulus": joint.max_modulus.tolist(),
            "turning_modulus": [[None if math.isnan(m) else m for m in row] for row in turning],
        }


def _extremes_dict(extremes: Extremes) -> dict[str, Any]:
    horizons = {precision: extremes.horizon(precision) for precision in PRECISIONS}
    finite = {p: h if h is not None and math.isfinite(h) else None for p, h in horizons.items()}
    return {**asdict(extremes), "horizon": finite}


def _cells(layer: Layer) -> list[str]:
    period = "-"
    if layer.period is not None:
        period = "?" if layer.period.factor is None else f"x {layer.period.factor}"
    if layer.spectrum is None:
        return ["-"] * 4 + ["no linear RNN", period]
    total = layer.spectrum.total
    ends = [f"{v:.4f}" for v in (total.min_real, total.max_imag, total.max_modulus)]
    lasts = [_tokens(total.horizon(precision)) for precision in PRECISIONS]
    horizons = "-" if total.turning_modulus is None else " / ".join(lasts)
    return [*ends, horizons, str(layer.guarantee), period]


def _tokens(count: float | None) -> str:
    return "no end" if count is None or math.isinf(count) else f"{count:,.0f}"
