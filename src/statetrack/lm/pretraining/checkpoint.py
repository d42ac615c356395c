"""Run folders of pretraining, and checkpoints from which a run resumes bit for bit.

A checkpoint is the folder checkpoints/step-0000100 with model.safetensors, optimizer.safetensors
and state.json. A sharded run has a file for each process instead, which torch's distributed
checkpoint writes, also as safetensors. The folder gets its name when it is complete. The order of
the data and all random numbers depend on the seed and the step alone, so nothing else is stored.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.state_dict_loader import load as load_sharded
from torch.distributed.checkpoint.state_dict_saver import save as save_sharded

from statetrack.config import to_dict
from statetrack.errors import UserError
from statetrack.files import PREFIX, leftovers, read_json, write_json
from statetrack.lm.data.shards import TOKENIZER, TOKENIZER_SETTINGS
from statetrack.lm.data.tokenizer import settings_json
from statetrack.lm.hf_model import StateTrackForCausalLM
from statetrack.lm.load import quiet
from statetrack.lm.pretraining.config import (
    PRETRAINING_SCHEMA,
    PretrainingConfig,
    read_pretraining_config,
)
from statetrack.lm.pretraining.distributed import Processes
from statetrack.training.run_folder import RunFolder, named_devices, with_device
from statetrack.training.start import difference
from statetrack.training.tensors import MOMENTS, restore_tensors, training_tensors

ONE_FILE = "1TB"  # more than any model here: its weights are one file, which is replaced at once
NAME = re.compile(r"step-([0-9]{7,})")
STATE = "state.json"
FREE_TO_CHANGE = ("data_folder", "device", "compile")  # options that may differ when a run resumes


class PretrainingRun(RunFolder):
    """A folder of `statetrack lm train`: configuration, metrics, checkpoints and the model."""

    config: PretrainingConfig

    @classmethod
    def open(cls, folder: Path) -> PretrainingRun:
        """Open an existing folder.

        Raises:
            UserError: It is not a folder of `statetrack lm train`.
        """
        folder = Path(folder)
        if not (folder / "config.json").is_file():
            raise UserError(f"{folder} is not a run of `lm train`: it has no config.json")
        return cls(folder, read_pretraining_config(folder / "config.json"))

    def check_same(self, config: PretrainingConfig) -> None:
        """Raise a UserError unless the run has this configuration; its data may have moved."""
        old, new = ({**to_dict(c), **dict.fromkeys(FREE_TO_CHANGE)} for c in (self.config, config))
        if old != new:
            where = difference("", old, new)
            raise UserError(
                f"{self.folder} holds a run with other options: {where}; choose another folder"
            )

    def write_config(self) -> None:
        """Write config.json."""
        write_json(self.folder / "config.json", self.config.to_json())

    @property
    def model_folder(self) -> Path:
        """The folder of the newest model, in the format of transformers."""
        return self.folder / "model"

    @property
    def finished(self) -> bool:
        """Whether the run has taken its last step."""
        return (self.checkpoint_steps() or [0])[-1] >= self.config.steps

    def checkpoint_steps(self) -> list[int]:
        """Return the steps of the checkpoints, in order."""
        found = [NAME.fullmatch(folder.name) for folder in self.checkpoints.glob("step-*")]
        return sorted(int(match[1]) for match in found if match)

    def checkpoint_folder(self, step: int) -> Path:
        """Return the path of a checkpoint."""
        return self.checkpoints / f"step-{step:07d}"

    @property
    def devices(self) -> list[str]:
        """The devices that it was trained on, in order; older checkpoints do not name them."""
        steps = self.checkpoint_steps()
        return named_devices(self.checkpoint_folder(steps[-1]) / STATE) if steps else []

    def tidy(self) -> None:
        """Remove files that a killed process left half-written or half-removed."""
        self.check_link()
        for folder in (self.folder, self.checkpoints):
            for leftover in leftovers(folder):
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        self._drop_old()

    def _drop_old(self) -> None:
        for step in self.checkpoint_steps()[: -self.config.keep]:
            folder = self.checkpoint_folder(step)
            doomed = folder.with_name(f"{PREFIX}{folder.name}")
            os.replace(folder, doomed)  # atomic: a half-removed checkpoint must not look complete
            shutil.rmtree(doomed)

    def save(
        self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, processes: Processes
    ) -> None:
        """Write a checkpoint and remove older ones; all processes must call it."""
        folder = self.checkpoint_folder(step)
        parts = folder.with_name(f"{PREFIX}{folder.name}")
        tensors = training_tensors(model, optimizer)
        if processes.main:
            parts.mkdir(parents=True)
        processes.wait()
        if processes.sharded:
            writer = HuggingFaceStorageWriter(str(parts), save_distributed=True)
            save_sharded(tensors, storage_writer=writer)
        elif processes.main:
            for kind in ("model", "optimizer"):
                part = {k: t for k, t in tensors.items() if k.startswith(f"{kind}.")}
                safetensors.torch.save_file(part, parts / f"{kind}.safetensors")
        processes.wait()
        if processes.main:
            for file in parts.iterdir():
                _sync(file)
            about = {"schema": PRETRAINING_SCHEMA, "step": step, "sharded": processes.sharded}
            devices = with_device(self.devices, processes.device)
            write_json(parts / STATE, {**about, "devices": devices, "files": _described(parts)})
            os.replace(parts, folder)
            self._drop_old()
        processes.wait()

    def load(
        self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, processes: Processes
    ) -> None:
        """Restore the weights and the optimiser from the checkpoint of a step.

        Raises:
            UserError: The checkpoint is damaged, or belongs to another run.
        """
        folder = self.checkpoint_folder(step)
        self._check(folder, step, processes.sharded)
        try:
            if processes.sharded:
                tensors = _empty_tensors(model)
                load_sharded(tensors, storage_reader=HuggingFaceStorageReader(str(folder)))
            else:
                files = [folder / f"{kind}.safetensors" for kind in ("model", "optimizer")]
                tensors = {k: t for f in files for k, t in safetensors.torch.load_file(f).items()}
        except (OSError, SafetensorError) as error:
            raise UserError(f"{folder} is not a readable checkpoint: {error}") from None
        restore_tensors(tensors, model, self.folder, optimizer, step)

    def save_model(self, model: StateTrackForCausalLM, tokenizer: Path) -> None:
        """Write the newest model and its tokenizer: file by file, the weights last.

        Args:
            model: it names the tokens EOS and BOS.
            tokenizer: a `tokenizer.json`.
        """
        parts = self.folder / f"{PREFIX}model"
        shutil.rmtree(parts, ignore_errors=True)
        with quiet():
            model.save_pretrained(parts, max_shard_size=ONE_FILE)
        shutil.copyfile(tokenizer, parts / TOKENIZER)
        name = Tokenizer.from_file(str(tokenizer)).id_to_token
        ends = (model.config.eos_token_id, model.config.bos_token_id)
        names = (None if token is None else name(token) for token in ends)
        (parts / TOKENIZER_SETTINGS).write_text(settings_json(*names, plain=True))
        self.model_folder.mkdir(exist_ok=True)
        for file in sorted(parts.iterdir(), key=lambda file: file.suffix == ".safetensors"):
            _sync(file)
            os.replace(file, self.model_folder / file.name)
        parts.rmdir()

    def _check(self, folder: Path, step: int, sharded: bool) -> None:
        """Raise a UserError unless a checkpoint is undamaged and belongs to this run."""
        about = read_json(folder / STATE)
        if not isinstance(about, dict) or about.get("schema") != PRETRAINING_SCHEMA:
            raise UserError(f"{folder / STATE} does not have schema {PRETRAINING_SCHEMA}")
        if (about.get("step"), about.get("sharded")) != (step, sharded):
            raise UserError(f"{folder / STATE} belongs to another run")
        if about.get("files") != _described(folder):
            remedy = "delete the folder to continue from an earlier checkpoint"
            raise UserError(f"{folder} is damaged: its files have changed; {remedy}")


def _described(folder: Path) -> dict[str, Any]:
    """Return size and SHA-256 of the tensor files of a checkpoint, by name."""
    return {
        file.name: {"bytes": file.stat().st_size, "sha256": _digest(file)}
        for file in sorted(folder.glob("*.safetensors"))
    }


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _empty_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return tensors of zeros shaped like those of `training_tensors` after a step."""
    tensors = training_tensors(model)
    for name, parameter in model.named_parameters():
        tensors |= {f"optimizer.{m}.{name}": torch.zeros_like(parameter.detach()) for m in MOMENTS}
    return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
