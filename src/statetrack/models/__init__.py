"""Whole models: embedding, blocks of any mixers, head."""

from statetrack.models.config import ModelConfig
from statetrack.models.sequence_model import (
    SequenceModel,
    State,
    check_finite,
    count_parameters,
)

__all__ = ["ModelConfig", "SequenceModel", "State", "check_finite", "count_parameters"]
