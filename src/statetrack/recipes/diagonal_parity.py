"""`diagonal-parity`: Figure 1, a diagonal RNN on parity, accuracy against steps."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

from statetrack.recipes import presets
from statetrack.recipes.chomsky_runs import TEST
from statetrack.recipes.published import FIGURE_1
from statetrack.recipes.recipe import Recipe, Results, Settings, facts, register, shortened
from statetrack.recipes.selection import Entry, comparison_sentence, validated
from statetrack.report.document import Cell, Document, Figure, Series, Table
from statetrack.report.results import by_validation_step, seed_lines, spectrum_figure
from statetrack.sweep.job import Job
from statetrack.training import length_range

LR = 1e-3
LAPTOP_STEPS = 2000
LAPTOP_EVERY = 25  # steps between validations: [-1,1] rises within 200 steps
LAPTOP_SECONDS = 50  # expected per run
RANGES = {"Diagonal RNN [0,1]": False, "Diagonal RNN [-1,1]": True}


@cache
def entries(settings: Settings) -> list[Entry]:
    """List the two models of the figure."""

    def maker(title: str, allow: bool) -> Entry:
        return Entry(
            "parity", title, lambda lr, seed: _job(settings, allow, lr, seed), (LR,),
            settings.reported_seeds, validated(TEST),
        )  # fmt: skip

    return [maker(title, allow) for title, allow in RANGES.items()]


def _job(settings: Settings, allow: bool, lr: float, seed: int) -> Job:
    config = presets.paper("diagonal_rnn", "parity", allow_neg_eigval=allow, seed=seed)
    seconds = 20_000 * 0.01
    if settings.scale != "paper":
        training = replace(
            config.training, steps=LAPTOP_STEPS, eval_every=LAPTOP_EVERY, eval_samples=512
        )
        config, seconds = replace(config, training=training), LAPTOP_SECONDS
    job = Job(
        name=f"{config.model.title} seed {seed}",
        config=replace(config, training=replace(config.training, lr=lr)),
        lengths=(TEST,),
        samples=8192 if settings.scale == "paper" else 1024,
        spectrum=True,
        seconds=seconds,
    )
    return shortened(job) if settings.scale == "smoke" else job


def jobs(settings: Settings, results: Results) -> list[Job]:
    """List the runs of both ranges."""
    return [job for entry in entries(settings) for job in entry.jobs(results)]


def document(settings: Settings, results: Results) -> Document:
    """Make Figure 1 and a table of the last validation."""
    both = entries(settings)
    listed = jobs(settings, results)
    return Document(
        name="diagonal-parity",
        title=RECIPE.title,
        summary=_summary(both, results),
        tables=[_table(both, results)],
        figures=_figures(both, results),
        notes=_notes(settings),
        facts=facts("diagonal-parity", settings, listed, results),
        configs={c.title: c.reported_jobs(results)[0].config.to_json() for c in both},
    )


def _summary(both: list[Entry], results: Results) -> list[str]:
    order = comparison_sentence(
        both[1], both[0], results, f"parity at the last step, lengths {TEST}"
    )
    return ["No run is done yet." if order is None else order]


def _table(both: list[Entry], results: Results) -> Table:
    rows: list[list[Cell]] = []
    for entry in both:
        spread = entry.spread(results)
        if spread is None:
            rows.append([entry.title, entry.seeds_text(results), *[None] * 5])
        else:
            rows.append([entry.title, entry.seeds_text(results), spread.best, spread.median,
                         spread.mad, spread.mean, spread.std])  # fmt: skip
    heads = ["model", "seeds", "best", "median", "MAD", "mean", "std"]
    return Table(f"Validation at the last step, scaled, lengths {TEST}", heads, rows, name="last")


def _figures(both: list[Entry], results: Results) -> list[Figure]:
    scaled: list[Series] = []
    raw: list[Series] = []
    for entry in both:
        done = entry.reported(results)
        for series, field in ((scaled, "scaled"), (raw, "score")):
            line = partial(by_validation_step, length_range(TEST), field)
            series += seed_lines(entry.title, done, line, std=True)
    found = []
    if scaled:
        note = f"Mean and standard deviation over seeds, as in the paper. {FIGURE_1}"
        found.append(
            Figure(
                "Accuracy against steps (Figure 1)", "step", "scaled accuracy (chance is 0)",
                scaled, y_range=(-0.15, 1.05), raw=raw, raw_label="accuracy", note=note,
                name="figure1",
            )
        )  # fmt: skip
    groups = {entry.title: entry.reported(results) for entry in both}
    spectrum = spectrum_figure("Eigenvalues after training", groups)
    return found if spectrum is None else [*found, spectrum]


def _notes(settings: Settings) -> list[str]:
    notes = [
        "The authors' configuration for [0,1] has 2,000 steps, that for [-1,1] 20,000; the figure "
        "shows 20,000 for both, and so do we. No warm-up for either.",
    ]
    if settings.scale == "laptop":
        notes.append(
            f"{LAPTOP_STEPS:,} steps instead of 20,000; validation every {LAPTOP_EVERY} steps "
            "instead of 200, on 512 sequences instead of 8,192; "
            f"{len(settings.reported_seeds)} seeds instead of 3."
        )
    return notes


RECIPE = register(
    Recipe(
        name="diagonal-parity",
        aliases=("fig1",),
        title="A diagonal RNN on parity (Figure 1)",
        jobs=jobs,
        document=document,
    )
)
