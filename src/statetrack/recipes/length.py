"""`length`: remedies for errors at long lengths, alone and combined, and how far they are exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from statetrack.recipes.length_runs import (
    ARM,
    COMPILED,
    MAX_TOKENS,
    Subject,
    entries,
    evaluated_lengths,
    run_config,
)
from statetrack.recipes.recipe import Recipe, Results, Settings, facts, register
from statetrack.recipes.selection import Entry, exact_seeds, sequence_accuracy
from statetrack.report.document import Cell, Document, Figure, Table
from statetrack.report.results import hardening_figure, learning_figure
from statetrack.sweep.job import Job

Row = Mapping[tuple[str, bool], Entry]  # the arms of a subject, by key and range


def jobs(settings: Settings, results: Results) -> list[Job]:
    """List the runs of all arms and their controls with eigenvalues in [0,1]."""
    listed = [c for row in entries(settings).values() for c in row.values()]
    return [job for c in listed for job in c.jobs(results)]


def document(settings: Settings, results: Results) -> Document:
    """Make a table of the arms of each subject, and one of the chosen arms."""
    rows = entries(settings)
    final = [_final(subject, row, settings, results) for subject, row in rows.items()]
    return Document(
        name="length",
        title=RECIPE.title,
        summary=[text for _, text in final if text] or ["No run is done yet."],
        tables=[
            Table(
                "The chosen arm, hardened, on fresh seeds",
                ["task", "arm", "trained on", "seeds", "longest evaluated", "exact there",
                 "wrong lengths"],
                [row for row, _ in final],
                "Exact: right at every position of every sequence of every evaluated length. The "
                "longest evaluation has one sequence per seed.",
                name="final",
            ),
            *(_table(subject, row, settings, results) for subject, row in rows.items()),
            _training_table(settings),
        ],
        figures=[f for s, row in rows.items() for f in _figures(s, row, results)],
        notes=_notes(settings),
        facts=facts("length", settings, jobs(settings, results), results),
        configs={
            f"{subject.title}, {c.title}": c.reported_jobs(results)[0].config.to_json()
            for subject, row in rows.items()
            for c in row.values()
        },
    )  # fmt: skip


def _table(subject: Subject, row: Row, settings: Settings, results: Results) -> Table:
    """Count for every arm the seeds that are right at every position, at each length."""
    lengths = evaluated_lengths(subject, settings)
    rows: list[list[Cell]] = []
    for c in row.values():
        done = [r for r in c.reported(results) if r.get("trained") is not None]
        rows.append([c.title, f"{len(done)} of {len(c.seeds)}", *_counts(done, lengths, "trained")])
        if c.reported_jobs(results)[0].harden:
            changed = sum(bool((r.get("harden") or {}).get("changed")) for r in done)
            rows.append(
                [f"{c.title}, hardened", f"{changed} of {len(done)} hardened",
                 *_counts(done, lengths, "hardened")]
            )  # fmt: skip
    note = (
        "Seeds that are right at every position of every sequence, by length; in brackets the mean "
        f"share of right positions. Trained on {_trained(subject)}."
    )
    return Table(subject.title, ["arm", "seeds", *lengths], rows, note, name=subject.key)


def _training_table(settings: Settings) -> Table:
    """List how the plain arm of each subject is trained."""
    rows: list[list[Cell]] = []
    for subject in entries(settings):
        config = run_config(subject, ARM["plain"], settings, 0)
        model, t = config.model, config.training
        low, high = t.min_length, t.max_length
        rows.append(
            [subject.title, model.title, model.hidden_size, subject.heads,
             f"{low}" if low == high else f"{low}-{high}", f"{t.steps:,}", t.batch_size,
             f"{t.lr:g}", "none" if t.clip is None else f"{t.clip:g}", f"{subject.eps:g}"]
        )  # fmt: skip
    heads = ["task", "model", "width", "heads", "lengths", "steps", "batch", "learning rate",
             "clipping", "epsilon as remedy"]  # fmt: skip
    note = (
        "The plain arm; the others change what their name says. Warm-up over 5 % of the steps, "
        "cosine to 0, no weight decay, endless data."
    )
    return Table("Training", heads, rows, note, name="training")


def _figures(subject: Subject, row: Row, results: Results) -> list[Figure]:
    """Draw the arms; of the controls and of the hardened models those of the chosen arm."""
    drawn = {c.title: c.reported(results) for (key, neg), c in row.items()
             if neg or key == subject.final}  # fmt: skip
    lengths = hardening_figure(
        subject.title,
        drawn,
        subject.lengths[1],
        hardened=(row[subject.final, True].title,),
        note="Means over seeds; dashed: hardened. The lengths 40-256 stand at 256. Of the controls "
        "with [0,1], that of the chosen arm is drawn.",
        name=f"{subject.key}-lengths",
    )
    learning = learning_figure(f"{subject.title}: learning curves", drawn)
    return [figure for figure in (lengths, learning) if figure is not None]


def _trained(subject: Subject) -> str:
    low, high = subject.lengths
    return f"length {low}" if low == high else f"lengths {low}-{high}"


def _counts(done: Sequence[Mapping[str, Any]], lengths: Sequence[str], of: str) -> list[Cell]:
    cells: list[Cell] = []
    for length in lengths:
        found = [(r.get(of) or {}).get("evaluations", {}).get(length) for r in done]
        measured = [e for e in found if e is not None]
        if not measured:
            cells.append(None)
            continue
        exact = sum(e["sequence_accuracy"] == 1.0 for e in measured)
        mean = sum(e["token_accuracy"] for e in measured) / len(measured)
        cells.append(f"{exact} of {len(done)} ({mean:.3f})")
    return cells


def _final(
    subject: Subject, row: Row, settings: Settings, results: Results
) -> tuple[list[Cell], str]:
    """Return the row and the sentence of the chosen arm."""
    c = row[subject.final, True]
    job = c.reported_jobs(results)[0]
    done = [r for r in c.reported(results) if r.get("trained") is not None]
    longest = job.hardened_lengths[-1]
    lengths = (*job.lengths, longest)
    first: list[Cell] = [subject.title, c.title, _trained(subject),
                          f"{len(done)} of {len(c.seeds)}"]  # fmt: skip
    if not done:
        return [*first, None, None, None], ""
    exact = exact_seeds(done, lengths)
    tokens = f"{int(longest):,}"
    wrong = [n for n in lengths if exact_seeds(done, (n,)) < len(done)]
    sentence = (
        f"{subject.title}: {c.title}, hardened, is exact at {tokens} tokens for {exact} of "
        f"{len(done)} seeds, trained on {_trained(subject)} only."
    )
    control = row.get((subject.final, False))
    controls = [] if control is None else [r for r in control.reported(results) if r.get("trained")]
    if controls:
        shortest = job.lengths[0]
        right = sum(sequence_accuracy(shortest)(r) == 1.0 for r in controls)
        sentence += f" With [0,1], {right} of {len(controls)} are exact at {shortest}."
    return [*first, tokens, f"{exact} of {len(done)}", ", ".join(wrong) or "none"], sentence


def _notes(settings: Settings) -> list[str]:
    notes = [
        "The paper has no such experiment. Each remedy is added alone to the plain model, then the "
        "three that change the model or its loss together; docs/length-generalisation.md explains "
        "them. All models have one layer without convolution.",
        "The state is carried from half of the steps on, over 4 batches: such a run has seen "
        "longer sequences than its training length.",
        f"Evaluations have 64 sequences, but at most {MAX_TOKENS:,} tokens: 2 sequences of "
        "100,000; one of 1,000,000, for hardened models only. Controls with [0,1] are evaluated up "
        "to 1,000.",
        "Full S5, A5 and S4 are trained in stages with growing inputs, as in the recipe s5: A5 and "
        "S4 in the plain arm, S5 also with the three remedies, alone and together. Only their "
        "plain arms have a control with [0,1]. A state cannot be carried through stages.",
        "3-permutations, S5, A5 and S4 have no compiled start.",
        "Compiled start: another model, the one-layer gated DeltaProduct [-1,1] that the task's "
        "automaton is compiled to, on another form of the task, which has no BOS and asks for the "
        "automaton's state. Its exact weights get Gaussian noise of standard deviation "
        f"{COMPILED.noise:g}; then it is trained for {COMPILED.training['steps']} steps with "
        f"a learning rate of {COMPILED.training['lr']:g}, chosen on seed 100, and clipping at 1.",
    ]
    if settings.scale == "paper":
        notes.append("Scale paper: the laptop's runs with 20 seeds in every arm.")
    return notes


RECIPE = register(
    Recipe(
        name="length",
        aliases=(),
        title="Length generalisation: remedies alone and combined, exact at 1,000,000 tokens",
        jobs=jobs,
        document=document,
    )
)
