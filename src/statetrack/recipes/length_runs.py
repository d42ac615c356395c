"""The runs of `length`: tasks, remedies and their controls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from statetrack.compiler import compile
from statetrack.layers import DeltaNetConfig, DeltaProductConfig
from statetrack.models import ModelConfig
from statetrack.recipes import presets
from statetrack.recipes.recipe import Settings
from statetrack.recipes.selection import Entry, sequence_accuracy
from statetrack.recipes.stages import Growth, growing_stages
from statetrack.sweep.job import Job
from statetrack.tasks import make_task
from statetrack.tasks.word_problem import GroupWordProblem
from statetrack.training import RunConfig, Stage

STRETCH = {"beta_stretch": 0.1}
SATURATION = {"saturation": 0.05}
CARRY = {"carry": 4, "carry_start": 0.5}
LENGTHS = ("1000", "10000", "100000")
LONGEST = "1000000"
ARM_SEEDS = 5
MAX_TOKENS = 200_000  # of an evaluation; beyond it there are fewer sequences


@dataclass(frozen=True)
class Subject:
    """A task and the plain model and training that the remedies are added to."""

    key: str
    title: str
    task: str
    lengths: tuple[int, int]  # of the training sequences
    steps: int
    lr: float
    width: int
    heads: int
    tested: tuple[str, ...]  # short lengths to evaluate
    eps: float  # of the norm on each head's output, as a remedy
    final: str  # the chosen arm, which has the most seeds and is evaluated furthest
    final_seeds: int
    options: tuple[tuple[str, Any], ...] = ()  # of the task
    factors: int = 1
    start: str = ""  # the task whose inputs come first, if the run has stages
    arms: tuple[str, ...] = ()  # all of them but the compiled start, if empty
    compiled: float = 0.0  # CPU seconds of the compiled start; 0: there is none
    seconds: float = 20.0  # CPU seconds of a run with its evaluations


SUBJECTS = (
    Subject("parity", "Parity", "parity", (3, 40), 300, 1e-2, 32, 2, ("40-256",), 1e-2,
            "combined", 20, (("supervision", "dense"),), compiled=8, seconds=12),
    Subject("swaps", "S5, only swaps", "S5_only_swaps", (32, 32), 600, 3e-3, 64, 4,
            ("32", "128"), 1e-3, "combined", 20, compiled=60, seconds=30),
    Subject("Z3", "Z3", "Z3", (32, 32), 800, 3e-3, 64, 8, ("32", "128"), 1e-3, "plain", 20,
            factors=2, compiled=12, seconds=35),
    Subject("threes", "S5, swaps and 3-permutations", "S5_up_to_3", (16, 16), 1500, 3e-3, 64, 4,
            ("16", "64"), 1e-3, "plain", 5, factors=2, seconds=50),
    Subject("S5", "Full S5", "S5", (12, 12), 0, 2e-3, 64, 8, ("12", "24"), 1e-3, "plain", 5,
            factors=4, start="S5_up_to_3",
            arms=("plain", "stretch", "saturation", "eps", "combined"), seconds=150),
    Subject("A5", "Full A5", "A5", (12, 12), 0, 2e-3, 64, 8, ("12", "24"), 1e-3, "plain", 5,
            factors=4, start="A5_up_to_3", arms=("plain",), seconds=90),
    Subject("S4", "Full S4", "S4", (12, 12), 0, 2e-3, 64, 8, ("12", "24"), 1e-3, "plain", 5,
            factors=3, start="S4_up_to_3", arms=("plain",), seconds=60),
)  # fmt: skip


@dataclass(frozen=True)
class Arm:
    """A remedy: options added to the plain model or to its training."""

    key: str
    title: str
    mixer: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    eps: bool = False  # whether the head norm's epsilon is the subject's
    noise: float = 0.0  # of a compiled start


ARMS = (
    Arm("plain", "plain"),
    Arm("stretch", "stretched beta", STRETCH),
    Arm("saturation", "late saturation penalty", training=SATURATION),
    Arm("eps", "larger epsilon of the head norm", eps=True),
    Arm("carry", "state carried across batches", training=CARRY),
    Arm("combined", "stretch, saturation and epsilon", STRETCH, SATURATION, True),
    Arm(
        "combined-carry", "the three and the state carried", STRETCH, {**SATURATION, **CARRY}, True
    ),
)
COMPILED = Arm("compiled", "compiled start", training={"steps": 300, "lr": 1e-3}, noise=0.01)
ARM = {arm.key: arm for arm in (*ARMS, COMPILED)}


def arms(subject: Subject) -> tuple[Arm, ...]:
    """Return the arms of a subject."""
    named = tuple(ARM[key] for key in subject.arms) or ARMS
    return (*named, COMPILED) if subject.compiled else named


def run_config(
    subject: Subject, arm: Arm, settings: Settings, seed: int, *, neg: bool = True
) -> RunConfig:
    """Return the run of an arm."""
    if arm is COMPILED:
        return _compiled_run(subject, settings, seed)
    smoke = settings.scale == "smoke"
    task = make_task(subject.task, **dict(subject.options))
    options: dict[str, Any] = {
        "allow_neg_eigval": neg,
        "num_heads": subject.heads,
        "conv_size": 0,
        **arm.mixer,
        **({"output_norm_eps": subject.eps} if arm.eps else {}),
    }
    mixer = (
        DeltaProductConfig(num_householder=subject.factors, **options)
        if subject.factors > 1
        else DeltaNetConfig(**options)
    )
    model = ModelConfig(
        vocab_size=len(task.vocab),
        hidden_size=16 if smoke else subject.width,
        num_layers=1,
        mixer=mixer,
    )
    low, high = (4, 4) if smoke else subject.lengths
    stages: tuple[Stage, ...] = ()
    if subject.start:
        assert isinstance(task, GroupWordProblem)
        growth = Growth(batch=60, first=1, each=1, last=1) if smoke else Growth()
        stages = growing_stages(task, subject.start, growth)
    training = presets.quick_training(
        sum(stage.steps for stage in stages) or (4 if smoke else subject.steps),
        subject.lr,
        seed,
        batch_size=8 if smoke else 64,
        min_length=low,
        max_length=high,
        clip=1.0 if isinstance(task, GroupWordProblem) else None,
        **arm.training,
    )
    return RunConfig(task, model, training, stages)


@cache
def _compiled_model(language: str) -> ModelConfig:
    return compile(language, "gated_deltaproduct").model.config


def _compiled_run(subject: Subject, settings: Settings, seed: int) -> RunConfig:
    """Return a short run of the model that the task's automaton is compiled to."""
    plain = run_config(subject, ARM["plain"], settings, seed)
    task = make_task(f"automaton:{subject.task}", supervision="dense")
    model = _compiled_model(task.name)
    training = replace(plain.training, clip=1.0)
    if settings.scale != "smoke":
        training = replace(training, **COMPILED.training)
    return RunConfig(task, model, training)


def make_job(subject: Subject, arm: Arm, settings: Settings, seed: int, *, neg: bool = True) -> Job:
    """Return the job of an arm; the chosen one is hardened and evaluated at 1,000,000 tokens."""
    smoke = settings.scale == "smoke"
    final = arm.key == subject.final and neg
    seconds = subject.compiled if arm is COMPILED else subject.seconds * (1 if neg else 0.6)
    config = run_config(subject, arm, settings, seed, neg=neg)
    return Job(
        name=f"length-{subject.key}-{arm.key}{'' if neg else '-pos'}-s{seed}",
        config=config,
        lengths=evaluated_lengths(subject, settings, neg=neg),
        samples=4 if smoke else 64,
        max_tokens=MAX_TOKENS,
        harden=final or (arm.key == "plain" and neg) or arm is COMPILED,
        hardened_lengths=(("50",) if smoke else (LONGEST,)) if final else (),
        compiled=config.task.name if arm is COMPILED else None,
        noise=arm.noise,
        seconds=1.0 if smoke else seconds,
    )


def evaluated_lengths(subject: Subject, settings: Settings, *, neg: bool = True) -> tuple[str, ...]:
    """Return the lengths at which a model is evaluated; with [0,1] the shorter ones."""
    if settings.scale == "smoke":
        return ("8",)
    return (*subject.tested, *(LENGTHS if neg else LENGTHS[:1]))


def entry(subject: Subject, arm: Arm, settings: Settings, *, neg: bool = True) -> Entry:
    """Return the seeds of an arm."""
    final = arm.key == subject.final and neg
    default = {"smoke": 1, "laptop": subject.final_seeds if final else ARM_SEEDS, "paper": 20}
    seeds = tuple(range(settings.seeds or default[settings.scale]))

    def make(lr: float, seed: int) -> Job:
        return make_job(subject, arm, settings, seed, neg=neg)

    title = arm.title if neg else f"{arm.title}, [0,1]"
    score = sequence_accuracy("8" if settings.scale == "smoke" else LENGTHS[0])
    return Entry(subject.title, title, make, (subject.lr,), seeds, score)


@cache
def entries(settings: Settings) -> dict[Subject, dict[tuple[str, bool], Entry]]:
    """Return all arms of each subject, by key and range.

    Each arm has a control with [0,1]; in subjects with growing inputs only the chosen arm has one.
    """
    found: dict[Subject, dict[tuple[str, bool], Entry]] = {}
    for subject in SUBJECTS:
        row = found[subject] = {}
        for arm in arms(subject):
            row[arm.key, True] = entry(subject, arm, settings)
            if arm.key == subject.final or not (subject.start or arm is COMPILED):
                row[arm.key, False] = entry(subject, arm, settings, neg=False)
    return found
