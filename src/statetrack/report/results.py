"""Figures and facts of the results of jobs: a line for each model, with its interval over seeds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from statetrack.report.document import Figure, Series
from statetrack.report.figures import MAX_ENTRIES
from statetrack.report.spread import Spread

Result = Mapping[str, Any]  # the content of result.json
Line = Mapping[float, float]  # y by x
Groups = Mapping[str, Sequence[Result]]  # the results of the seeds, by the text of the legend
GOLDEN_RATIO = (5**0.5 - 1) / 2  # its multiples modulo 1 are spread evenly


def seed_lines(
    label: str, results: Sequence[Result], line: Callable[[Result], Line], *, std: bool = False
) -> list[Series]:
    """Return the mean of the seeds' lines with its interval, and the lines themselves, faint.

    Args:
        label: of the mean.
        results: of one model, a seed each.
        line: y by x of a result; empty if it was not measured. The mean covers the x that all have;
            its label counts the runs that failed.
        std: an interval of one standard deviation instead of the 95 % interval of the mean.
    """
    lines = {result["seed"]: one for result in results if (one := line(result))}
    failed = sum(result.get("status") == "failed" for result in results)
    text = f"{label} ({failed} of {len(results)} runs failed)" if failed else label
    if len(lines) < 2:
        return [Series(text, *_points(one), group=label) for one in lines.values()]
    xs = sorted(set.intersection(*(set(one) for one in lines.values())))
    found = []
    if xs:
        spreads = [Spread(tuple(one[x] for one in lines.values())) for x in xs]
        ends = [
            (s.mean - s.std, s.mean + s.std) if std else s.interval or (s.mean, s.mean)
            for s in spreads
        ]
        low, high = [e[0] for e in ends], [e[1] for e in ends]
        found.append(Series(text, xs, [s.mean for s in spreads], low, high, group=label))
    return found + [
        Series(f"{label}, seed {seed}", *_points(one), group=label, faint=True)
        for seed, one in lines.items()
    ]


def _points(line: Line) -> tuple[list[float], list[float]]:
    xs = sorted(line)
    return xs, [line[x] for x in xs]


def length_figure(
    title: str,
    groups: Groups,
    trained: int | None,
    *,
    note: str = "",
    which: str = "trained",
    seeds: bool = True,
) -> Figure | None:
    """Draw accuracy against length: the mean of the seeds with its 95 % interval, and each seed.

    Args:
        title: of the figure.
        groups: results with a curve, or with evaluations at single lengths.
        trained: the training length, which is marked.
        note: below the figure.
        which: "trained" or "hardened" models.
        seeds: whether each seed has a line of its own beside the mean.

    Returns:
        The figure, on the scaled and on the raw axis; None if nothing was measured.
    """
    scaled: list[Series] = []
    raw: list[Series] = []
    for label, results in _first_groups(groups).items():
        scaled += seed_lines(label, results, partial(_by_length, which, "scaled"))
        raw += seed_lines(label, results, partial(_by_length, which, "score"))
    if not scaled:
        return None
    if not seeds:
        scaled, raw = ([line for line in lines if not line.faint] for lines in (scaled, raw))
    return Figure(
        title,
        "sequence length",
        "scaled accuracy (chance is 0)",
        scaled,
        log_x=True,
        marks=() if trained is None else ((trained, f"trained up to {trained:,}"),),
        y_range=(-0.15, 1.05),
        raw=raw,
        raw_label="accuracy",
        note=_note_left_out(note, groups),
    )


def _by_length(which: str, field: str, result: Result) -> Line:
    measured = result.get(which) or {}
    curve = measured.get("curve")
    if curve is not None:
        return dict(
            zip(curve["lengths"], curve["accuracy" if field == "score" else field], strict=True)
        )
    found = measured.get("evaluations", {}).values()
    return {e["min_length"]: e[field] for e in found if e["min_length"] == e["max_length"]}


def hardening_figure(
    title: str,
    groups: Groups,
    trained: int,
    *,
    hardened: Collection[str],
    seeds: bool = False,
    note: str = "",
    name: str = "",
) -> Figure | None:
    """Draw the share of right answers against length: means over seeds, dashed after hardening.

    Args:
        title: of the figure.
        groups: results with evaluations; one of several lengths stands at the greatest.
        trained: the training length, which is marked.
        hardened: the groups of which the hardened models are drawn as well.
        seeds: whether each seed as trained is drawn, too.
        note: below the figure.
        name: of its files.

    Returns:
        The figure; None if nothing was measured.
    """
    series: list[Series] = []
    for label, results in groups.items():
        lines = seed_lines(label, results, partial(_right_answers, "trained"))
        series += lines if seeds else lines[:1]
        if label in hardened:
            right = partial(_right_answers, "hardened")
            mean = seed_lines(f"{label}, hardened", results, right)[:1]
            series += [replace(line, group=label, dashed=True) for line in mean]
    if not series:
        return None
    return Figure(
        title,
        "sequence length",
        "share of right answers",
        [_within_0_and_1(line) for line in series],
        log_x=True,
        marks=((trained, f"trained up to {trained}"),),
        y_range=(-0.05, 1.05),
        note=note,
        name=name,
    )


def _within_0_and_1(line: Series) -> Series:
    """Cut the line's interval, which over few seeds would reach beyond what a share can be."""
    if line.low is None or line.high is None:
        return line
    low, high = ([min(max(y, 0.0), 1.0) for y in ends] for ends in (line.low, line.high))
    return replace(line, low=low, high=high)


def _right_answers(which: str, result: Result) -> Line:
    found = (result.get(which) or {}).get("evaluations", {}).values()
    return {float(e["max_length"]): e["token_accuracy"] for e in found}


def learning_figure(title: str, groups: Groups, field: str = "accuracy") -> Figure | None:
    """Draw the training accuracy, or the loss, against steps; None if no result has it."""
    series: list[Series] = []
    for label, results in _first_groups(groups).items():
        series += seed_lines(label, results, partial(_by_training_step, field))
    if not series:
        return None
    limits = (0, 1.05) if field == "accuracy" else None
    return Figure(
        title, "step", f"training {field}", series, y_range=limits, note=_note_left_out("", groups)
    )


def _by_training_step(field: str, result: Result) -> Line:
    learning = result.get("learning") or {}
    return dict(zip(learning.get("step", ()), learning.get(field, ()), strict=True))


def by_validation_step(lengths: tuple[int, int], field: str, result: Result) -> Line:
    """Return the validation scores on a range of lengths by step."""
    rows = result.get("validation") or []
    here = [row for row in rows if (row["min_length"], row["max_length"]) == lengths]
    return {row["step"]: row[field] for row in here}


def validation_figures(title: str, groups: Groups) -> list[Figure]:
    """Draw the validation scores against steps, one figure for each range of lengths."""
    drawn = _first_groups(groups)
    rows = [row for results in drawn.values() for r in results for row in r.get("validation") or []]
    figures = []
    for low, high in sorted({(row["min_length"], row["max_length"]) for row in rows}):
        scaled, raw = (
            [
                series
                for label, results in drawn.items()
                for series in seed_lines(
                    label, results, partial(by_validation_step, (low, high), field)
                )
            ]
            for field in ("scaled", "score")
        )
        span = f"length {low}" if low == high else f"lengths {low}-{high}"
        figures.append(
            Figure(
                f"{title} at {span}",
                "step",
                "scaled accuracy (chance is 0)",
                scaled,
                y_range=(-0.15, 1.05),
                raw=raw,
                raw_label="accuracy",
                note=_note_left_out("", groups),
                name=f"validation-{low}-{high}",
            )
        )
    return figures


def spectrum_figure(title: str, groups: Groups) -> Figure | None:
    """Draw the eigenvalues of A(x) of each model's first seed that has them; None if none has.

    They are points of the complex plane; if all are real, each model has a row.
    """
    found = {label: _eigenvalues(results) for label, results in _first_groups(groups).items()}
    found = {label: values for label, values in found.items() if values}
    if not found:
        return None
    note = (
        "Eigenvalues of A(x) of all layers on one test batch, of one seed each; equal ones, in "
        "three decimals, are drawn once."
    )
    rows = not any(imag for values in found.values() for _, imag in values)
    series = []
    for row, (label, values) in enumerate(found.items()):
        x, y = zip(*values, strict=True)
        if rows:  # scattered within the row, so that dense and sparse regions differ
            y = tuple(0.7 * (i * GOLDEN_RATIO % 1 - 0.5) - row for i in range(len(values)))
        series.append(Series(label, list(x), list(y), group=label))
    return Figure(
        title,
        "eigenvalue" if rows else "real part",
        "" if rows else "imaginary part",
        series,
        points=not rows,
        rows=rows,
        note=_note_left_out(f"{note} All are real." if rows else note, groups),
    )


def _eigenvalues(results: Sequence[Result]) -> list[tuple[float, float]]:
    """Return the distinct eigenvalues, real and imaginary parts, of the first result with any."""
    spectra = (r["spectrum"]["layers"] for r in results if r.get("spectrum"))
    layers = [layer for layer in next(spectra, []) if layer is not None]  # those with an A(x)
    values = (pair for part in layers for pair in zip(part["real"], part["imag"], strict=True))
    return sorted({(round(x, 3), round(y, 3)) for x, y in values})


def _first_groups(groups: Groups) -> Groups:
    """Return the first MAX_ENTRIES groups: more could not be told apart."""
    return dict(list(groups.items())[:MAX_ENTRIES])


def _note_left_out(note: str, groups: Groups) -> str:
    left = len(groups) - MAX_ENTRIES
    return (
        f"{note} The first {MAX_ENTRIES} are drawn, {left} are not.".strip() if left > 0 else note
    )


def environment_facts(results: Iterable[Result]) -> dict[str, Any]:
    """Return the versions and hardware of results; where these differ, a list of all values."""
    found = [environment for r in results if (environment := r.get("environment"))]
    names = dict.fromkeys(name for environment in found for name in environment)
    values = {n: list(dict.fromkeys(e.get(n, "unknown") for e in found)) for n in names}
    return {name: every if every[1:] else every[0] for name, every in values.items()}
