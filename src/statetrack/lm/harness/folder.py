"""A folder of lm-eval tasks: YAML, data, and an index with chance levels and checksums.

The folder needs no network and may be moved: `task_data.py` in it finds the data beside itself. The
index is written last; without it the folder is incomplete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from statetrack.config import from_dict, to_dict
from statetrack.errors import UserError
from statetrack.files import read_json, regular, unreadable, write_atomic, write_json

INDEX = "index.json"
SCHEMA = 1
CODE = "task_data.py"
GROUP = "statetrack"  # the group of all tasks of a pack, and the prefix of their names
Kind = Literal["pack", "sets"]


class Function(str):
    """The value of a YAML key that is a function of `task_data.py`."""


class NewTask(NamedTuple):
    """A task that `write_tasks` writes."""

    about: TaskAbout
    config: dict[str, Any]  # of the YAML file
    splits: Mapping[str, Sequence[Mapping[str, Any]]]  # documents


@dataclass(frozen=True)
class TaskAbout:
    """The entry of a task in the index."""

    name: str  # in lm-eval
    source: str  # the task or the data set it is made of
    questions: int
    length: int | None = None  # steps, of a task of ours
    chance: float | None = None  # accuracy of guessing, or of constant answers if better


@dataclass(frozen=True)
class Index:
    """The file index.json."""

    schema: int
    kind: Kind
    tasks: tuple[TaskAbout, ...]
    files: tuple[str, ...]  # "SHA-256  NAME", of every other file
    missing: tuple[str, ...] = field(default=())  # names of sets that the folder lacks


def write_tasks(
    folder: Path,
    kind: Kind,
    tasks: Iterable[NewTask],
    *,
    group: str | None = None,
    missing: Sequence[str] = (),
) -> Index:
    """Write tasks to an existing folder.

    Args:
        folder: An empty folder.
        kind: What the folder holds.
        tasks: The tasks; each is written before the next one is made.
        group: The name of an lm-eval group of all tasks, if there should be one.
        missing: Names of sets that the folder lacks.
    """
    files: list[str] = []
    about: list[TaskAbout] = []

    def write(name: str, text: str) -> None:
        write_atomic(folder / name, text)
        files.append(f"{hashlib.sha256(text.encode()).hexdigest()}  {name}")

    write(CODE, Path(__file__).with_name(CODE).read_text())
    for task in tasks:
        name = task.about.name
        paths = {split: f"{name}.{split}.jsonl" for split in task.splits}
        for split, documents in task.splits.items():
            lines = [json.dumps(document) + "\n" for document in documents]
            write(paths[split], "".join(lines))
        data = {"custom_dataset": Function("load"), "dataset_kwargs": {"files": paths}}
        write(f"{name}.yaml", to_yaml({**task.config, "task": name, **data}))
        about.append(task.about)
    if group is not None:
        mean = {"metric": "acc", "aggregation": "mean", "weight_by_size": False}
        members = {"task": [a.name for a in about], "aggregate_metric_list": [mean]}
        write(f"{group}.yaml", to_yaml({"group": group, **members, "metadata": {"version": 1}}))
    index = Index(SCHEMA, kind, tuple(about), tuple(files), tuple(missing))
    write_json(folder / INDEX, to_dict(index))
    return index


def read_index(folder: Path) -> Index:
    """Read the index of a folder and compare the checksum of every file.

    Raises:
        UserError: the folder was not made by `write_tasks`, or a file is missing or has changed.
    """
    if not (folder / INDEX).is_file():
        raise UserError(f"{folder} has no {INDEX}: make it with statetrack lm tasks or lm fetch")
    data = read_json(folder / INDEX)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise UserError(f"{folder / INDEX} does not have schema {SCHEMA}, which this version reads")
    index = from_dict(Index, data, str(folder / INDEX))
    for line in index.files:
        checksum, _, name = line.partition("  ")
        path = folder / name
        try:
            found = hashlib.sha256(regular(path).read_bytes()).hexdigest()
        except (OSError, ValueError) as error:
            raise unreadable(path, error) from None
        if found != checksum:
            raise UserError(f"{path} has changed since it was written; make {folder} anew")
    return index


def to_yaml(config: Mapping[str, Any]) -> str:
    """Write a configuration as YAML, one key per line, with values as JSON (a subset of YAML)."""
    lines = []
    for key, value in config.items():
        if isinstance(value, Function):
            lines.append(f"{key}: !function {CODE.removesuffix('.py')}.{value}\n")
        else:
            lines.append(f"{key}: {json.dumps(value)}\n")
    return "".join(lines)
