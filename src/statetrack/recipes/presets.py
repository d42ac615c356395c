"""Configurations of the paper, its authors' code and the demo, as functions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from statetrack.config import unknown
from statetrack.errors import UserError
from statetrack.layers import DeltaNetConfig, MambaConfig
from statetrack.models import ModelConfig
from statetrack.recipes.paper_models import (
    XLSTM,
    check_mixer,
    formal_model,
    word_problem_model,
)
from statetrack.tasks import Task, make_task
from statetrack.tasks.word_problem import GroupWordProblem
from statetrack.training import RunConfig, TrainingConfig

ARITHMETIC_TASKS = ("modular_arithmetic", "modular_arithmetic_brackets")
FORMAL = ("parity", *ARITHMETIC_TASKS)
WORD_PROBLEMS = ("S5", "S5_only_swaps", "S5_up_to_3", "Z60")

TABLE_MIXERS = ("attention", "mlstm", "slstm", "mamba", "delta_net")
FIGURE_MIXERS = ("delta_net", "mamba", "full_matrix")
REPO_MIXERS = ("mlstm", "slstm", "mamba", "delta_net")
DEMO_MIXERS = ("delta_net", "mamba")

# the validation of parity and modular arithmetic in the paper and in its authors' code
_VALIDATION: dict[str, Any] = {
    "eval_lengths": ("40-256",), "eval_samples": 8192,
}  # fmt: skip


def paper(
    mixer: str,
    task: str,
    *,
    allow_neg_eigval: bool = False,
    seed: int = 0,
    num_layers: int | None = None,
    **options: Any,
) -> RunConfig:
    """Return a run of the paper (final version): Tables 3 and 5, Figures 1 and 4.

    The tables have parity and modular arithmetic, without and with brackets; with the option
    `mult=False` it is their last column. Figure 1 has the diagonal RNN on parity. Figure 4 has word
    problems: DeltaNet with 1 layer and with `num_layers=5`; sequences have 32 tokens, or 64 with
    the option `tokens_per_element=4` (S5) or 2 (Z60). The paper uses `allow_neg_eigval` for
    DeltaNet, Mamba and the diagonal RNN. Validation uses the lengths that the paper reports, and
    runs at the end only, except for Figure 1.

    Args:
        mixer: the name of a mixer that the table or figure has.
        task: one of FORMAL or WORD_PROBLEMS.
        allow_neg_eigval: the switch.
        seed: of the initialisation and, except for word problems, of the data.
        num_layers: the paper's number if absent.
        **options: options of the task.

    Raises:
        UserError: the paper has no such run.
    """
    known = make_task(task, **options)
    if (mixer, task) == ("diagonal_rnn", "parity"):
        config = _paper_figure_1(known, allow_neg_eigval, seed)
    elif task in FORMAL:
        check_mixer(mixer, TABLE_MIXERS, "the paper's Table 3")
        config = _paper_formal(mixer, known, allow_neg_eigval, seed)
    elif isinstance(known, GroupWordProblem) and task in WORD_PROBLEMS:
        check_mixer(mixer, FIGURE_MIXERS, "the paper's Figure 4")
        config = _paper_word_problem(mixer, known, allow_neg_eigval, seed)
    else:
        raise UserError(f"the paper has no {task}; it has {', '.join(FORMAL + WORD_PROBLEMS)}")
    if num_layers is None:
        return config
    return replace(config, model=replace(config.model, num_layers=num_layers))


def paper_early(
    mixer: str, task: str, *, allow_neg_eigval: bool = False, seed: int = 0, **options: Any
) -> RunConfig:
    """Return a run of the paper's early version, for its Tables 3 and 5.

    It differs from `paper`: 2 layers and no clipping on every task, width 128 and 4 heads for xLSTM
    too, and batch 512 for sLSTM instead of mLSTM. It has no Transformer.
    """
    if task not in FORMAL:
        raise UserError(f"the early version's Table 3 has no {task}; it has {', '.join(FORMAL)}")
    check_mixer(mixer, REPO_MIXERS, "the early version's Table 3")
    return _paper_formal(mixer, make_task(task, **options), allow_neg_eigval, seed, early=True)


def _paper_formal(
    mixer: str, task: Task, allow_neg_eigval: bool, seed: int, *, early: bool = False
) -> RunConfig:
    arithmetic, xlstm = task.name in ARITHMETIC_TASKS and not early, mixer in XLSTM
    narrow: dict[str, Any] = {}
    if arithmetic and xlstm:
        narrow = {"hidden_size": 64, "num_heads": 1, "gate_init": "standard"}
    model = formal_model(
        mixer,
        len(task.vocab),
        num_layers=3 if arithmetic else 2,
        allow_neg_eigval=allow_neg_eigval,
        **narrow,
    )
    training = TrainingConfig(
        steps=100_000,
        batch_size=512 if mixer == ("slstm" if early else "mlstm") else 1024,
        decay_groups="standard" if xlstm else "paper",
        clip=1.0 if arithmetic and not xlstm else None,
        seed=seed,
        data_seed=seed,
        eval_every=100_000,
        **_VALIDATION,
    )
    return RunConfig(task, model, training)


def _paper_figure_1(task: Task, allow_neg_eigval: bool, seed: int) -> RunConfig:
    model = formal_model(
        "diagonal_rnn",
        len(task.vocab),
        num_layers=1,
        allow_neg_eigval=allow_neg_eigval,
        hidden_size=10,
    )
    training = TrainingConfig(
        steps=20_000,
        batch_size=256,
        warmup=0.0,
        weight_decay=0.0,
        seed=seed,
        data_seed=seed,
        eval_every=200,  # the figure is accuracy against steps
        **_VALIDATION,
    )
    return RunConfig(task, model, training)


def _paper_word_problem(
    mixer: str, task: GroupWordProblem, allow_neg_eigval: bool, seed: int
) -> RunConfig:
    length = 32 if task.tokens_per_element == 1 else 64
    training = TrainingConfig(
        steps=312_500,  # 100 epochs
        batch_size=512,
        min_length=length,
        max_length=length,
        lr=1e-4,
        schedule="constant",
        warmup=0.0,
        weight_decay=0.01,
        clip=1.0,
        dataset_size=1_600_000,
        seed=seed,  # the data are the same for every seed
        eval_every=312_500,
        eval_lengths=("500",),
        eval_samples=40_000,
    )
    model = word_problem_model(
        mixer,
        len(task.vocab),
        num_layers=5 if mixer == "mamba" else 1,
        allow_neg_eigval=allow_neg_eigval,
    )
    return RunConfig(task, model, training)


def repo(
    mixer: str, task: str, *, allow_neg_eigval: bool = False, seed: int = 42, lr: float = 1e-3
) -> RunConfig:
    """Return a run of the authors' published commands.

    They have 2 layers, batch 256, bf16, and Mamba with the convolution of width 1 that their code
    has by default. Brackets come without multiplication; the learning rate falls to a thousandth of
    its peak.
    """
    if task not in FORMAL:
        raise UserError(f"the authors published no command for {task}; known: {', '.join(FORMAL)}")
    check_mixer(mixer, REPO_MIXERS, "the authors' code")
    known = make_task(task, **({"mult": False} if task == "modular_arithmetic_brackets" else {}))
    model = formal_model(
        mixer,
        len(known.vocab),
        num_layers=2,
        allow_neg_eigval=allow_neg_eigval,
        **({"conv_size": 1} if mixer == "mamba" else {}),
    )
    parity, xlstm = task == "parity", mixer in XLSTM
    training = TrainingConfig(
        steps=20_000 if parity else 100_000,
        batch_size=256,
        lr=lr,
        warmup=0.0 if parity and mixer == "mlstm" else 0.1,
        min_lr=lr / 1000,
        weight_decay=0.0 if parity and not xlstm else 0.1,
        decay_groups="standard" if xlstm else "paper",
        precision="bf16",
        seed=seed,
        data_seed=seed,
        eval_every=200,
        **_VALIDATION,
    )
    return RunConfig(known, model, training)


def demo(mixer: str, task: str, *, allow_neg_eigval: bool = False, seed: int = 0) -> RunConfig:
    """Return a run of `statetrack demo`: parity, or S5_only_swaps with DeltaNet."""
    if task == "parity":
        return demo_parity(mixer, allow_neg_eigval=allow_neg_eigval, seed=seed)
    if task == "S5_only_swaps" and mixer == "delta_net":
        return demo_swaps(allow_neg_eigval=allow_neg_eigval, seed=seed)
    raise UserError(f"the demo has no {mixer} on {task}")


PRESETS = {"paper": paper, "repo": repo, "demo": demo}


def demo_parity(mixer: str, *, allow_neg_eigval: bool, seed: int = 0) -> RunConfig:
    """Return a run on parity that takes seconds on one core: one narrow layer, dense targets.

    DeltaNet uses the three options of docs/length-generalisation.md (stretched beta, late
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
                output_norm_eps=1e-2,
            ),
        )
        training = quick_training(300, 1e-2, seed, saturation=0.05)
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
        training = quick_training(400, 1e-2, seed, batch_size=32)
    else:
        raise unknown("mixer", mixer, DEMO_MIXERS)
    return RunConfig(task, model, training)


def demo_swaps(*, allow_neg_eigval: bool, seed: int = 0) -> RunConfig:
    """Return a run on S5_only_swaps for a laptop: one DeltaNet layer, 600 steps at length 32."""
    task = make_task("S5_only_swaps")
    model = ModelConfig(
        vocab_size=len(task.vocab),
        hidden_size=64,
        num_layers=1,
        mixer=DeltaNetConfig(allow_neg_eigval=allow_neg_eigval, num_heads=4, conv_size=0),
    )
    training = quick_training(600, 3e-3, seed, min_length=32, max_length=32)
    return RunConfig(task, model, training)


def quick_training(
    steps: int, lr: float, seed: int, *, batch_size: int = 64, **options: Any
) -> TrainingConfig:
    """Return the training of a small model: short warm-up, cosine to 0, no weight decay.

    Args:
        steps: optimiser steps.
        lr: peak learning rate.
        seed: of the initialisation and the data.
        batch_size: sequences per step.
        **options: other options of TrainingConfig.
    """
    return TrainingConfig(
        steps=steps, batch_size=batch_size, lr=lr, warmup=0.05, min_lr=0.0, weight_decay=0.0,
        seed=seed, data_seed=seed, **options,
    )  # fmt: skip
