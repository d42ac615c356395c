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
from statetrack.recipes.selection import Entry, exact, without_result
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
                f"The chosen arm, hardened, on {_seeds(rows)} seeds",
                ["task", "arm", "trained on", "seeds", "longest evaluated", "exact there",
                 "wrong lengths", "automaton is the task's"],
                [row for row, _ in final],
                "Exact: right at every position of every sequence of every evaluated length. The "
                "longest evaluation has one sequence per seed. Automaton: the one that was read "
                "off the hardened model. Runs that failed, and models that could not be hardened, "
                "count as not exact.",
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


def _seeds(rows: Mapping[Subject, Row]) -> str:
    """Return the numbers of seeds of the chosen arms, such as "20 or 5"."""
    counts = {len(row[subject.final, True].seeds) for subject, row in rows.items()}
    return " or ".join(map(str, sorted(counts, reverse=True)))


def _table(subject: Subject, row: Row, settings: Settings, results: Results) -> Table:
    """Count for every arm the seeds that are right at every position, at each length."""
    lengths = evaluated_lengths(subject, settings)
    rows: list[list[Cell]] = []
    for c in row.values():
        rows.append([c.title, c.seeds_text(results), *_counts(c, results, lengths, "trained")])
        if c.reported_jobs(results)[0].harden:
            changed = c.count_text(results, lambda r: bool((r.get("harden") or {}).get("changed")))
            rows.append([f"{c.title}, hardened", f"{changed} hardened",
                         *_counts(c, results, lengths, "hardened")])  # fmt: skip
    note = (
        "Seeds that are right at every position of every sequence, by length; in brackets the mean "
        "share of right positions of the models that were evaluated. Trained on "
        f"{_trained(subject)}."
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
        "cosine to 0, no weight decay, endless data. Runs in stages: warm-up over 5 % of the first "
        "stage, then a constant learning rate until the last stage, in which it falls as a cosine "
        "to 0."
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


def _counts(c: Entry, results: Results, lengths: Sequence[str], of: str) -> list[Cell]:
    cells: list[Cell] = []
    done = c.done(results)
    for length in lengths:
        found = [(r.get(of) or {}).get("evaluations", {}).get(length) for r in done]
        measured = [e for e in found if e is not None]
        if not measured:
            cells.append(None)
            continue
        mean = sum(e["token_accuracy"] for e in measured) / len(measured)
        cells.append(f"{c.count_text(results, exact((length,), of))} ({mean:.3f})")
    return cells


def _final(
    subject: Subject, row: Row, settings: Settings, results: Results
) -> tuple[list[Cell], str]:
    """Return the row and the sentence of the chosen arm."""
    c = row[subject.final, True]
    job = c.reported_jobs(results)[0]
    ended = c.reported(results)
    longest = job.hardened_lengths[-1]
    lengths = (*job.lengths, longest)
    first: list[Cell] = [subject.title, c.title, _trained(subject), c.seeds_text(results)]
    if not ended:
        return [*first, None, None, None, None], ""
    count = c.count_text(results, exact(lengths))
    tokens = f"{int(longest):,}"
    wrong = [n for n in lengths if not all(map(exact((n,)), ended))]
    sentence = (
        f"{subject.title}: {c.title}, hardened, is exact at {tokens} tokens for {count} seeds"
        f"{without_result(results, c)}, trained on {_trained(subject)} only."
    )
    control = row.get((subject.final, False))
    if control is not None and control.reported(results):
        shortest = job.lengths[0]
        right = control.count_text(results, exact((shortest,), "trained"))
        sentence += (
            f" With [0,1], {right} are exact at {shortest}{without_result(results, control)}."
        )
    automata = c.count_text(results, _is_the_tasks)
    return [*first, tokens, count, ", ".join(wrong) or "none", automata], sentence


def _is_the_tasks(result: Mapping[str, Any]) -> bool:
    """Whether the automaton that was read off the hardened model is the task's."""
    automaton = (result.get("harden") or {}).get("automaton") or {}
    return bool(automaton.get("is_the_tasks"))


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
        "The seeds of Z3 are no fresh test of hardening: `harden` was improved on models of Z3 "
        "that failed with these seeds.",
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
