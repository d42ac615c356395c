"""Known pretraining runs: the paper's, and two that a CPU trains."""

from __future__ import annotations

from dataclasses import replace

from statetrack.config import unknown
from statetrack.errors import UserError
from statetrack.layers import DeltaNetConfig
from statetrack.lm.pretraining.config import PretrainingConfig
from statetrack.models import ModelConfig
from statetrack.models.language_models import language_model

# layers that widen their input themselves: a block of two of them stands for one with an MLP
WITHOUT_MLP = ("mamba", "mamba2", "mlstm")


def _cpu(width: int, layers: int, **options: object) -> PretrainingConfig:
    """Return a run for a CPU: with few tokens, small batches and large embeddings learn most."""
    mixer = DeltaNetConfig(num_heads=width // 32)
    model = ModelConfig(hidden_size=width, num_layers=layers, mixer=mixer, initializer_range=None)
    return replace(PretrainingConfig(model), **options)  # type: ignore[arg-type]


def _paper(name: str, **options: object) -> PretrainingConfig:
    """Return a run of the paper; AdamW's options are the defaults of `PretrainingConfig`."""
    config = PretrainingConfig(
        language_model(name), context_length=2048, seed=42, precision="bf16", steps=200_000
    )
    every = {"validation_every": 1000, "checkpoint_every": 1000}
    return replace(config, **every, **options)  # type: ignore[arg-type]


PRESETS = {
    "tiny": _cpu(160, 4, context_length=256, batch_size=8, lr=5e-3, min_lr=5e-4, steps=5000),
    "small": _cpu(256, 6, context_length=512, batch_size=4, lr=3e-3, min_lr=3e-4, steps=10_000),
    "340m": _paper("delta_net-340M", batch_size=256, warmup=250),
    "1.3b": _paper("delta_net-1.3B", batch_size=960, warmup=500, steps=50_000),
    "mamba-370m": _paper("mamba-370M", batch_size=256, warmup=250),
}


def preset(name: str, mixer: str | None = None) -> PretrainingConfig:
    """Return a known run, without its data; the vocabulary is that of the data.

    Args:
        name: one of PRESETS.
        mixer: other mixers than the preset's, separated by commas. Models of Mamba, Mamba-2 and
            mLSTM alone have twice the layers and no MLP, which gives about as many parameters.

    Raises:
        UserError: the name is unknown, or the preset is not for these mixers.
    """
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    config = PRESETS[name]
    if mixer is None or mixer == config.model.mixer_names:
        return config
    model = config.model.with_mixers(mixer)
    widening = [m.name in WITHOUT_MLP for m in model.pattern]
    if config.model.mlp == "none" and not all(widening):
        raise UserError(f"preset {name} has no MLPs, which {mixer} needs; use preset 340m")
    if config.model.mlp != "none" and all(widening):
        model = replace(model, mlp="none", num_layers=2 * model.num_layers)
    return replace(config, model=model)
