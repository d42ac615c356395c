"""Figures that several recipes make of their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from statetrack.recipes.selection import Spread
from statetrack.report.document import Figure, Series

Groups = Mapping[str, Sequence[Mapping[str, Any]]]  # results of the seeds, by the model's title


def seed_lines(
    label: str, lines: Sequence[Mapping[float, float]], *, std: bool = False
) -> list[Series]:
    """Return the mean of the seeds' lines with an interval, and the lines themselves, faint.

    Args:
        label: of the mean.
        lines: y by x, one mapping per seed; the mean covers the x that all have.
        std: an interval of one standard deviation instead of the 95 % interval of the mean.
    """
    if not lines:
        return []
    xs = sorted(set.intersection(*(set(line) for line in lines)))
    spreads = [Spread(tuple(line[x] for line in lines)) for x in xs]
    mean = [s.mean for s in spreads]
    low = high = None
    if len(lines) > 1:
        ends = [
            (s.mean - s.std, s.mean + s.std) if std else s.interval or (s.mean, s.mean)
            for s in spreads
        ]
        low, high = [e[0] for e in ends], [e[1] for e in ends]
    found = [Series(label, xs, mean, low, high, group=label)] if xs else []
    if len(lines) > 1:
        for i, line in enumerate(lines):
            x = sorted(line)
            found.append(
                Series(f"{label}, seed {i}", x, [line[n] for n in x], group=label, faint=True)
            )
    return found


def length_figure(title: str, groups: Groups, trained: int, *, note: str = "") -> Figure | None:
    """Draw accuracy against length: the mean of the seeds with its 95 % interval, and each seed.

    Uses the curve of a result, or its evaluations at single lengths. None without any.
    """
    scaled: list[Series] = []
    raw: list[Series] = []
    for label, results in groups.items():
        scaled += seed_lines(label, [*_by_length(results, "scaled")])
        raw += seed_lines(label, [*_by_length(results, "score")])
    if not scaled:
        return None
    return Figure(
        title,
        "sequence length",
        "scaled accuracy (chance is 0)",
        scaled,
        log_x=True,
        marks=((trained, "training length"),),
        y_range=(-0.15, 1.05),
        raw=raw,
        raw_label="accuracy",
        note=note,
    )


def _by_length(results: Iterable[Mapping[str, Any]], field: str) -> Iterable[dict[float, float]]:
    for result in results:
        measured = result.get("trained") or {}
        curve = measured.get("curve")
        if curve is not None:
            values = curve["accuracy" if field == "score" else field]
            yield dict(zip(curve["lengths"], values, strict=True))
            continue
        single = [e for e in measured.get("evaluations", {}).values() if _is_single(e)]
        if single:
            yield {e["min_length"]: e[field] for e in single}


def _is_single(evaluation: Mapping[str, Any]) -> bool:
    return bool(evaluation["min_length"] == evaluation["max_length"])


def learning_figure(title: str, groups: Groups) -> Figure | None:
    """Draw the training accuracy against steps; None without any."""
    series: list[Series] = []
    for label, results in groups.items():
        rows = [r["learning"] for r in results if (r.get("learning") or {}).get("step")]
        lines = [dict(zip(row["step"], row["accuracy"], strict=True)) for row in rows]
        series += seed_lines(label, lines)
    if not series:
        return None
    return Figure(title, "step", "training accuracy", series, y_range=(0, 1.05))


def spectrum_figure(title: str, groups: Groups) -> Figure | None:
    """Scatter the eigenvalues of A(x) of each model's first seed that has them; None without."""
    series = []
    for label, results in groups.items():
        spectrum = next((r["spectrum"] for r in results if r.get("spectrum")), None)
        if spectrum is not None:
            real = [value for layer in spectrum["layers"] for value in layer["real"]]
            imag = [value for layer in spectrum["layers"] for value in layer["imag"]]
            series.append(Series(label, real, imag, group=label))
    if not series:
        return None
    return Figure(
        title, "real part", "imaginary part", series, points=True,
        note="Eigenvalues of A(x) of all layers on one test batch, of one seed each.",
    )  # fmt: skip
