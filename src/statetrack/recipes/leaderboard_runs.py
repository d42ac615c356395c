"""The runs of `leaderboard`: every mixer of the package on three tasks, by one protocol."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial

from statetrack.config import hints
from statetrack.layers import MIXERS, DeltaNetConfig
from statetrack.models import ModelConfig
from statetrack.recipes import presets
from statetrack.recipes.paper_models import formal_model
from statetrack.recipes.recipe import Settings, shortened
from statetrack.recipes.selection import Entry, evaluated
from statetrack.sweep.job import Job
from statetrack.tasks import Task, make_task
from statetrack.training import RunConfig, Stage, TrainingConfig


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
        size = (128, paper.model.num_layers, 4, paper_conv(paper))
    training = replace(training, lr=lr, seed=seed)
    if training.dataset_size is None:
        training = replace(training, data_seed=seed)
    return RunConfig(task, model(mixer, allow, task, *size), training, stages)


def paper_conv(paper: RunConfig) -> int:
    """Return the width of the convolution in the paper's model."""
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
