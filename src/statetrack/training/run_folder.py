"""Run folders: config.json, metrics.jsonl and checkpoints/; docs/run-folder.md has the format."""

from __future__ import annotations

import hashlib
import json
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from statetrack.devices import device_of, device_title, on_cpu, use_device
from statetrack.errors import UserError, check_type
from statetrack.files import (
    leftovers,
    new_folder,
    parse_json,
    read_json,
    regular,
    write_atomic,
    write_json,
)
from statetrack.models import SequenceModel, check_finite
from statetrack.training.config import RUN_SCHEMA, RunConfig, read_config
from statetrack.training.tensors import restore_tensors, training_tensors

CHECKPOINT = re.compile(r"step-([0-9]{8,})\.(?:json|safetensors)")


def named_devices(about: Path) -> list[str]:
    """Return the devices that the JSON file of a checkpoint names."""
    data = read_json(about)
    found = data.get("devices") if isinstance(data, dict) else None
    return [*map(str, found)] if isinstance(found, list) else []


def with_device(devices: list[str], device: torch.device) -> list[str]:
    """Return the devices of a run with one more, unless it is the last one."""
    title = device_title(device)
    return devices if devices[-1:] == [title] else [*devices, title]


class RunFolder:
    """A folder with a configuration and rows of metrics, of any kind of training."""

    def __init__(self, folder: Path, config: Any) -> None:
        self.folder = Path(folder)
        self.config = config
        self.metrics_file = self.folder / "metrics.jsonl"
        self.checkpoints = self.folder / "checkpoints"

    def log(self, row: dict[str, Any]) -> None:
        """Append a row of metrics."""
        with self.metrics_file.open("a") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Return all rows; a truncated last line is skipped."""
        if not self.metrics_file.exists():
            return []
        rows = []
        lines = regular(self.metrics_file).read_bytes().splitlines()
        for number, line in enumerate(lines, 1):
            try:
                row = parse_json(line)
                if not isinstance(row, dict) or not isinstance(row.get("step"), int):
                    raise ValueError
                rows.append(row)
            except ValueError:
                if number < len(lines):
                    where = f"{self.metrics_file}, line {number}"
                    raise UserError(f"{where} is not a JSON object with a step") from None
        return rows

    def rewind_metrics(self, step: int, *, drop_stop: bool = False) -> None:
        """Remove the rows after `step`, and with `drop_stop` those that say why the run stopped."""
        rows = [row for row in self.metrics() if row["step"] <= step]
        rows = [row for row in rows if not (drop_stop and row.get("kind") == "stop")]
        write_atomic(self.metrics_file, "".join(json.dumps(row) + "\n" for row in rows))

    def check_link(self) -> None:
        """Raise a UserError if checkpoints/ is a link: the files in it may be another run's."""
        if self.checkpoints.is_symlink():
            where = f"{self.checkpoints} is a symbolic link"
            raise UserError(f"{where}; a run that is written to needs a folder of its own there")


class Run(RunFolder):
    """A run folder: the configuration, metrics and checkpoints of a training run."""

    config: RunConfig

    @classmethod
    def create(cls, folder: Path, config: RunConfig) -> Run:
        """Make a new folder for a run."""
        run = cls(new_folder(folder), config)
        run.tidy()
        write_json(run.folder / "config.json", config.to_json())
        return run

    @classmethod
    def open(cls, folder: Path) -> Run:
        """Open an existing run folder.

        Raises:
            UserError: The folder has no config.json, or it cannot be read.
        """
        check_type("folder", folder, (str, Path), "the path of a run")
        folder = Path(folder)
        if not (folder / "config.json").is_file():
            raise UserError(f"{folder} is not a run folder: it has no config.json")
        return cls(folder, read_config(folder / "config.json"))

    def tidy(self) -> None:
        """Remove files that a killed process left half-written or was about to remove."""
        self.check_link()
        for folder in (self.folder, self.checkpoints):
            for leftover in leftovers(folder):
                leftover.unlink()
        self._drop_old()

    def change(self, config: RunConfig) -> None:
        """Give the run another configuration, e.g. more steps."""
        before, self.config = self.config, config
        if config.to_json() != before.to_json():
            write_json(self.folder / "config.json", config.to_json())

    @property
    def stopped(self) -> str | None:
        """Why it ended before its last step: "score", "hopeless" or "time"; None if it did not."""
        last = (self.metrics() or [{}])[-1]
        ended = last.get("kind") == "stop" and last["step"] in self.checkpoint_steps()
        return last["reason"] if ended else None

    @property
    def finished(self) -> bool:
        """Whether the run has taken its last step or was stopped."""
        done = (self.checkpoint_steps() or [-1])[-1]
        return done >= self.config.training.steps or self.stopped is not None

    def checkpoint_steps(self) -> list[int]:
        """Return the steps of the complete checkpoints, in order."""
        return sorted(step for step, file in self._checkpoint_files() if file.suffix == ".json")

    def checkpoint_file(self, step: int) -> Path:
        """Return the path of a checkpoint's tensors."""
        return self.checkpoints / f"step-{step:08d}.safetensors"

    def _checkpoint_files(self) -> list[tuple[int, Path]]:
        found = [(CHECKPOINT.fullmatch(f.name), f) for f in self.checkpoints.glob("step-*")]
        return [(int(match[1]), file) for match, file in found if match]

    def save(
        self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        """Write a checkpoint; keep the one before it and remove older ones.

        With an optimiser it names the devices that the run was trained on so far.
        """
        devices = self.devices
        if optimizer is not None:
            devices = with_device(devices, device_of(model))
        tensors = training_tensors(model, optimizer)
        data = safetensors.torch.save({name: tensor.cpu() for name, tensor in tensors.items()})
        file = self.checkpoint_file(step)
        self.check_link()
        self.checkpoints.mkdir(exist_ok=True)
        write_atomic(file, data)
        digest = hashlib.sha256(data).hexdigest()
        about = {"schema": RUN_SCHEMA, "step": step, "bytes": len(data), "sha256": digest}
        about |= {"devices": devices} if devices else {}
        # written last: a checkpoint without it is incomplete
        write_json(file.with_suffix(".json"), about)
        self._drop_old()

    @property
    def devices(self) -> list[str]:
        """The devices that it was trained on, one after the other; older checkpoints name none."""
        steps = self.checkpoint_steps()
        return named_devices(self.checkpoint_file(steps[-1]).with_suffix(".json")) if steps else []

    def _drop_old(self) -> None:
        """Remove incomplete checkpoints and all but the last two."""
        kept = self.checkpoint_steps()[-2:]
        # JSON first: if interrupted, an incomplete checkpoint is left, which the next call removes
        for old, path in sorted(self._checkpoint_files(), key=lambda f: f[1].suffix):
            if old not in kept:
                path.unlink()

    def load(self, step: int | None = None) -> tuple[int, dict[str, Tensor]]:
        """Read a checkpoint, the last one by default.

        Returns:
            Its step, and its tensors by name.

        Raises:
            UserError: There is no checkpoint, or it is damaged; then the message names an earlier
                whole one and how to use it.
        """
        check_type("step", step, (int, type(None)), "the step of a checkpoint")
        steps = self.checkpoint_steps()
        if not steps:
            raise UserError(f"{self.folder} has no checkpoint yet")
        step = steps[-1] if step is None else step
        if step not in steps:
            raise UserError(f"{self.folder} has no checkpoint of step {step}; it has {steps}")
        try:
            return step, self._read(step)
        except UserError as error:
            raise UserError(f"{error}{self._earlier_checkpoint(step)}") from None

    def _read(self, step: int) -> dict[str, Tensor]:
        """Read the tensors of a checkpoint and check its size and sha256."""
        file = self.checkpoint_file(step)
        path = file.with_suffix(".json")
        about = read_json(path)
        schema = about.get("schema") if isinstance(about, dict) else None
        if schema != RUN_SCHEMA:
            raise UserError(f"{path} has schema {schema!r}; this version reads {RUN_SCHEMA}")
        if about.get("step", step) != step:
            raise UserError(f"{path} is that of step {about['step']!r}")
        try:
            size = regular(file).stat().st_size
            if size != about.get("bytes"):
                raise UserError(
                    f"{file} is truncated or not the one written: it has {size} bytes, "
                    f"not {about.get('bytes')}"
                )
            if "sha256" in about:  # older checkpoints have none
                with file.open("rb") as opened:
                    digest = hashlib.file_digest(opened, "sha256").hexdigest()
                if digest != about["sha256"]:
                    raise UserError(f"{file} is damaged: its sha256 is not the one in {path.name}")
            return safetensors.torch.load_file(file)
        except (OSError, SafetensorError) as error:
            raise UserError(f"{file} is not a readable checkpoint: {error}") from None

    def _earlier_checkpoint(self, damaged: int) -> str:
        """Say which earlier checkpoint is whole, if any, and how to use it."""
        for step in self.checkpoint_steps()[::-1]:
            with suppress(UserError):
                if step < damaged and self._read(step):
                    about = self.checkpoint_file(damaged).with_suffix(".json")
                    return f"; the checkpoint of step {step} is whole: to use it, delete {about}"
        return ""

    def model(self, step: int | None = None, *, device: str = "cpu") -> SequenceModel:
        """Load the trained model, ready to evaluate.

        Args:
            step: that of its checkpoint; the last one if absent.
            device: where the model shall be, as `TrainingConfig.device`.
        """
        target = use_device(device)
        with on_cpu():
            model = SequenceModel(self.config.model)
            step, tensors = self.load(step)
            restore_tensors(tensors, model, self.folder)
            check_finite(model, f"the checkpoint of step {step} in {self.folder}")
        return model.to(target).eval()


class Clock:
    """Seconds and CPU seconds of a run.

    Earlier processes count up to the last row of metrics that is kept, so steps that a resumed run
    repeats count once.
    """

    def __init__(self, run: RunFolder) -> None:
        timed = [row for row in run.metrics() if "cpu_seconds" in row]
        last = timed[-1] if timed else {"seconds": 0.0, "cpu_seconds": 0.0}
        self.before = last["seconds"], last["cpu_seconds"]
        self.began = time.perf_counter(), time.process_time()

    def process_seconds(self) -> float:
        """Return the seconds since this process began to train."""
        return time.perf_counter() - self.began[0]

    def times(self) -> dict[str, float]:
        """Return both, for a row of metrics."""
        cpu = time.process_time() - self.began[1]
        return {
            "seconds": self.before[0] + self.process_seconds(),
            "cpu_seconds": self.before[1] + cpu,
        }
