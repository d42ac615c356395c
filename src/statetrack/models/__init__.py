"""Whole models: embedding, blocks of any mixers, head."""

from statetrack.models.chunked import (
    ChunkLoss,
    chunk_cross_entropy,
    chunked_backward,
    chunked_forward,
)
from statetrack.models.config import ModelConfig
from statetrack.models.experts import ExpertsConfig
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
    "ChunkLoss",
    "ExpertsConfig",
    "ModelConfig",
    "SequenceModel",
    "State",
    "check_finite",
    "chunk_cross_entropy",
    "chunked_backward",
    "chunked_forward",
    "compile_blocks",
    "count_parameters",
    "model_size",
]
