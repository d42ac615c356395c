"""Metrics in TensorBoard and Weights & Biases, beside metrics.jsonl."""

from __future__ import annotations

import secrets
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from statetrack.config import one_of
from statetrack.errors import UserError
from statetrack.files import write_atomic
from statetrack.training.callbacks import Callback
from statetrack.training.run_folder import RunFolder


def scalars(row: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a row of metrics under names such as validation/40-256/score."""
    prefix = row["kind"]
    if "min_length" in row:
        prefix += f"/{row['min_length']}-{row['max_length']}"
    skipped = ("step", "min_length", "max_length", "samples")
    numbers = {k: v for k, v in row.items() if k not in skipped and isinstance(v, int | float)}
    return {f"{prefix}/{name}": float(value) for name, value in numbers.items()}


class Tracker(Callback, ABC):
    """Sends metrics to another program; its first failure is a warning and ends the tracking."""

    def __init__(self) -> None:
        self.failed = False

    @abstractmethod
    def start(self, run: RunFolder) -> None:
        """Open the program's own log of a run."""

    @abstractmethod
    def send(self, step: int, values: dict[str, float]) -> None:
        """Write one row."""

    @abstractmethod
    def close(self) -> None:
        """Close the log."""

    def on_start(self, run: RunFolder) -> None:
        self._try(lambda: self.start(run))

    def on_row(self, run: RunFolder, row: dict[str, Any]) -> None:
        self._try(lambda: self.send(row["step"], scalars(row)))

    def on_end(self, run: RunFolder) -> None:
        self._try(self.close)

    def _try(self, action: Any) -> None:
        if self.failed:
            return
        try:
            action()
        except Exception as error:  # whatever it is, the run matters more
            self.failed = True
            text = f"{type(self).__name__} failed, and the run goes on without it: {error}"
            warnings.warn(text, stacklevel=2)


class TensorBoard(Tracker):
    """Writes event files to RUN/tensorboard; see them with `tensorboard --logdir RUNS`."""

    def start(self, run: RunFolder) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(run.folder / "tensorboard"))

    def send(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WandB(Tracker):
    """Writes a run of Weights & Biases; WANDB_MODE=offline keeps it on this machine.

    Its id is in RUN/wandb-id: a resumed run continues the same run there.
    """

    def start(self, run: RunFolder) -> None:
        import wandb

        file = run.folder / "wandb-id"
        if not file.exists():
            write_atomic(file, secrets.token_hex(8))
        name = "/".join(run.folder.resolve().parts[-2:])
        self.log = wandb.init(
            project="statetrack",
            name=name,
            id=file.read_text(),
            resume="allow",
            dir=str(run.folder),
            config=run.config.to_json(),
        )

    def send(self, step: int, values: dict[str, float]) -> None:
        self.log.log(values, step=step)

    def close(self) -> None:
        self.log.finish()


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB}


def make_trackers(names: Sequence[str]) -> list[Tracker]:
    """Make the trackers of these names.

    Raises:
        UserError: a name is unknown, or its package is not installed.
    """
    for name in names:
        one_of("track", name, TRACKERS)
        if find_spec(name) is None:
            raise UserError(f'{name} is not installed: pip install "statetrack[{name}]"')
    return [TRACKERS[name]() for name in names]
