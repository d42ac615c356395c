"""The models of the paper and of its authors' code, by the name of the mixer.

The authors trained formal languages (parity, modular arithmetic) and word problems with two code
bases, whose models differ.
"""

from __future__ import annotations

import math
from typing import Any

from statetrack.config import from_dict, unknown
from statetrack.errors import UserError
from statetrack.layers import MIXERS, MixerConfig
from statetrack.models import ModelConfig

XLSTM = ("mlstm", "slstm")

# by mixer, the options of ModelConfig that differ from its defaults (pre-RMSNorm, SwiGLU)
_LAYER_NORM = {"norm": "layer", "norm_eps": 1e-5}
_BLOCKS: dict[str, dict[str, Any]] = {
    "mlstm": {**_LAYER_NORM, "mlp": "none"},
    "slstm": {**_LAYER_NORM, "mlp": "gated_gelu"},
    "mamba": {"norm_eps": 1e-5, "mlp": "none", "final_norm": False, "initializer_range": None},
    "diagonal_rnn": {**_LAYER_NORM, "residual": False, "mlp": "none"},
    # reads one-hot vectors, and its outputs are the logits
    "full_matrix": {
        "embedding": "one_hot", "norm": "none", "residual": False, "mlp": "none",
        "final_norm": False, "head": "none",
    },
}  # fmt: skip
# by mixer, its own options that differ from its defaults
_MIXERS: dict[str, dict[str, Any]] = {"slstm": {"conv_size": 0}}
# for word problems, trained with the other code base: added to _BLOCKS, and instead of _MIXERS
_WORD_PROBLEM_BLOCKS: dict[str, dict[str, Any]] = {
    "mamba": {**_LAYER_NORM, "final_norm": True, "head_bias": True}
}
_WORD_PROBLEM_MIXERS: dict[str, dict[str, Any]] = {"delta_net": {"conv_size": 0}}


def check_mixer(mixer: str, allowed: tuple[str, ...], where: str) -> None:
    """Raise a UserError unless a table or code has a mixer.

    Args:
        mixer: its name.
        allowed: the mixers of the table or code.
        where: the name of the table or code, for the error.
    """
    if mixer not in MIXERS:
        raise unknown("mixer", mixer, allowed)
    if mixer not in allowed:
        raise UserError(f"{where} has no {mixer}; it has {', '.join(allowed)}")


def formal_model(
    mixer: str,
    vocab_size: int,
    *,
    num_layers: int,
    allow_neg_eigval: bool,
    hidden_size: int = 128,
    **options: Any,
) -> ModelConfig:
    """Return the model for parity and modular arithmetic; `options` are those of the mixer."""
    blocks = _BLOCKS.get(mixer, {})
    if mixer in XLSTM:  # xLSTM's "small" initialisation
        blocks = {**blocks, "initializer_range": math.sqrt(2 / (5 * hidden_size))}
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        mixer=_mixer(mixer, allow_neg_eigval, {**_MIXERS.get(mixer, {}), **options}),
        **blocks,
    )


def word_problem_model(
    mixer: str, vocab_size: int, *, num_layers: int, allow_neg_eigval: bool
) -> ModelConfig:
    """Return the model for word problems: width 128, or one-hot tokens for full matrices."""
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=vocab_size if mixer == "full_matrix" else 128,  # full_matrix reads one-hots
        num_layers=num_layers,
        mixer=_mixer(mixer, allow_neg_eigval, _WORD_PROBLEM_MIXERS.get(mixer, {})),
        **{**_BLOCKS.get(mixer, {}), **_WORD_PROBLEM_BLOCKS.get(mixer, {})},
    )


def _mixer(name: str, allow_neg_eigval: bool, options: dict[str, Any]) -> MixerConfig:
    fields = {"name": name, "allow_neg_eigval": allow_neg_eigval, **options}
    mixer: MixerConfig = from_dict(MixerConfig, fields, name)
    return mixer
