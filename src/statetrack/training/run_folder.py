"""A run on disk: config.json, metrics.jsonl, checkpoints/. The layout is in docs/run-folder.md."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from statetrack.errors import UserError, check_type
from statetrack.files import leftovers, new_folder, parse_json, read_json, write_atomic, write_json
from statetrack.models import SequenceModel
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
        """Remove what a killed process left half-written."""
        for folder in (self.folder, self.checkpoints):
            for leftover in leftovers(folder):
                leftover.unlink()

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
        lines = self.metrics_file.read_bytes().splitlines()
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
        self.checkpoints.mkdir(exist_ok=True)
        write_atomic(file, data)
        # written last: a checkpoint without it does not count
        write_json(file.with_suffix(".json"), {"schema": SCHEMA, "step": step, "bytes": len(data)})
        kept = self.checkpoint_steps()[-2:]
        # JSON first: what is left if this is cut short counts as nothing, and goes next time
        for old, path in sorted(self._checkpoint_files(), key=lambda f: f[1].suffix):
            if old not in kept:
                path.unlink()

    def load(self, step: int | None = None) -> tuple[int, dict[str, Tensor]]:
        """The tensors of a checkpoint, the last one by default."""
        check_type("step", step, (int, type(None)), "the step of a checkpoint")
        steps = self.checkpoint_steps()
        if not steps:
            raise UserError(f"{self.folder} has no checkpoint yet")
        step = steps[-1] if step is None else step
        if step not in steps:
            raise UserError(f"{self.folder} has no checkpoint of step {step}; it has {steps}")
        file = self.checkpoint_file(step)
        about = read_json(file.with_suffix(".json"))
        schema = about.get("schema") if isinstance(about, dict) else None
        if schema != SCHEMA:
            where = file.with_suffix(".json")
            raise UserError(f"{where} has schema {schema!r}; this version reads {SCHEMA}")
        try:
            size = os.path.getsize(file)
            if size != about.get("bytes"):
                raise UserError(
                    f"{file} is truncated or not the one written: it has {size} bytes, "
                    f"not {about.get('bytes')}"
                )
            return step, safetensors.torch.load_file(file)
        except (OSError, SafetensorError) as error:
            raise UserError(f"{file} is not a readable checkpoint: {error}") from None

    def model(self, step: int | None = None) -> SequenceModel:
        """The trained model, ready to evaluate."""
        model = SequenceModel(self.config.model)
        self.restore(self.load(step)[1], model)
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
            if tensors[name].shape != parameter.shape:
                raise UserError(
                    f"the checkpoint in {self.folder} has {name} of shape "
                    f"{list(tensors[name].shape)}; the configuration says {list(parameter.shape)}"
                )
            parameter.data.copy_(tensors[name])
        if optimizer is not None and step > 0:
            for name, parameter in model.named_parameters():
                for key in MOMENTS:
                    moment = tensors.get(f"optimizer.{key}.{name}")
                    if moment is None or moment.shape != parameter.shape:
                        lost = f"optimizer.{key}.{name}, as a run needs it to go on"
                        raise UserError(f"the checkpoint in {self.folder} lacks tensor {lost}")
                optimizer.state[parameter] = {
                    "step": torch.tensor(float(step)),
                    **{key: tensors[f"optimizer.{key}.{name}"].clone() for key in MOMENTS},
                }
