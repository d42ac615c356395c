"""Runs that are small enough for a test."""

from __future__ import annotations

from typing import Any

from statetrack.layers import MixerConfig
from statetrack.models import ModelConfig
from statetrack.tasks import make_task
from statetrack.training import RunConfig, TrainingConfig

# the same as flags of `statetrack train`
FLAGS = [
    "--hidden-size=8", "--num-layers=1", "--num-heads=2", "--mlp=none",
    "--steps=4", "--batch-size=4", "--log-every=1", "--checkpoint-every=2",
]  # fmt: skip


def small_mixer(name: str, **options: Any) -> MixerConfig:
    if name == "delta_net":
        options = {"num_heads": 2, **options}
    return MixerConfig.class_for(name)(**options)


def small_config(
    task: str = "parity",
    mixer: str = "delta_net",
    *,
    allow_neg_eigval: bool = False,
    model: dict[str, Any] | None = None,
    **training: Any,
) -> RunConfig:
    """A run of a few milliseconds a step; `mixer` may be a pattern such as "delta_net,mamba"."""
    chosen = make_task(task)
    mixers = tuple(small_mixer(m, allow_neg_eigval=allow_neg_eigval) for m in mixer.split(","))
    options: dict[str, Any] = {"hidden_size": 8, "num_layers": len(mixers), "mlp": "none"}
    return RunConfig(
        chosen,
        ModelConfig(
            vocab_size=len(chosen.vocab),
            mixer=mixers[0] if len(mixers) == 1 else mixers,
            **{**options, **(model or {})},
        ),
        TrainingConfig(
            **{"steps": 4, "batch_size": 4, "max_length": 12, "log_every": 1, **training}
        ),
    )
