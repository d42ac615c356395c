"""Export sequences of a task to a file, and check the targets of such a file.

jsonl and parquet have one sequence per row: `length`, `input`, `target` (lists of ids, IGNORE where
nothing is asked). csv is the format of jopetty/word-problem: `seed`, `input`, `target`, with the
elements' ids separated by blanks, a target for every input and no BOS. It is for group word
problems only, always with dense supervision.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from statetrack.config import at_least, one_of
from statetrack.errors import UserError
from statetrack.files import check_output, regular, unreadable, write_atomic
from statetrack.tasks.base import IGNORE, Batch, Ints, Task, generator
from statetrack.tasks.rows import ROW_FORMATS, file_rows, require_pyarrow
from statetrack.tasks.word_problem import GroupWordProblem

FILE_FORMATS = ("jsonl", "parquet", "csv")


def format_of(path: Path) -> str:
    """Return the format that a file's suffix names."""
    format = path.suffix.removeprefix(".")
    if format not in FILE_FORMATS:
        raise UserError(f"{path} must end in one of {', '.join(f'.{f}' for f in FILE_FORMATS)}")
    return format


def export_task(
    task: Task,
    path: Path,
    *,
    format: str | None = None,
    count: int,
    lengths: tuple[int, int],
    split: str = "test",
    data_seed: int = 0,
) -> Task:
    """Write sequences to a new file.

    Args:
        path: The file; its suffix is the format.
        format: If given, it must agree with the suffix.
        count: The number of sequences.
        lengths: The least and the greatest length; lengths are uniform between them.

    Returns:
        The task of the file: with dense supervision if it is a csv.
    """
    if format is not None:
        one_of("format", format, FILE_FORMATS)
    if format not in (None, format_of(path)):
        raise UserError(f"{path} does not end in .{format}, the format asked for")
    at_least("the number of sequences", count, 1)
    task.check_lengths(*lengths)
    if path.exists():
        raise UserError(f"{path} exists; choose another file")
    check_output(path)
    task = _as_written(task, path)
    if format_of(path) == "parquet":
        require_pyarrow()  # fail before drawing
    rng = generator(data_seed, split, 0)
    source = task.for_split(split)
    drawn = source.sample_lengths(rng, *lengths, count)
    rows: list[dict[str, Any]] = []
    for start in range(0, count, 1024):
        rows += _rows(task, source.sample(rng, drawn[start : start + 1024]))
    contents: dict[str, Callable[..., str | bytes]]
    contents = {"jsonl": _jsonl, "parquet": _parquet, "csv": partial(_csv, data_seed=data_seed)}
    write_atomic(path, contents[format_of(path)](rows))
    return task


def import_task(task: Task, path: Path) -> Batch:
    """Read a file in a format of `export_task` and check every target.

    Raises:
        UserError: The file cannot be read, or a target differs from the task's.
    """
    batch, wrong = compare_task(task, path)
    if len(wrong):
        raise wrong_target(task, path, wrong)
    return batch


def wrong_target(task: Task, path: Path, wrong: Ints) -> UserError:
    """Return the error that names the first of the wrong sequences."""
    return UserError(f"{path}, sequence {wrong[0] + 1}: the target is not that of {task.name}")


def compare_task(task: Task, path: Path) -> tuple[Batch, Ints]:
    """Read a file; return its sequences with the task's targets, and those whose targets differ."""
    task = _as_written(task, path)
    try:
        rows = _read(task, path)
        if not rows:
            raise UserError(f"{path} has no sequences")
        lengths = _padded([[row["length"]] for row in rows], 0)[:, 0]
        task.check_lengths(int(lengths.min()), int(lengths.max()))
        sizes = [len(row["input"]) for row in rows]
        if [len(row["target"]) for row in rows] != sizes:
            raise ValueError("a target is not as long as its input")
        if [task.input_size(int(n)) for n in lengths] != sizes:
            raise ValueError("a length does not fit its input")
        tokens = _padded([row["input"] for row in rows], task.pad)
        given = _padded([row["target"] for row in rows], IGNORE)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, csv.Error) as error:
        if isinstance(error, UserError):
            raise
        raise unreadable(path, error, f" as sequences of {task.name}") from None
    try:
        targets = task.solve(tokens)
    except UserError as error:
        raise UserError(f"{path} is no file of {task.name}: {error}") from None
    wrong = np.flatnonzero((targets != given).any(1))
    return Batch(tokens, targets, lengths), wrong


def _as_written(task: Task, path: Path) -> Task:
    if format_of(path) != "csv":
        return task
    if not isinstance(task, GroupWordProblem):
        raise UserError(f"csv is the format of group word problems; {task.name} is none")
    return replace(task, supervision="dense")


def _padded(rows: list[list[int]], fill: int) -> Ints:
    """Make an array [rows, longest], filled at the right."""
    out = np.full((len(rows), max(map(len, rows))), fill, dtype=np.int64)
    for i, row in enumerate(rows):
        if not all(type(n) is int for n in row):
            raise ValueError("a length or id is no whole number")
        out[i, : len(row)] = row
    return out


def _read(task: Task, path: Path) -> list[dict[str, Any]]:
    path = regular(path)
    if path.suffix in ROW_FORMATS:
        return [row for _, row in file_rows(path)]
    assert isinstance(task, GroupWordProblem)  # _as_written has checked it
    return [_csv_row(task, row) for row in _csv_lines(path.read_text())]


def _csv_lines(text: str) -> Iterator[dict[str, str]]:
    limit = csv.field_size_limit(len(text))  # Python's default limit is 128 KiB
    try:
        reader = csv.DictReader(io.StringIO(text), strict=True)
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(f"line {reader.line_num} has not the columns of the first")
            yield row
    finally:
        csv.field_size_limit(limit)


def _csv_row(task: GroupWordProblem, row: dict[str, str]) -> dict[str, Any]:
    inputs, targets = ([int(n) for n in row[key].split()] for key in ("input", "target"))
    return {"length": len(inputs), "input": [task.bos, *inputs], "target": [task.bos, *targets]}


def _rows(task: Task, batch: Batch) -> list[dict[str, Any]]:
    sizes = (batch.tokens != task.pad).sum(1)
    return [
        {"length": int(length), "input": tokens[:size].tolist(), "target": targets[:size].tolist()}
        for tokens, targets, length, size in zip(*batch, sizes, strict=True)
    ]


def _jsonl(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _csv(rows: list[dict[str, Any]], data_seed: int) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["seed", "input", "target"])
    for row in rows:
        ids = [" ".join(map(str, row[key][1:])) for key in ("input", "target")]  # without BOS
        writer.writerow([data_seed, *ids])
    return out.getvalue()


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    arrow = require_pyarrow()
    out = io.BytesIO()
    arrow.parquet.write_table(arrow.Table.from_pylist(rows), out)
    return out.getvalue()
