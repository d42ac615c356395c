"""`leaderboard`: every mixer of the package on three tasks, in both ranges, by one protocol."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial

from statetrack.config import hints
from statetrack.layers import MIXERS, DeltaNetConfig
from statetrack.models import ModelConfig
from statetrack.recipes import presets
from statetrack.recipes.paper_models import formal_model
from statetrack.recipes.recipe import Recipe, Results, Settings, facts, register, shortened
from statetrack.recipes.selection import (
    Entry,
    Score,
    evaluated,
    intervals_disjoint,
    not_judged,
    spread_of,
)
from statetrack.report.document import Cell, Document, Figure, Table
from statetrack.report.results import length_figure, spectrum_figure
from statetrack.report.spread import CLAIM_SEEDS, Spread
from statetrack.sweep.job import Job
from statetrack.tasks import Task, make_task
from statetrack.tasks.baseline import STANDARD_ERROR
from statetrack.training import RunConfig, Stage, TrainingConfig, length_range
from statetrack.training.evaluate import scaled

MAJORITY = "majority baseline"
MAJORITY_ERROR = 2 * STANDARD_ERROR  # a baseline this close to chance may be an error of sampling


@dataclass(frozen=True)
class LeaderboardTask:
    """A task of the leaderboard: its small model, training and measurements."""

    task: Task
    paper_task: Task
    width: int
    layers: int
    heads: int
    conv: int
    training: TrainingConfig
    lengths: tuple[str, ...]
    score: tuple[str, str]  # lengths and field of the evaluation that ranks
    also: tuple[tuple[str, str], ...] = ()  # others that the table shows
    stages: tuple[Stage, ...] = ()
    seconds: float = 10.0  # expected per run
    trained: int = 40  # greatest training length
    curve: int | None = None


TASKS: dict[str, LeaderboardTask] = {
    "parity": LeaderboardTask(
        make_task("parity", supervision="dense"),
        make_task("parity"),
        width=32, layers=1, heads=2, conv=0,
        training=presets.quick_training(800, 1e-2, 0, clip=1.0),
        lengths=("3-40", "40-256"),
        score=("40-256", "scaled"),
        also=(("3-40", "scaled"),),
        seconds=13.0,
        curve=256,
    ),
    "S5 swaps": LeaderboardTask(
        make_task("S5_only_swaps"),
        make_task("S5_only_swaps"),
        width=64, layers=1, heads=4, conv=0,
        training=presets.quick_training(
            600, 3e-3, 0, min_length=32, max_length=32, clip=1.0
        ),
        lengths=("32", "64", "128", "256"),
        score=("128", "scaled"),
        also=(("32", "scaled"), ("32", "token_accuracy")),
        seconds=18.0,
        trained=32,
    ),
    "modular arithmetic": LeaderboardTask(
        make_task("modular_arithmetic", modulus=3, supervision="dense"),
        make_task("modular_arithmetic"),
        width=64, layers=2, heads=4, conv=4,
        training=presets.quick_training(700, 3e-3, 0, clip=1.0),
        stages=(
            Stage(steps=200, max_length=10, schedule="constant"),
            Stage(steps=150, max_length=20, schedule="constant", warmup=0.0),
            Stage(steps=350, warmup=0.0),
        ),
        lengths=("3-40", "40-256", "16", "32", "40", "64", "128"),
        score=("40-256", "scaled"),
        also=(("3-40", "scaled"),),
        seconds=25.0,
    ),
}  # fmt: skip


def models() -> list[tuple[str, bool]]:
    """List every registered mixer, with both ranges where it has the switch."""
    return [
        (name, allow)
        for name, config in sorted(MIXERS.items())
        for allow in ((False,) if config.no_switch else (False, True))
    ]


def model(mixer: str, allow: bool, task: Task, width: int, layers: int, heads: int, conv: int
          ) -> ModelConfig:  # fmt: skip
    """Return a mixer in its own block: heads and convolution as given, if it has them.

    Full matrices read one-hot tokens and end in logits, so they have one layer of the
    vocabulary's width.
    """
    if mixer == "full_matrix":
        width, layers = len(task.vocab), 1
    wanted = {
        "num_heads": heads, "conv_size": conv, "expand_k": 1.0, "expand_v": 1.0, "d_state": 16,
        "head_dim": 2 * width // heads, "size": 16,
    }  # fmt: skip
    known = hints(MIXERS[mixer])
    options = {name: value for name, value in wanted.items() if name in known}
    made = formal_model(
        mixer, len(task.vocab), num_layers=layers, allow_neg_eigval=allow, hidden_size=width,
        **options,
    )  # fmt: skip
    return replace(made, mlp_size=2 * width) if made.mlp == "swiglu" else made


def config(settings: Settings, test: LeaderboardTask, mixer: str, allow: bool, lr: float, seed: int
           ) -> RunConfig:  # fmt: skip
    """Return a run: small, or with the paper's training and width."""
    task, training, stages = test.task, test.training, test.stages
    size = (test.width, test.layers, test.heads, test.conv)
    if settings.scale == "paper":
        paper = presets.paper("delta_net", test.paper_task.name)
        task, training, stages = test.paper_task, paper.training, ()
        size = (128, paper.model.num_layers, 4, _paper_conv(paper))
    training = replace(training, lr=lr, seed=seed)
    if training.dataset_size is None:
        training = replace(training, data_seed=seed)
    return RunConfig(task, model(mixer, allow, task, *size), training, stages)


def _paper_conv(paper: RunConfig) -> int:
    layer = paper.model.pattern[0]
    assert isinstance(layer, DeltaNetConfig)
    return layer.conv_size


def _job(settings: Settings, name: str, mixer: str, allow: bool, lr: float, seed: int) -> Job:
    test = TASKS[name]
    run = config(settings, test, mixer, allow, lr, seed)
    paper = settings.scale == "paper"
    job = Job(
        name=f"{name} {run.model.title} seed {seed}",
        config=run,
        lengths=test.lengths,
        curve=test.curve,
        samples=8192 if paper else 512,
        spectrum=seed == 0,
        seconds=run.training.steps * 4 if paper else test.seconds,
    )
    return shortened(job) if settings.scale == "smoke" else job


@cache
def entries(settings: Settings) -> list[Entry]:
    """List every model on every task."""
    found = []
    for name, test in TASKS.items():
        paper = presets.paper("delta_net", test.paper_task.name).training
        lr = paper.lr if settings.scale == "paper" else test.training.lr
        for mixer, allow in models():
            title = model(mixer, allow, test.task, test.width, 1, test.heads, test.conv).title
            make = partial(_job, settings, name, mixer, allow)
            found.append(
                Entry(name, title, make, (lr,), settings.reported_seeds, evaluated(*test.score))
            )
    return found


def jobs(settings: Settings, results: Results) -> list[Job]:
    """List all runs."""
    return [job for entry in entries(settings) for job in entry.jobs(results)]


def document(settings: Settings, results: Results) -> Document:
    """Make the table of all models, one table and figure per task, and the comparisons."""
    by_task: dict[str, dict[str, Entry]] = {name: {} for name in TASKS}
    for entry in entries(settings):
        by_task[entry.column][entry.title] = entry
    return Document(
        name="leaderboard",
        title=RECIPE.title,
        summary=_summary(by_task, results),
        tables=[
            _overview(by_task, settings, results),
            *(_detail(name, row, settings, results) for name, row in by_task.items()),
        ],
        figures=[f for name, row in by_task.items() for f in _figures(name, row, results)],
        notes=_notes(settings),
        facts=facts("leaderboard", settings, jobs(settings, results), results),
        configs={
            f"{name}, {title}": entry.reported_jobs(results)[0].config.to_json()
            for name, row in by_task.items()
            for title, entry in row.items()
        },
    )


def _measures(test: LeaderboardTask) -> dict[str, Score]:
    """Return the scores that the table shows, by column; models are ranked by the first."""
    fields = {"scaled": "", "token_accuracy": " tokens"}
    sequence = " sequences" if test.task.metric == "sequence" else ""
    return {
        f"{lengths}{fields[field] or sequence}": evaluated(lengths, field)
        for lengths, field in (test.score, *test.also)
    }


def _majority(
    test: LeaderboardTask, settings: Settings, lengths: str, field: str = "scaled"
) -> float | None:
    """Return the scaled score of the majority baseline: 0 unless a constant answer beats chance.

    None for shares of right tokens, of which it is not known.
    """
    task = test.paper_task if settings.scale == "paper" else test.task
    if field != "scaled":
        return None
    if task.metric == "sequence":
        return 0.0
    score = float(scaled(task.majority(*length_range(lengths)), task.chance))
    return score if score > MAJORITY_ERROR else 0.0


def _overview(
    by_task: Mapping[str, Mapping[str, Entry]], settings: Settings, results: Results
) -> Table:
    heads, rows = ["model"], []
    for name, test in TASKS.items():
        heads += [f"{name} {label}" for label in _measures(test)]
    for title in next(iter(by_task.values())):
        row: list[Cell] = [title]
        for name, test in TASKS.items():
            done = by_task[name][title].reported(results)
            spreads = [spread_of(done, score) for score in _measures(test).values()]
            row += [None if s is None else s.cell(s.mean) for s in spreads]
        rows.append(row)
    levels = [
        _majority(test, settings, lengths, field)
        for test in TASKS.values()
        for lengths, field in (test.score, *test.also)
    ]
    if any(levels):
        rows.append([MAJORITY, *levels])
    note = (
        "Means over seeds. Scaled accuracy on lengths (chance is 0); for S5 swaps, the share of "
        "sequences with every position right at a length, and of right tokens."
    )
    return Table("Every mixer", heads, rows, note, name="leaderboard")


def _detail(name: str, row: Mapping[str, Entry], settings: Settings, results: Results) -> Table:
    lengths, _ = TASKS[name].score
    heads = ["model", "parameters", "seeds", "mean", "low", "high", "best", "median", "MAD"]
    ranked: list[tuple[tuple[bool, float], list[Cell]]] = []
    for title, entry in row.items():
        spread, done = entry.spread(results), entry.reported(results)
        seeds = entry.seeds_text(results)
        if spread is None:
            ranked.append(((False, -math.inf), [title, None, seeds, *[None] * 6]))
            continue
        size = next((r["parameters"] for r in done if r.get("parameters")), None)
        ends = spread.interval or (None, None)
        line: list[Cell] = [title, size, seeds, spread.mean, *ends, spread.best, spread.median,
                            spread.mad]  # fmt: skip
        ranked.append(((not spread.failed, spread.mean), line))
    ranked.sort(key=lambda pair: pair[0], reverse=True)
    rows = [line for _, line in ranked]
    if level := _majority(TASKS[name], settings, lengths):
        rows.append([MAJORITY, None, None, level, *[None] * 5])
    note = (
        "Best mean first, models of which a run failed last; low and high are the 95 % interval of "
        "the mean over seeds."
    )
    return Table(f"{name[0].upper()}{name[1:]}: length {lengths}", heads, rows, note)


def _figures(name: str, row: Mapping[str, Entry], results: Results) -> list[Figure]:
    """Draw the models in [-1,1] and all others separately: one figure would have too many lines."""
    done = {title: found for title, entry in row.items() if (found := entry.reported(results))}
    wide = {title: found for title, found in done.items() if "[-1,1]" in title}
    others = {title: found for title, found in done.items() if title not in wide}
    made = []
    for which, groups in (("[-1,1]", wide), ("[0,1], or no switch", others)):
        heading = f"{name[0].upper()}{name[1:]}, {which}"
        made += [
            length_figure(
                f"{heading}: accuracy against length", groups, TASKS[name].trained, seeds=False
            ),
            spectrum_figure(f"{heading}: eigenvalues after training", groups),
        ]
    return [figure for figure in made if figure is not None]


def _summary(by_task: Mapping[str, Mapping[str, Entry]], results: Results) -> list[str]:
    sentences = []
    for name, row in by_task.items():
        judged = {t: entry for t, entry in row.items() if not entry.failed(results)}
        spreads = {t: s for t, entry in judged.items() if (s := entry.spread(results)) is not None}
        failures = not_judged(row.values(), results)
        if not spreads:
            if failures:
                sentences.append(f"{name[0].upper()}{name[1:]}: no verdict.{failures}")
            continue
        top = max(spreads, key=lambda title: spreads[title].mean)
        level = [
            t for t in spreads if t != top and not intervals_disjoint(spreads[t], spreads[top])
        ]
        others = f"those of {', '.join(level)}" if level else "no other"
        rest = f"its interval overlaps {others}"
        if spreads[top].claim_interval is None:
            rest = f"fewer than {CLAIM_SEEDS} seeds, so no difference is claimed"
        lengths, _ = TASKS[name].score
        sentences.append(
            f"{name[0].upper()}{name[1:]}, length {lengths}: {top} has the best mean, "
            f"{spreads[top].mean:.3f}; {rest}.{failures}"
        )
        sentences.append(_switch_sentence(name, spreads))
    return [text for text in sentences if text] or ["No run is done yet."]


def _switch_sentence(name: str, spreads: Mapping[str, Spread]) -> str:
    """Say for which mixers [-1,1] differs from [0,1] with disjoint intervals."""
    better: list[str] = []
    worse: list[str] = []
    level: list[str] = []
    for title, wide in spreads.items():
        narrow = spreads.get(title.replace("[-1,1]", "[0,1]"))
        if "[-1,1]" not in title or narrow is None:
            continue
        mixer = title.replace(" [-1,1]", "")
        if not intervals_disjoint(wide, narrow):
            level.append(mixer)
        else:
            (better if wide.mean > narrow.mean else worse).append(mixer)
    if not better + worse + level:
        return ""
    parts = [
        f"{word}: {', '.join(names)}"
        for word, names in (
            ("above [0,1] with disjoint intervals", better),
            ("below [0,1] with disjoint intervals", worse),
            ("no difference is claimed", level),
        )
        if names
    ]
    return f"[-1,1] on {name}: {'; '.join(parts)}."


def _notes(settings: Settings) -> list[str]:
    notes = [
        "One protocol: on a task every mixer has the same width, number of layers, heads, "
        "convolution (if it has one), steps, batch and learning rate; nothing is chosen per model. "
        "Mamba, mLSTM, sLSTM, the diagonal RNN and full matrices have the block of the code base "
        "that they come from, which differs from the default block (RMSNorm, SwiGLU, residual) in "
        "norm, MLP or residual. All other mixers, Mamba2 among them, have the default block. Full "
        "matrices read one-hot tokens and have one layer of the vocabulary's width.",
    ]
    for name, test in TASKS.items():
        t = test.training
        notes.append(
            f"{name[0].upper()}{name[1:]}{_options(test.task)}: width {test.width}, layers "
            f"{test.layers}, heads {test.heads}, convolution {test.conv or 'none'}, lengths "
            f"{t.min_length}-{t.max_length}, {t.steps:,} steps of batch {t.batch_size}, learning "
            f"rate {t.lr:g}{_stages(test)}."
        )
    if settings.scale == "paper":
        return [notes[0], _paper_note()]
    return notes


def _paper_note() -> str:
    """State which settings are the paper's, and layers and convolution on each task."""
    parts = []
    for name, test in TASKS.items():
        paper = presets.paper("delta_net", test.paper_task.name)
        layers = paper.model.num_layers
        parts.append(
            f"{name}{_options(test.paper_task)}: {layers} layer{'s' if layers > 1 else ''}, "
            f"convolution {_paper_conv(paper) or 'none'}"
        )
    return (
        "Training, width, number of layers and convolution are the paper's for DeltaNet, for every "
        f"mixer. {parts[0][0].upper()}{'; '.join(parts)[1:]}."
    )


def _stages(test: LeaderboardTask) -> str:
    if not test.stages:
        return ""
    parts = [f"{s.steps} up to length {s.max_length or test.trained}" for s in test.stages]
    return f", in stages: {', '.join(parts)}"


def _options(task: Task) -> str:
    modulus = getattr(task, "modulus", None)
    return "" if modulus is None else f" modulo {modulus}"


RECIPE = register(
    Recipe(
        name="leaderboard",
        aliases=(),
        title="Every mixer on parity, S5 swaps and modular arithmetic",
        jobs=jobs,
        document=document,
    )
)
