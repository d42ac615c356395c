"""Tables, figures and sentences of the word problems' recipes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from statetrack.recipes.recipe import Recipe, Results, Settings, facts, register
from statetrack.recipes.selection import (
    Entry,
    comparison_sentence,
    evaluated,
    exact,
    sequence_accuracy,
    spread_of,
    without_result,
)
from statetrack.recipes.word_problems import Model, Problem
from statetrack.report.document import Cell, Document, Figure, Series, Table
from statetrack.report.evaluation import BASELINE
from statetrack.report.results import learning_figure, seed_lines, spectrum_figure
from statetrack.sweep.job import Job

Entries = Mapping[Model, Entry]  # of one problem, in the order of its table


def word_problem_recipe(
    name: str,
    aliases: tuple[str, ...],
    title: str,
    entries: Callable[[Settings], Mapping[Problem, Entries]],
    notes: Callable[[Settings], list[str]],
) -> Recipe:
    """Register a recipe with a table, curves and comparisons of each of its problems.

    Args:
        name: of the recipe.
        aliases: the paper's numbers.
        title: of the page.
        entries: return the models of each problem.
        notes: return the notes of the page.
    """

    def jobs(settings: Settings, results: Results) -> list[Job]:
        found = [entry for row in entries(settings).values() for entry in row.values()]
        return [job for entry in found for job in entry.jobs(results)]

    def document(settings: Settings, results: Results) -> Document:
        rows = entries(settings)
        sentences: list[str] = []
        figures: list[Figure] = []
        for p, row in rows.items():
            sentences += comparison_sentences(p, row, settings, results)
            figures += curve_figures(p, row, settings, results) + model_figures(p, row, results)
        return Document(
            name=name,
            title=title,
            summary=sentences or ["Nothing can be compared yet."],
            tables=[accuracy_table(p, row, settings, results) for p, row in rows.items()],
            figures=figures,
            notes=notes(settings),
            facts=facts(name, settings, jobs(settings, results), results),
            configs={
                f"{p.title}, {entry.title}": entry.reported_jobs(results)[0].config.to_json()
                for p, row in rows.items()
                for entry in row.values()
            },
        )

    return register(Recipe(name, aliases, title, jobs, document))


def accuracy_table(
    problem: Problem, entries: Entries, settings: Settings, results: Results
) -> Table:
    """Return best and median of the seeds at every length, and how many are exact if hardened."""
    lengths = problem.lengths(settings)
    heads = ["model", "seeds", f"{lengths[0]} tokens"]
    heads += [f"{n} {what}" for n in lengths for what in ("best", "median")]
    hardens = any(model.harden for model in entries)
    heads += ["exact after hardening"] if hardens else []
    rows: list[list[Cell]] = []
    for model, entry in entries.items():
        done = entry.reported(results)
        row: list[Cell] = [entry.title, entry.seeds_text(results)]
        tokens = spread_of(done, evaluated(lengths[0], "token_accuracy"))
        row.append(None if tokens is None else tokens.median)
        for length in lengths:
            spread = spread_of(done, sequence_accuracy(length))
            row += [None, None] if spread is None else [spread.best, spread.median]
        if hardens:
            row.append(entry.count_text(results, exact(lengths)) if model.harden and done else None)
        rows.append(row)
    if (level := _token_majority(entries, lengths[0], results)) is not None:
        rows.append([BASELINE, None, level, *[None] * (len(heads) - 3)])
    t = next(iter(entries.values())).reported_jobs(results)[0].config.training
    span = f"{t.min_length}-" if t.min_length < t.max_length else ""
    note = (
        "Share of sequences with every position right, at each length; 'tokens' is the median "
        f"share of right positions. Runs that failed are in the count of seeds only. Training "
        f"length {span}{t.max_length}. The paper prints no numbers"
    )
    note += f"; its text: {problem.finding}." if problem.finding else "."
    return Table(problem.title, heads, rows, note, name=problem.key)


def _token_majority(entries: Entries, length: str, results: Results) -> float | None:
    """Return the majority baseline's share of right positions, from a curve that has it.

    A curve lacks some lengths; between its points the baseline is interpolated.
    """
    for entry in entries.values():
        for result in entry.done(results):
            curve = (result.get("trained") or {}).get("curve") or {}
            if "majority" in curve and curve["lengths"][-1] >= int(length):
                positions = np.arange(1, int(length) + 1)
                return float(np.interp(positions, curve["lengths"], curve["majority"]).mean())
    return None


def curve_figures(
    problem: Problem, entries: Entries, settings: Settings, results: Results
) -> list[Figure]:
    """Return the curves of the best seed of each model (Figure 4) and of all seeds (Figure 7)."""
    best: list[Series] = []
    every: list[Series] = []
    for entry in entries.values():
        done = entry.reported(results)
        top = max(map(_curve, done), key=lambda line: sum(line.values()), default={})
        if top:
            best.append(Series(entry.title, [*top], [*top.values()], group=entry.title))
        every += seed_lines(entry.title, done, _curve)
    trained = problem.training_length(settings)
    heads = (("best seed", best), ("all seeds", every))
    return [
        Figure(
            f"{problem.title}: {what}",
            "sequence length",
            "share of sequences right at every position",
            series,
            log_x=True,
            marks=((trained, "training length"),),
            y_range=(-0.05, 1.05),
            name=f"{problem.key}-{what.replace(' ', '-')}",
        )
        for what, series in heads
        if series
    ]


def model_figures(problem: Problem, entries: Entries, results: Results) -> list[Figure]:
    """Return the learning curves and the eigenvalues of each model."""
    groups = {entry.title: done for entry in entries.values() if (done := entry.reported(results))}
    made = [
        learning_figure(f"{problem.title}: learning curves", groups),
        spectrum_figure(f"{problem.title}: eigenvalues after training", groups),
    ]
    return [figure for figure in made if figure is not None]


def _curve(result: Mapping[str, Any]) -> dict[float, float]:
    curve = (result.get("trained") or {}).get("curve")
    if curve is None:
        return {}
    return dict(zip(curve["lengths"], curve["sequence_accuracy"], strict=True))


def comparison_sentences(
    problem: Problem, entries: Entries, settings: Settings, results: Results
) -> list[str]:
    """Compare both ranges of every model up to twice the training length; count exact models."""
    sentences = []
    nothing: dict[str, list[str]] = {}  # models without a right sequence in either range, by length
    lengths = problem.lengths(settings)
    by_key = {model.key: entry for model, entry in entries.items()}
    for model, entry in entries.items():
        other = by_key.get(model.key.replace("-neg", "-pos"))
        if "-neg" not in model.key or other is None:
            continue
        for length in lengths[:2]:
            score = sequence_accuracy(length)
            both = [spread_of(c.reported(results), score) for c in (entry, other)]
            if all(s is not None and s.best == 0 and not s.failed for s in both):
                nothing.setdefault(length, []).append(entry.title.replace(" [-1,1]", ""))
                continue
            what = f"{problem.title}, length {length}"
            order = comparison_sentence(entry, other, results, what, score)
            sentences += [] if order is None else [order]
        if model.harden and entry.reported(results):
            count = entry.count_text(results, exact(lengths))
            sentences.append(
                f"{problem.title}: {entry.title} is right at every position of every evaluated "
                f"length ({', '.join(lengths)}) after hardening for {count} seeds"
                f"{without_result(results, entry)}."
            )
    return sentences + [
        f"{problem.title}, length {length}: no sequence is right at every position, in either "
        f"range, for {'; '.join(titles)}."
        for length, titles in nothing.items()
    ]


def cut_notes(rows: Mapping[Problem, Entries]) -> list[str]:
    """State every difference between the scale laptop and the paper."""
    where: dict[str, list[str]] = {}  # the problems with this training of a model
    for problem, row in rows.items():
        for text in dict.fromkeys(_training_text(model, entry) for model, entry in row.items()):
            where.setdefault(text, []).append(problem.title)
    texts: dict[tuple[str, ...], list[str]] = {}
    for text, titles in where.items():
        texts.setdefault(tuple(titles), []).append(text)

    def tasks(titles: tuple[str, ...]) -> str:
        return "All tasks" if len(titles) == len(rows) else " and ".join(titles)

    lengths = "; ".join(f"{p.title}: {f'{p.shortest}-' if p.shortest else ''}{p.length}"
                        for p in rows)  # fmt: skip
    return [
        "Scale laptop: batch 64, endless data, warm-up over 5 % of the steps, cosine to 0, no "
        "weight decay. Runs in stages: warm-up over 5 % of the first stage, then a constant "
        "learning rate until the last stage, in which it falls as a cosine to 0. The paper: width "
        "128, 4 heads, 312,500 steps of 512 sequences, 1.6M sequences that are fixed across seeds, "
        "constant learning rate 1e-4, weight decay 0.01. Both clip gradients to 1.",
        *(f"{tasks(titles)}: {'; '.join(found)}." for titles, found in texts.items()),
        f"Training lengths: {lengths}. The paper: 32, and 64 with several tokens per element.",
        "Evaluated on 256 sequences; the paper on 40,000 of length 500.",
    ]


def _training_text(model: Model, entry: Entry) -> str:
    """Say how a model is trained; both ranges are trained alike."""
    config = entry.make(model.lr, 0).config
    mixer, training = config.model.pattern[0], config.training
    name = model.label.replace(f" [{-1 if model.neg else 0},1]", "")
    heads = getattr(mixer, "num_heads", None)
    size = f"width {config.model.hidden_size}{f', {heads} heads' if heads else ''}"
    if model.mixer == "full_matrix":
        size = "one-hot tokens"
    return f"{name}: {size}, {training.steps:,} steps, learning rate {training.lr:g}"
