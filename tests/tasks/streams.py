"""The streams whose first batches are committed, and what is committed of a batch."""

from __future__ import annotations

import hashlib

from statetrack.tasks import Batch, Stream, Task


def stream(task: Task, split: str = "train", data_seed: int = 0) -> Stream:
    """Small batches of short sequences."""
    return Stream(task, split, data_seed, 8, max(3, task.min_length), 40)


def digest(batch: Batch) -> str:
    """The sha256 of a batch's tokens and targets."""
    content = batch.tokens.astype("<i8").tobytes() + batch.targets.astype("<i8").tobytes()
    return hashlib.sha256(content).hexdigest()
