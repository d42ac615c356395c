"""Training, evaluation by length, runs on disk."""

from statetrack.training.config import RunConfig, TrainingConfig, read_config
from statetrack.training.evaluate import Curve, Evaluation, curve, evaluate, predict
from statetrack.training.loop import DivergedError, Progress, train
from statetrack.training.run_folder import Run

__all__ = [
    "Curve",
    "DivergedError",
    "Evaluation",
    "Progress",
    "Run",
    "RunConfig",
    "TrainingConfig",
    "curve",
    "evaluate",
    "predict",
    "read_config",
    "train",
]
