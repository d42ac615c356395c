"""Configurations that are known to work, as functions that return them."""

from __future__ import annotations

from dataclasses import replace

from statetrack.config import unknown
from statetrack.layers import DeltaNetConfig, MambaConfig
from statetrack.models import ModelConfig
from statetrack.tasks import Task, make_task
from statetrack.training import RunConfig, TrainingConfig

MIXER_NAMES = ("delta_net", "mamba")


def paper_model(mixer: str, task: Task, *, num_layers: int, allow_neg_eigval: bool) -> ModelConfig:
    """The paper's DeltaNet or Mamba: width 128, 4 heads of 32 or 16 states per channel."""
    vocab_size = len(task.vocab)
    word_problem = task.metric == "sequence"
    if mixer == "delta_net":
        options = DeltaNetConfig(
            allow_neg_eigval=allow_neg_eigval, conv_size=0 if word_problem else 4
        )
        return ModelConfig(vocab_size=vocab_size, num_layers=num_layers, mixer=options)
    if mixer == "mamba":
        return ModelConfig(
            vocab_size=vocab_size,
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


def paper_parity(mixer: str, *, allow_neg_eigval: bool, seed: int = 0) -> RunConfig:
    """Parity as in the paper's Table 3: 2 layers, 100,000 steps of 1,024 sequences."""
    task = make_task("parity")
    return RunConfig(
        task,
        paper_model(mixer, task, num_layers=2, allow_neg_eigval=allow_neg_eigval),
        TrainingConfig(steps=100_000, batch_size=1024, seed=seed, data_seed=seed),
    )


def paper_swaps(mixer: str, *, allow_neg_eigval: bool, seed: int = 0) -> RunConfig:
    """S5 with swaps only as in the paper's Figure 4: 1.6M sequences of length 32, 100 epochs."""
    task = make_task("S5_only_swaps")
    num_layers = 1 if mixer == "delta_net" else 5
    return RunConfig(
        task,
        paper_model(mixer, task, num_layers=num_layers, allow_neg_eigval=allow_neg_eigval),
        TrainingConfig(
            steps=312_500,
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
        ),
    )


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
