"""Length generalisation: each remedy alone and combined, and how far the result is exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from statetrack.compiler import compile
from statetrack.layers import DeltaNetConfig, DeltaProductConfig
from statetrack.models import ModelConfig
from statetrack.recipes.recipe import Recipe, Results, Settings, facts, register
from statetrack.recipes.selection import Cell
from statetrack.recipes.stages import Growth, growing_stages
from statetrack.recipes.word_problem_report import exact_seeds
from statetrack.recipes.word_problems import sequence_accuracy
from statetrack.report.document import Cell as Value
from statetrack.report.document import Document, Table
from statetrack.sweep.job import Job
from statetrack.tasks import make_task
from statetrack.tasks.word_problem import GroupWordProblem
from statetrack.training import RunConfig, Stage, TrainingConfig

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
    Subject("Z3", "Z3", "Z3", (32, 32), 800, 3e-3, 32, 2, ("32", "128"), 1e-3, "combined", 20,
            factors=2, compiled=12, seconds=35),
    Subject("threes", "S5, swaps and 3-permutations", "S5_up_to_3", (16, 16), 1500, 3e-3, 64, 4,
            ("16", "64"), 1e-3, "plain", 5, factors=2, seconds=50),
    Subject("S5", "Full S5", "S5", (12, 12), 0, 2e-3, 64, 8, ("12", "24"), 1e-3, "plain", 5,
            factors=4, start="S5_up_to_3", arms=("plain", "combined"), seconds=170),
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


def _compiled_run(subject: Subject, settings: Settings, seed: int) -> RunConfig:
    """Return a short run of the model that the task's automaton is compiled to."""
    plain = run_config(subject, ARM["plain"], settings, seed)
    task = make_task(f"automaton:{subject.task}", supervision="dense")
    model = compile(task.name, "gated_deltaproduct").model.config
    training = replace(plain.training, clip=1.0)
    if settings.scale != "smoke":
        training = replace(training, **COMPILED.training)
    return RunConfig(task, model, training)


def make_job(subject: Subject, arm: Arm, settings: Settings, seed: int, *, neg: bool = True) -> Job:
    """Return the job of an arm; the final one is hardened and evaluated at 1,000,000 tokens."""
    smoke = settings.scale == "smoke"
    final = arm.key == subject.final and neg
    config = run_config(subject, arm, settings, seed, neg=neg)
    return Job(
        name=f"length-{subject.key}-{arm.key}{'' if neg else '-pos'}-s{seed}",
        config=config,
        lengths=("8",) if smoke else (*subject.tested, *LENGTHS),
        samples=4 if smoke else 64,
        max_tokens=MAX_TOKENS,
        harden=final or arm.key == "plain" or arm is COMPILED,
        hardened_lengths=(("50",) if smoke else (LONGEST,)) if final else (),
        compiled=config.task.name if arm is COMPILED else None,
        noise=arm.noise,
        seconds=1.0 if smoke else subject.compiled if arm is COMPILED else subject.seconds,
    )


def cell(subject: Subject, arm: Arm, settings: Settings, *, neg: bool = True) -> Cell:
    """Return the seeds of an arm."""
    final = arm.key == subject.final and neg
    default = {"smoke": 1, "laptop": subject.final_seeds if final else ARM_SEEDS, "paper": 20}
    seeds = tuple(range(settings.seeds or default[settings.scale]))

    def make(lr: float, seed: int) -> Job:
        return make_job(subject, arm, settings, seed, neg=neg)

    title = arm.title if neg else f"{arm.title}, [0,1]"
    score = sequence_accuracy("8" if settings.scale == "smoke" else LENGTHS[0])
    return Cell(subject.title, title, make, (subject.lr,), seeds, score)


@cache
def cells(settings: Settings) -> dict[Subject, dict[tuple[str, bool], Cell]]:
    """Return all arms of each subject, by key and range; the final one also with [0,1]."""
    found: dict[Subject, dict[tuple[str, bool], Cell]] = {}
    for subject in SUBJECTS:
        row = found[subject] = {}
        for arm in arms(subject):
            row[arm.key, True] = cell(subject, arm, settings)
            if arm.key == subject.final:
                row[arm.key, False] = cell(subject, arm, settings, neg=False)
    return found


def jobs(settings: Settings, results: Results) -> list[Job]:
    """List the runs of all arms and their controls with eigenvalues in [0,1]."""
    listed = [c for row in cells(settings).values() for c in row.values()]
    return [job for c in listed for job in c.jobs(results)]


def document(settings: Settings, results: Results) -> Document:
    """Make a table of the arms of each subject, and one of the final recipes."""
    rows = cells(settings)
    final = [_final(subject, row, settings, results) for subject, row in rows.items()]
    return Document(
        name="length",
        title=RECIPE.title,
        summary=[text for _, text in final if text] or ["No run is done yet."],
        tables=[
            Table(
                "The final recipe, hardened, on fresh seeds",
                ["task", "recipe", "trained on", "seeds", "longest evaluated", "exact there",
                 "wrong lengths"],
                [row for row, _ in final],
                "Exact: right at every position of every sequence of every evaluated length. The "
                "longest evaluation has one sequence per seed.",
                name="final",
            ),
            *(_table(subject, row, settings, results) for subject, row in rows.items()),
        ],
        figures=[],
        notes=_notes(settings),
        facts=facts("length", settings, jobs(settings, results), results),
        configs={
            f"{subject.title}, {c.title}": c.reported_jobs(results)[0].config.to_json()
            for subject, row in rows.items()
            for c in row.values()
        },
    )  # fmt: skip


def _evaluated(subject: Subject, settings: Settings) -> tuple[str, ...]:
    return ("8",) if settings.scale == "smoke" else (*subject.tested, *LENGTHS)


def _table(
    subject: Subject, row: Mapping[tuple[str, bool], Cell], settings: Settings, results: Results
) -> Table:
    """Count for every arm the seeds that are right at every position, at each length."""
    lengths = _evaluated(subject, settings)
    rows: list[list[Value]] = []
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


def _trained(subject: Subject) -> str:
    low, high = subject.lengths
    return f"length {low}" if low == high else f"lengths {low}-{high}"


def _counts(done: Sequence[Mapping[str, Any]], lengths: Sequence[str], of: str) -> list[Value]:
    cells: list[Value] = []
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
    subject: Subject, row: Mapping[tuple[str, bool], Cell], settings: Settings, results: Results
) -> tuple[list[Value], str]:
    """Return the row and the sentence of the final recipe."""
    c = row[subject.final, True]
    job = c.reported_jobs(results)[0]
    done = [r for r in c.reported(results) if r.get("trained") is not None]
    longest = job.hardened_lengths[-1]
    lengths = (*job.lengths, longest)
    facts: list[Value] = [subject.title, c.title, _trained(subject),
                          f"{len(done)} of {len(c.seeds)}"]  # fmt: skip
    if not done:
        return [*facts, None, None, None], ""
    exact = exact_seeds(done, lengths)
    tokens = f"{int(longest):,}"
    wrong = [n for n in lengths if exact_seeds(done, (n,)) < len(done)]
    sentence = (
        f"{subject.title}: {c.title}, hardened, is exact at {tokens} tokens for {exact} of "
        f"{len(done)} seeds, trained on {_trained(subject)} only."
    )
    control = row.get((subject.final, False))
    refused = [] if control is None else [r for r in control.reported(results) if r.get("trained")]
    if refused:
        first = job.lengths[0]
        right = sum(sequence_accuracy(first)(r) == 1.0 for r in refused)
        sentence += f" With [0,1], {right} of {len(refused)} are exact at {first}."
    return [*facts, tokens, f"{exact} of {len(done)}", ", ".join(wrong) or "none"], sentence


def _notes(settings: Settings) -> list[str]:
    notes = [
        "The paper has no such experiment. Each remedy is added alone to the plain model, then the "
        "three that change the model or its loss together; docs/length-generalisation.md explains "
        "them. All models have one layer without convolution.",
        "The state is carried from half of the steps on, over 4 batches: such a run has seen "
        "longer sequences than its training length.",
        f"Evaluations have 64 sequences, but at most {MAX_TOKENS:,} tokens: 2 sequences of "
        "100,000; one of 1,000,000, for hardened models only.",
        "Compiled start: another model, the one-layer gated DeltaProduct [-1,1] that the task's "
        "automaton is compiled to, on another form of the task, which has no BOS and asks for the "
        f"automaton's state. Its exact weights get Gaussian noise of {COMPILED.noise:g}; then it "
        f"is trained for {COMPILED.training['steps']} steps. The learning rate was chosen on "
        "seed 100.",
    ]
    if settings.scale == "paper":
        notes.append("Scale paper: the laptop's runs with 20 seeds in every arm.")
    if settings.scale == "smoke":
        notes.append("Scale smoke: every run is too short to learn; the numbers mean nothing.")
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
