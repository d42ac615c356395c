"""Whole models: embedding, blocks of any mixers, head."""

from statetrack.models.config import ModelConfig
from statetrack.models.sequence_model import (
    MODULE_BYTES,
    SequenceModel,
    State,
    check_finite,
    compile_blocks,
    count_parameters,
    model_size,
)

__all__ = [
    "MODULE_BYTES",
    "ModelConfig",
    "SequenceModel",
    "State",
    "check_finite",
    "compile_blocks",
    "count_parameters",
    "model_size",
]
