"""A run on disk: config.json, metrics.jsonl, checkpoints/. The layout is in docs/run-folder.md."""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

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
from statetrack.training.config import SCHEMA, RunConfig, read_config

CHECKPOINT = re.compile(r"step-([0-9]{8,})\.(?:json|safetensors)")
MOMENTS = ("exp_avg", "exp_avg_sq")  # what AdamW keeps of each parameter


class Run:
    """A run folder."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self.folder = Path(folder)
        self.config = config
        self.metrics_file = self.folder / "metrics.jsonl"
        self.checkpoints = self.folder / "checkpoints"

    @classmethod
    def create(cls, folder: Path, config: RunConfig) -> Run:
        """Start a run in a new folder."""
        run = cls(new_folder(folder), config)
        run.tidy()
        write_json(run.folder / "config.json", config.to_json())
        return run

    @classmethod
    def open(cls, folder: Path) -> Run:
        """An existing run."""
        check_type("folder", folder, (str, Path), "the path of a run")
        folder = Path(folder)
        if not (folder / "config.json").is_file():
            raise UserError(f"{folder} is not a run folder: it has no config.json")
        return cls(folder, read_config(folder / "config.json"))

    def tidy(self) -> None:
        """Remove what a killed process left half-written or was about to remove."""
        self._check_link()
        for folder in (self.folder, self.checkpoints):
            for leftover in leftovers(folder):
                leftover.unlink()
        self._drop_old()

    # -- metrics ---------------------------------------------------------------------------------

    def log(self, row: dict[str, Any]) -> None:
        """Append a row of metrics."""
        with self.metrics_file.open("a") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All rows; a last line that a crash cut short is left out."""
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

    def rewind_metrics(self, step: int) -> None:
        """Drop the rows after `step`, which a resumed run will write again."""
        rows = [row for row in self.metrics() if row["step"] <= step]
        write_atomic(self.metrics_file, "".join(json.dumps(row) + "\n" for row in rows))

    # -- checkpoints -----------------------------------------------------------------------------

    def checkpoint_steps(self) -> list[int]:
        """The steps of which there is a complete checkpoint, in order."""
        return sorted(step for step, file in self._checkpoint_files() if file.suffix == ".json")

    def checkpoint_file(self, step: int) -> Path:
        """Where the tensors of a checkpoint are."""
        return self.checkpoints / f"step-{step:08d}.safetensors"

    def _checkpoint_files(self) -> list[tuple[int, Path]]:
        found = [(CHECKPOINT.fullmatch(f.name), f) for f in self.checkpoints.glob("step-*")]
        return [(int(match[1]), file) for match, file in found if match]

    def save(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Write a checkpoint; keep the one before it, drop older ones."""
        tensors = {f"model.{name}": p.detach() for name, p in model.named_parameters()}
        for name, parameter in model.named_parameters():
            for key in MOMENTS:
                if key in optimizer.state[parameter]:
                    tensors[f"optimizer.{key}.{name}"] = optimizer.state[parameter][key]
        data = safetensors.torch.save({k: t.contiguous() for k, t in tensors.items()})
        file = self.checkpoint_file(step)
        self._check_link()
        self.checkpoints.mkdir(exist_ok=True)
        write_atomic(file, data)
        digest = hashlib.sha256(data).hexdigest()
        about = {"schema": SCHEMA, "step": step, "bytes": len(data), "sha256": digest}
        # written last: a checkpoint without it does not count
        write_json(file.with_suffix(".json"), about)
        self._drop_old()

    def _drop_old(self) -> None:
        """Remove all checkpoints but the last two, and what is left of incomplete ones."""
        kept = self.checkpoint_steps()[-2:]
        # JSON first: what is left if this is cut short counts as nothing, and goes next time
        for old, path in sorted(self._checkpoint_files(), key=lambda f: f[1].suffix):
            if old not in kept:
                path.unlink()

    def _check_link(self) -> None:
        """Refuse to write to linked checkpoints: old ones are dropped, and may be another run's."""
        if self.checkpoints.is_symlink():
            where = f"{self.checkpoints} is a symbolic link"
            raise UserError(f"{where}; a run that is written to needs a folder of its own there")

    def load(self, step: int | None = None) -> tuple[int, dict[str, Tensor]]:
        """The tensors of a checkpoint, the last one by default.

        Raises:
            UserError: there is none, or its files are damaged; if so, the message says which
                earlier one is whole and how to go on from it.
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
            raise UserError(f"{error}{self._instead(step)}") from None

    def _read(self, step: int) -> dict[str, Tensor]:
        """The tensors of a checkpoint whose files are as they were written."""
        file = self.checkpoint_file(step)
        about = file.with_suffix(".json")
        told = read_json(about)
        schema = told.get("schema") if isinstance(told, dict) else None
        if schema != SCHEMA:
            raise UserError(f"{about} has schema {schema!r}; this version reads {SCHEMA}")
        if told.get("step", step) != step:
            raise UserError(f"{about} is that of step {told['step']!r}")
        try:
            size = regular(file).stat().st_size
            if size != told.get("bytes"):
                raise UserError(
                    f"{file} is truncated or not the one written: it has {size} bytes, "
                    f"not {told.get('bytes')}"
                )
            if "sha256" in told:  # older checkpoints have none
                with file.open("rb") as opened:
                    digest = hashlib.file_digest(opened, "sha256").hexdigest()
                if digest != told["sha256"]:
                    raise UserError(f"{file} is damaged: its sha256 is not the one in {about.name}")
            return safetensors.torch.load_file(file)
        except (OSError, SafetensorError) as error:
            raise UserError(f"{file} is not a readable checkpoint: {error}") from None

    def _instead(self, damaged: int) -> str:
        """Which checkpoint before a damaged one is whole, if any, and how to go on from it."""
        for step in self.checkpoint_steps()[::-1]:
            with suppress(UserError):
                if step < damaged and self._read(step):
                    about = self.checkpoint_file(damaged).with_suffix(".json")
                    return f"; the checkpoint of step {step} is whole: to use it, delete {about}"
        return ""

    def model(self, step: int | None = None) -> SequenceModel:
        """The trained model, ready to evaluate."""
        model = SequenceModel(self.config.model)
        step, tensors = self.load(step)
        self.restore(tensors, model)
        check_finite(model, f"the checkpoint of step {step} in {self.folder}")
        return model.eval()

    def restore(
        self,
        tensors: dict[str, Tensor],
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        step: int = 0,
    ) -> None:
        """Copy a checkpoint's tensors into a model, and into its optimiser."""
        wanted = {f"model.{name}": p for name, p in model.named_parameters()}
        found = {name for name in tensors if name.startswith("model.")}
        for name in sorted(wanted.keys() ^ found):
            where = "lacks" if name in wanted else "has an unknown"
            raise UserError(f"the checkpoint in {self.folder} {where} tensor {name}")
        for name, parameter in wanted.items():
            self._check_like(parameter, name, tensors[name])
            parameter.data.copy_(tensors[name])
        if optimizer is not None and step > 0:
            for name, parameter in model.named_parameters():
                for key in MOMENTS:
                    moment = tensors.get(f"optimizer.{key}.{name}")
                    if moment is None:
                        lost = f"optimizer.{key}.{name}, as a run needs it to go on"
                        raise UserError(f"the checkpoint in {self.folder} lacks tensor {lost}")
                    self._check_like(parameter, f"optimizer.{key}.{name}", moment)
                optimizer.state[parameter] = {
                    "step": torch.tensor(float(step)),
                    **{key: tensors[f"optimizer.{key}.{name}"].clone() for key in MOMENTS},
                }

    def _check_like(self, parameter: Tensor, name: str, tensor: Tensor) -> None:
        """Refuse a checkpoint's tensor of another shape or number type than the parameter's."""
        for what in ("shape", "dtype"):
            got, right = getattr(tensor, what), getattr(parameter, what)
            if got != right:
                got, right = (list(x) if what == "shape" else x for x in (got, right))
                raise UserError(
                    f"the checkpoint in {self.folder} has {name} of {what} {got}; "
                    f"the configuration says {right}"
                )
