"""Training, evaluation by length, runs on disk."""

from statetrack.training.batches import finite_training_set
from statetrack.training.callbacks import Callback
from statetrack.training.config import RunConfig, Stage, TrainingConfig, length_range, read_config
from statetrack.training.curves import Curve, curve
from statetrack.training.evaluate import Evaluation, evaluate, predict
from statetrack.training.loop import DivergedError, Progress, train
from statetrack.training.run_folder import Run

__all__ = [
    "Callback",
    "Curve",
    "DivergedError",
    "Evaluation",
    "Progress",
    "Run",
    "RunConfig",
    "Stage",
    "TrainingConfig",
    "curve",
    "evaluate",
    "finite_training_set",
    "length_range",
    "predict",
    "read_config",
    "train",
]
