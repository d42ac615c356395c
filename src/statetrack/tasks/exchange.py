"""Tasks as files: to use our data elsewhere, or to check data from elsewhere.

jsonl and parquet hold one sequence a row: `length`, `input`, `target` (lists of ids, IGNORE where
nothing is asked). csv is that of jopetty/word-problem: `seed`, `input`, `target` with the ids of
the elements separated by blanks and without BOS, so it exists for group word problems only.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from statetrack.config import at_least, one_of
from statetrack.errors import UserError
from statetrack.files import write_atomic
from statetrack.tasks.base import IGNORE, Batch, Task, generator
from statetrack.tasks.word_problem import GroupWordProblem

FORMATS = ("jsonl", "parquet", "csv")


def export_task(
    task: Task,
    path: Path,
    *,
    format: str,
    count: int,
    lengths: tuple[int, int],
    split: str = "test",
    data_seed: int = 0,
) -> None:
    """Write `count` sequences with lengths uniform on `lengths` to a new file."""
    one_of("format", format, FORMATS)
    at_least("the number of sequences", count, 1)
    task.check_lengths(*lengths)
    if path.exists():
        raise UserError(f"{path} exists; choose another file")
    if format == "csv" and not isinstance(task, GroupWordProblem):
        raise UserError(f"csv is the format of group word problems; {task.name} is none")
    rng = generator(data_seed, split, 0)
    drawn = rng.integers(lengths[0], lengths[1] + 1, count)
    rows: list[dict[str, Any]] = []
    for start in range(0, count, 1024):
        rows += _rows(task, task.sample(rng, drawn[start : start + 1024]))
    if format == "jsonl":
        write_atomic(path, "".join(json.dumps(row) + "\n" for row in rows))
    elif format == "parquet":
        write_atomic(path, _parquet(rows))
    else:
        write_atomic(path, _csv(rows, data_seed))


def import_task(task: Task, path: Path) -> Batch:
    """Read what `export_task` wrote, or others in its formats, and check it against the task."""
    try:
        rows = _read(task, path)
        lengths = np.array([row["length"] for row in rows])
        sizes = [len(row["input"]) for row in rows]
        if [len(row["target"]) for row in rows] != sizes:
            raise ValueError("a target is not as long as its input")
        if [task.input_size(int(n)) for n in lengths] != sizes:
            raise ValueError("a length does not fit its input")
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"cannot read {path} as sequences of {task.name}: {error}") from None
    if not rows:
        raise UserError(f"{path} has no sequences")
    tokens = np.full((len(rows), max(sizes)), task.pad)
    given = np.full((len(rows), max(sizes)), IGNORE)
    for i, row in enumerate(rows):
        tokens[i, : sizes[i]] = row["input"]
        given[i, : sizes[i]] = row["target"]
    targets = task.solve(tokens)
    wrong = np.flatnonzero((targets != given).any(1))
    if len(wrong):
        raise UserError(f"{path}, sequence {wrong[0] + 1}: the target is not that of {task.name}")
    return Batch(tokens, targets, lengths)


def _read(task: Task, path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if path.suffix == ".parquet":
        rows: list[dict[str, Any]] = _pyarrow().parquet.read_table(path).to_pylist()
        return rows
    if path.suffix == ".csv" and isinstance(task, GroupWordProblem):
        return [_csv_row(task, row) for row in csv.DictReader(io.StringIO(path.read_text()))]
    raise UserError(f"cannot read {path} for {task.name}; known: {', '.join(FORMATS)}")


def _csv_row(task: GroupWordProblem, row: dict[str, str]) -> dict[str, Any]:
    inputs, targets = ([int(n) for n in row[key].split()] for key in ("input", "target"))
    first = task.bos if task.supervision == "dense" else IGNORE
    return {"length": len(inputs), "input": [task.bos, *inputs], "target": [first, *targets]}


def _rows(task: Task, batch: Batch) -> list[dict[str, Any]]:
    sizes = (batch.tokens != task.pad).sum(1)
    return [
        {"length": int(length), "input": tokens[:size].tolist(), "target": targets[:size].tolist()}
        for tokens, targets, length, size in zip(*batch, sizes, strict=True)
    ]


def _csv(rows: list[dict[str, Any]], data_seed: int) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["seed", "input", "target"])
    for row in rows:
        ids = [" ".join(map(str, row[key][1:])) for key in ("input", "target")]  # without BOS
        writer.writerow([data_seed, *ids])
    return out.getvalue()


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    arrow = _pyarrow()
    out = io.BytesIO()
    arrow.parquet.write_table(arrow.Table.from_pylist(rows), out)
    return out.getvalue()


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError("parquet needs pyarrow: pip install 'statetrack[parquet]'") from None
    return pyarrow
