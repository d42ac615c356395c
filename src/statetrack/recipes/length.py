"""Length generalisation: each remedy alone and combined, and how far the result is exact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from statetrack.layers import DeltaNetConfig, DeltaProductConfig
from statetrack.models import ModelConfig
from statetrack.recipes.recipe import Results, Settings
from statetrack.recipes.stages import Growth, growing_stages
from statetrack.sweep.job import Job
from statetrack.tasks import make_task
from statetrack.tasks.word_problem import GroupWordProblem
from statetrack.training import RunConfig, TrainingConfig

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
    final: str  # the arm that is confirmed on fresh seeds
    final_seeds: int
    options: Mapping[str, Any] = field(default_factory=dict)
    factors: int = 1
    start: str = ""  # the task whose inputs come first, if the run has stages
    arms: tuple[str, ...] = ()  # None: all of them
    seconds: float = 20.0  # CPU seconds of a run with its evaluations


SUBJECTS = (
    Subject("parity", "Parity", "parity", (3, 40), 300, 1e-2, 32, 2, ("40-256",), 1e-2,
            "combined", 20, {"supervision": "dense"}, seconds=12),
    Subject("swaps", "S5, only swaps", "S5_only_swaps", (32, 32), 600, 3e-3, 64, 4,
            ("32", "128"), 1e-3, "combined", 20, seconds=40),
    Subject("Z3", "Z3", "Z3", (32, 32), 800, 3e-3, 32, 2, ("32", "128"), 1e-3, "combined", 20,
            factors=2, seconds=45),
    Subject("threes", "S5, swaps and 3-permutations", "S5_up_to_3", (16, 16), 1500, 3e-3, 64, 4,
            ("16", "64"), 1e-3, "plain", 5, factors=2, seconds=75),
    Subject("S5", "Full S5", "S5", (12, 12), 0, 3e-3, 128, 4, ("12", "24"), 1e-3, "plain", 5,
            factors=4, start="S5_up_to_3", arms=("plain", "combined"), seconds=300),
)  # fmt: skip


@dataclass(frozen=True)
class Arm:
    """What is added to the plain model or its training."""

    key: str
    title: str
    mixer: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    eps: bool = False  # whether the head norm's epsilon is the subject's


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
ARM = {arm.key: arm for arm in ARMS}
CONTROLS = ("plain", "combined")  # arms that are also trained with eigenvalues in [0,1]


def arms(subject: Subject) -> tuple[Arm, ...]:
    """Return the arms of a subject."""
    return tuple(ARM[key] for key in subject.arms) or ARMS


def run_config(
    subject: Subject, arm: Arm, settings: Settings, seed: int, *, neg: bool = True
) -> RunConfig:
    """Return the run of an arm."""
    smoke = settings.scale == "smoke"
    task = make_task(subject.task, **subject.options)
    options: dict[str, Any] = {
        "allow_neg_eigval": neg,
        "num_heads": subject.heads,
        "conv_size": 0,
        **arm.mixer,
        **({"output_norm_eps": subject.eps} if arm.eps else {}),
    }
    wide = subject.width == 128  # heads of 16, as in narrower models
    if wide:
        options |= {"expand_k": 0.5, "expand_v": 0.5}
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
    stages = ()
    if subject.start:
        assert isinstance(task, GroupWordProblem)
        growth = Growth(batch=60, first=1, each=1, last=1) if smoke else Growth()
        stages = growing_stages(task, subject.start, growth)
    training = TrainingConfig(
        steps=sum(stage.steps for stage in stages) or (4 if smoke else subject.steps),
        batch_size=8 if smoke else 64,
        min_length=low,
        max_length=high,
        lr=subject.lr,
        warmup=0.05,
        min_lr=0.0,
        weight_decay=0.0,
        clip=1.0 if isinstance(task, GroupWordProblem) else None,
        seed=seed,
        data_seed=seed,
        **arm.training,
    )
    return RunConfig(task, model, training, stages)


def make_job(subject: Subject, arm: Arm, settings: Settings, seed: int, *, neg: bool = True) -> Job:
    """Return the job of an arm; the final one is hardened and evaluated at 1,000,000 tokens."""
    smoke = settings.scale == "smoke"
    final = arm.key == subject.final and neg
    return Job(
        name=f"length-{subject.key}-{arm.key}{'' if neg else '-pos'}-s{seed}",
        config=run_config(subject, arm, settings, seed, neg=neg),
        lengths=("8",) if smoke else (*subject.tested, *LENGTHS),
        samples=4 if smoke else 64,
        max_tokens=MAX_TOKENS,
        harden=final or arm.key == "plain",
        hardened_lengths=(("50",) if smoke else (LONGEST,)) if final else (),
        seconds=1.0 if smoke else subject.seconds,
    )


def jobs_of(subject: Subject, arm: Arm, settings: Settings, *, neg: bool = True) -> list[Job]:
    """Return the jobs of an arm, one for each seed."""
    final = arm.key == subject.final and neg
    default = {"smoke": 1, "laptop": subject.final_seeds if final else ARM_SEEDS, "paper": 20}
    count = settings.seeds or default[settings.scale]
    return [make_job(subject, arm, settings, seed, neg=neg) for seed in range(count)]


def jobs(settings: Settings, results: Results) -> list[Job]:
    """List the runs of all arms and their controls with eigenvalues in [0,1]."""
    listed = []
    for subject in SUBJECTS:
        for arm in arms(subject):
            listed += jobs_of(subject, arm, settings)
            if arm.key in CONTROLS:
                listed += jobs_of(subject, arm, settings, neg=False)
    return listed
