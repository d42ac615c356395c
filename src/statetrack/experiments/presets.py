"""Configurations that are known to work, as functions that return them."""

from __future__ import annotations

from dataclasses import replace

from statetrack.config import unknown
from statetrack.errors import UserError
from statetrack.layers import DeltaNetConfig, MambaConfig
from statetrack.models import ModelConfig
from statetrack.tasks import Task, make_task
from statetrack.tasks.word_problem import GroupWordProblem
from statetrack.training import RunConfig, TrainingConfig

MIXER_NAMES = ("delta_net", "mamba")
ARITHMETIC = ("modular_arithmetic", "modular_arithmetic_brackets")


def paper(mixer: str, task: str, *, allow_neg_eigval: bool = True, seed: int = 0) -> RunConfig:
    """What the paper trained, in its final version: Tables 3 and 5 (parity, modular arithmetic
    without and with brackets) and Figure 4 (word problems: S5, Z60 and their variants)."""
    known = make_task(task)
    if task == "parity" or task in ARITHMETIC:
        return _paper_formal(mixer, known, allow_neg_eigval, seed)
    if isinstance(known, GroupWordProblem):
        return _paper_word_problem(mixer, known, allow_neg_eigval, seed)
    raise UserError(f"the paper has no {task}; it has parity, {', '.join(ARITHMETIC)} and groups")


def repo(mixer: str, task: str, *, allow_neg_eigval: bool = True, seed: int = 42) -> RunConfig:
    """What the authors' published commands train: 2 layers, batch 256, bf16, and Mamba with the
    convolution of width 1 that their code has by default. Brackets come without multiplication."""
    if task != "parity" and task not in ARITHMETIC:
        raise UserError(f"the authors published no command for {task}; known: parity, modular_"
                        "arithmetic, modular_arithmetic_brackets")  # fmt: skip
    options = {"mult": False} if task == "modular_arithmetic_brackets" else {}
    known = make_task(task, **options)
    model = _paper_model(mixer, known, num_layers=2, allow_neg_eigval=allow_neg_eigval)
    if isinstance(model.mixer, MambaConfig):
        model = replace(model, mixer=replace(model.mixer, conv_size=1))
    training = TrainingConfig(
        steps=20_000 if task == "parity" else 100_000,
        batch_size=256,
        weight_decay=0.0 if task == "parity" else 0.1,
        precision="bf16",
        seed=seed,
        data_seed=seed,
    )
    return RunConfig(known, model, training)


def _paper_formal(mixer: str, task: Task, allow_neg_eigval: bool, seed: int) -> RunConfig:
    arithmetic = task.name in ARITHMETIC
    layers = 3 if arithmetic else 2
    training = TrainingConfig(
        steps=100_000,
        batch_size=1024,
        clip=1.0 if arithmetic else None,
        seed=seed,
        data_seed=seed,
    )
    model = _paper_model(mixer, task, num_layers=layers, allow_neg_eigval=allow_neg_eigval)
    return RunConfig(task, model, training)


def _paper_word_problem(
    mixer: str, task: GroupWordProblem, allow_neg_eigval: bool, seed: int
) -> RunConfig:
    layers = 1 if mixer == "delta_net" else 5
    training = TrainingConfig(
        steps=312_500,  # 100 epochs
        batch_size=512,
        min_length=32,
        max_length=32,
        lr=1e-4,
        schedule="constant",
        warmup=0.0,
        weight_decay=0.01,
        clip=1.0,
        dataset_size=1_600_000,
        seed=seed,
    )
    model = _paper_model(mixer, task, num_layers=layers, allow_neg_eigval=allow_neg_eigval)
    return RunConfig(task, model, training)


def _paper_model(mixer: str, task: Task, *, num_layers: int, allow_neg_eigval: bool) -> ModelConfig:
    """Width 128, 4 heads of 32 or 16 states per channel."""
    word_problem = isinstance(task, GroupWordProblem)
    if mixer == "delta_net":
        return ModelConfig(
            vocab_size=len(task.vocab),
            num_layers=num_layers,
            mixer=DeltaNetConfig(
                allow_neg_eigval=allow_neg_eigval, conv_size=0 if word_problem else 4
            ),
        )
    if mixer == "mamba":
        return ModelConfig(
            vocab_size=len(task.vocab),
            num_layers=num_layers,
            mixer=MambaConfig(allow_neg_eigval=allow_neg_eigval),
            norm="layer" if word_problem else "rms",
            norm_eps=1e-5,
            mlp="none",
            final_norm=word_problem,
            head_bias=word_problem,
            initializer_range=None,
        )
    raise unknown("mixer", mixer, MIXER_NAMES)


def demo(mixer: str, task: str, *, allow_neg_eigval: bool, seed: int = 0) -> RunConfig:
    """What `statetrack demo` trains: parity with either mixer, or S5_only_swaps with DeltaNet."""
    if task == "parity":
        return demo_parity(mixer, allow_neg_eigval=allow_neg_eigval, seed=seed)
    if task == "S5_only_swaps" and mixer == "delta_net":
        return demo_swaps(allow_neg_eigval=allow_neg_eigval, seed=seed)
    raise UserError(f"the demo has no {mixer} on {task}")


PRESETS = {"paper": paper, "repo": repo, "demo": demo}


def demo_parity(mixer: str, *, allow_neg_eigval: bool, seed: int = 0) -> RunConfig:
    """Parity in seconds on one core: one narrow layer, a target at every position.

    DeltaNet uses the three measures of docs/length-generalisation.md (stretched beta, late
    saturation penalty, a larger epsilon in the head norm), for both ranges alike.
    """
    task = make_task("parity", supervision="dense")
    if mixer == "delta_net":
        model = ModelConfig(
            vocab_size=len(task.vocab),
            hidden_size=32,
            num_layers=1,
            mixer=DeltaNetConfig(
                allow_neg_eigval=allow_neg_eigval,
                num_heads=2,
                conv_size=0,
                beta_stretch=0.1,
                head_norm_eps=1e-2,
            ),
        )
        training = TrainingConfig(steps=300, batch_size=64, saturation=0.05)
    elif mixer == "mamba":
        model = ModelConfig(
            vocab_size=len(task.vocab),
            hidden_size=16,
            num_layers=1,
            mixer=MambaConfig(allow_neg_eigval=allow_neg_eigval, conv_size=0),
            norm_eps=1e-5,
            mlp="none",
            initializer_range=None,
        )
        training = TrainingConfig(steps=400, batch_size=32)
    else:
        raise unknown("mixer", mixer, MIXER_NAMES)
    return RunConfig(task, model, _quick_schedule(training, lr=1e-2, seed=seed))


def demo_swaps(*, allow_neg_eigval: bool, seed: int = 0) -> RunConfig:
    """S5 with swaps only in seconds on one core: one layer of DeltaNet, trained at length 32."""
    task = make_task("S5_only_swaps")
    model = ModelConfig(
        vocab_size=len(task.vocab),
        hidden_size=64,
        num_layers=1,
        mixer=DeltaNetConfig(allow_neg_eigval=allow_neg_eigval, num_heads=4, conv_size=0),
    )
    training = TrainingConfig(steps=600, batch_size=64, min_length=32, max_length=32)
    return RunConfig(task, model, _quick_schedule(training, lr=3e-3, seed=seed))


def _quick_schedule(training: TrainingConfig, *, lr: float, seed: int) -> TrainingConfig:
    return replace(
        training, lr=lr, warmup=0.05, min_lr=0.0, weight_decay=0.0, seed=seed, data_seed=seed
    )
