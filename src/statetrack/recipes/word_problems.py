"""The models of the word problems (Figures 4, 7 and 8) at every scale, as jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from statetrack.layers import DeltaNetConfig, DeltaProductConfig, MixerConfig
from statetrack.models import ModelConfig
from statetrack.recipes import presets
from statetrack.recipes.paper_models import word_problem_model
from statetrack.recipes.recipe import Settings
from statetrack.recipes.selection import Entry, sequence_accuracy
from statetrack.recipes.stages import Growth, growing_stages
from statetrack.sweep.job import Job
from statetrack.tasks import make_task
from statetrack.tasks.word_problem import GroupWordProblem
from statetrack.training import RunConfig, Stage, TrainingConfig

EPOCH = 3125  # steps: 1.6M sequences in batches of 512
SMOKE_STEPS = 5


@dataclass(frozen=True)
class Problem:
    """A word problem, and how it is cut for a laptop."""

    key: str
    title: str
    task: str
    length: int  # of the training sequences on a laptop
    evaluated: tuple[int, ...]  # lengths on a laptop, the training length first
    curve: int  # the longest length of the curve on a laptop
    options: tuple[tuple[str, Any], ...] = ()  # of the task
    early_epochs: int = 90
    finding: str = ""  # what the paper says of its figure
    shortest: int | None = None  # least training length on a laptop; None: `length`

    def make_task(self) -> GroupWordProblem:
        """Return the task."""
        task = make_task(self.task, **dict(self.options))
        assert isinstance(task, GroupWordProblem)
        return task

    def training_length(self, settings: Settings) -> int:
        """Return the length of the training sequences."""
        if settings.scale == "paper":
            return 32 if self.make_task().tokens_per_element == 1 else 64
        return 4 if settings.scale == "smoke" else self.length

    def lengths(self, settings: Settings) -> tuple[str, ...]:
        """Return the lengths of the tables, the training length first."""
        n = self.training_length(settings)
        if settings.scale == "paper":
            return (*(str(k * n) for k in (1, 2, 4) if k * n < 500), "500")
        return (
            (str(n), str(2 * n)) if settings.scale == "smoke" else tuple(map(str, self.evaluated))
        )


@dataclass(frozen=True)
class Model:
    """A line of a figure; `steps` and `lr` are those on a laptop."""

    mixer: str
    neg: bool
    layers: int
    steps: int = 600
    lr: float = 3e-3
    factors: int = 1  # Householder factors per token; above 1 the mixer is DeltaProduct
    conv: int = 0
    start: str = ""  # the task whose inputs come first, if the run has stages
    growth: Growth | None = None  # of those inputs, on a laptop
    lengths: tuple[int, ...] = ()  # those of the first stages
    harden: bool = False
    published: bool = True  # whether the paper's figure has it
    step_ms: float = 35.0  # CPU milliseconds of a laptop's step
    width: int = 64
    heads: int = 4  # of DeltaNet and DeltaProduct
    beta_stretch: float = 0.0  # of DeltaNet and DeltaProduct
    compiled: str | None = None  # weights to start from; see Job
    noise: float = 0.0  # on those weights
    spectra: bool = False  # keep the eigenvalues of every seed, not only of seed 0

    @property
    def label(self) -> str:
        """What tables and figures call it."""
        title = word_model(self, 8, 16).title
        layers = f"{self.layers} layer{'s' if self.layers > 1 else ''}"
        parts = [title, layers, *([f"conv {self.conv}"] if self.conv else [])]
        parts += ["in stages"] if self.start or self.lengths else []
        noise = f" with noise {self.noise:g}" if self.noise else ""
        parts += [f"from the compiled solution{noise}"] if self.compiled else []
        return ", ".join(parts)

    @property
    def key(self) -> str:
        """A short name for folders."""
        sign = "" if self.mixer == "full_matrix" else "-neg" if self.neg else "-pos"
        factors = f"-n{self.factors}" if self.factors > 1 else ""
        start = f"-{self.compiled}-noise{self.noise:g}" if self.compiled else ""
        conv = f"-conv{self.conv}" if self.conv else ""
        return f"{self.mixer}{sign}{factors}-{self.layers}l{conv}{start}"


# the lines of Figure 4
FIGURE_4 = (
    Model("delta_net", False, 1),
    Model("delta_net", True, 1),
    Model("delta_net", False, 5, steps=400, lr=1e-3, step_ms=130),
    Model("delta_net", True, 5, steps=400, lr=1e-3, step_ms=130),
    Model("mamba", False, 5, steps=400, lr=1e-3, step_ms=100),
    Model("mamba", True, 5, steps=400, lr=1e-3, step_ms=100),
    Model("full_matrix", False, 1, steps=400, step_ms=80),
)


def word_model(model: Model, vocab_size: int, width: int) -> ModelConfig:
    """Return the paper's model for word problems, of another width and with other options."""
    made = word_problem_model(
        "delta_net" if model.factors > 1 else model.mixer,
        vocab_size,
        num_layers=model.layers,
        allow_neg_eigval=model.neg,
    )
    if isinstance(made.mixer, DeltaNetConfig):
        options: dict[str, Any] = {
            "allow_neg_eigval": model.neg,
            "num_heads": model.heads,
            "conv_size": model.conv,
            "beta_stretch": model.beta_stretch,
        }
        if model.factors > 1:
            mixer: MixerConfig = DeltaProductConfig(num_householder=model.factors, **options)
        else:
            mixer = DeltaNetConfig(**options)
        made = replace(made, mixer=mixer)
    return made if model.mixer == "full_matrix" else replace(made, hidden_size=width)


def run_config(problem: Problem, model: Model, settings: Settings, seed: int) -> RunConfig:
    """Return the run of a model on a problem.

    At paper scale it is the preset `paper`; models that the paper's figure does not have take its
    training, with endless data if they have stages.
    """
    task = problem.make_task()
    if settings.scale == "paper":
        config = _paper(problem, model, task, settings, seed)
    else:
        smoke = settings.scale == "smoke"
        length = problem.training_length(settings)
        training = presets.quick_training(
            SMOKE_STEPS if smoke else model.steps,
            model.lr,
            seed,
            batch_size=8 if smoke else 64,
            min_length=length if smoke else problem.shortest or length,
            max_length=length,
            clip=1.0,
        )
        width = max(16, model.heads) if smoke else model.width
        config = RunConfig(task, word_model(model, len(task.vocab), width), training)
    if model.lengths:
        training = replace(config.training, dataset_size=None)
        return replace(config, training=training, stages=_length_stages(model, training))
    if not model.start:
        return config
    steps = None if settings.scale == "laptop" else config.training.steps
    growth = model.growth
    if settings.scale == "smoke":
        growth = Growth(batch=60, first=1, each=1, last=1)
    stages = growing_stages(task, model.start, growth, steps)
    total = sum(stage.steps for stage in stages)
    training = replace(config.training, steps=total, dataset_size=None)
    return replace(config, training=training, stages=stages)


def _length_stages(model: Model, training: TrainingConfig) -> tuple[Stage, ...]:
    """Return a stage for each of the model's lengths, until it is learned, and a last one.

    The last stage has the lengths of the run.
    """
    lengths = [n for n in model.lengths if n < training.max_length]
    steps = training.steps // (len(lengths) + 1)
    first = [
        Stage(steps=steps, min_length=n, max_length=n, schedule="constant",
              warmup=None if i == 0 else 0.0, until=0.99)
        for i, n in enumerate(lengths)
    ]  # fmt: skip
    rest = training.steps - steps * len(first)
    return (*first, Stage(steps=rest, schedule="cosine", warmup=0.0))


def _paper(
    problem: Problem, model: Model, task: GroupWordProblem, settings: Settings, seed: int
) -> RunConfig:
    published = model.published and problem.task in presets.WORD_PROBLEMS
    config = presets.paper(
        model.mixer if published else "delta_net",
        problem.task if published else "S5",
        allow_neg_eigval=model.neg,
        seed=seed,
        num_layers=model.layers,
        **dict(problem.options),
    )
    if not published:
        config = replace(config, task=task, model=word_model(model, len(task.vocab), 128))
    if not settings.early:
        return config
    steps = problem.early_epochs * EPOCH
    return replace(config, training=replace(config.training, steps=steps, eval_every=steps))


def make_job(problem: Problem, model: Model, settings: Settings, seed: int) -> Job:
    """Return the job of a model on a problem."""
    config = run_config(problem, model, settings, seed)
    samples = {"smoke": 8, "laptop": 256, "paper": 40_000}[settings.scale]
    n = problem.training_length(settings)
    curve = {"smoke": 2 * n, "laptop": problem.curve, "paper": 500}[settings.scale]
    return Job(
        name=f"{problem.key}-{model.key}-s{seed}",
        config=config,
        lengths=problem.lengths(settings),
        curve=curve,
        samples=samples,
        harden=model.harden,
        compiled=model.compiled,
        noise=model.noise,
        spectrum=(model.spectra or seed == 0) and model.mixer != "full_matrix",
        seconds=_seconds(problem, model, config, settings),
    )


def _seconds(problem: Problem, model: Model, config: RunConfig, settings: Settings) -> float:
    """Estimate the CPU seconds of a job by those of a step of 64 sequences of 32 tokens."""
    t = config.training
    tokens = t.batch_size * t.max_length * (t.steps if settings.scale != "smoke" else 1)
    width = (config.model.hidden_size / 64) ** 2 if settings.scale == "paper" else 1.0
    train = model.step_ms / 1000 * tokens / (64 * 32) * width
    return round(2 + train + (40 if model.harden and settings.scale != "smoke" else 0), 1)


def problem_entries(
    problem: Problem, models: Sequence[Model], settings: Settings, published: int
) -> dict[Model, Entry]:
    """Return every model on a problem; `published` is the paper's number of seeds."""
    seeds = settings.reported_seeds
    if settings.scale == "paper" and settings.seeds is None:
        seeds = tuple(range(1 if settings.early else published))

    def make(model: Model) -> Callable[[float, int], Job]:
        return lambda lr, seed: make_job(problem, model, settings, seed)

    score = sequence_accuracy(problem.lengths(settings)[0])
    return {m: Entry(problem.title, m.label, make(m), (m.lr,), seeds, score) for m in models}
