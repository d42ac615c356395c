"""The results of a sweep in a few compressed files, without weights and logs.

A packed sweep is a folder with sweep.json and, for each task, TASK.jsonl.gz: a line per finished
job with the name of its folder, its job.json and its result.json.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

from statetrack.errors import UserError
from statetrack.files import (
    PREFIX,
    parse_json,
    plain_name,
    read_json,
    regular,
    sole_writer,
    unreadable,
    write_atomic,
    write_json,
)
from statetrack.sweep.engine import JOB, SWEEP
from statetrack.sweep.work import RESULT, read_result

SUFFIX = ".jsonl.gz"


def pack(sweep: Path, out: Path) -> int:
    """Write the results of a sweep into a packed one; files of the same tasks are replaced.

    Args:
        sweep: folder of the sweep.
        out: folder of the packed one, new or old.

    Returns:
        The number of results.

    Raises:
        UserError: The folder is not a sweep, has no results, or a file cannot be read.
    """
    # the command names folders of the machine that ran it
    about = {name: value for name, value in read_json(sweep / SWEEP).items() if name != "command"}
    if (out / "jobs").exists():
        raise UserError(f"{out} holds a sweep; choose another folder for the packed one")
    lines: dict[str, list[str]] = defaultdict(list)
    for path in sorted((sweep / "jobs").glob(f"*/{RESULT}")):
        folder = path.parent
        result = read_result(folder)
        line = {"folder": folder.name, "job": read_json(folder / JOB), "result": result}
        lines[plain_name(str(result["task"]))].append(json.dumps(line, separators=(",", ":")))
    if not lines:
        raise UserError(f"{sweep} has no results yet")
    with sole_writer(out):
        for name, found in lines.items():
            # without a time stamp: the same results give the same file
            data = gzip.compress(("\n".join(found) + "\n").encode(), mtime=0)
            write_atomic(out / f"{name}{SUFFIX}", data)
        write_json(out / SWEEP, about)
    return sum(map(len, lines.values()))


def unpack(packed: Path, sweep: Path) -> int:
    """Add the results of a packed sweep to the folder of a sweep, which then continues from them.

    Args:
        packed: what `pack` wrote.
        sweep: folder of the sweep, new or old; what it has already is kept.

    Returns:
        The number of results that were added.

    Raises:
        UserError: A file cannot be read.
    """
    about = read_json(packed / SWEEP)
    files = sorted(packed.glob(f"*{SUFFIX}"))
    if not files:
        raise UserError(f"{packed} has no file *{SUFFIX}: it is not a packed sweep")
    found = [line for file in files for line in _read_lines(file)]
    added = 0
    with sole_writer(sweep):
        for line in found:
            folder = sweep / "jobs" / line["folder"]
            if (folder / RESULT).exists():
                continue
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / JOB, line["job"])
            write_json(folder / RESULT, line["result"])
            added += 1
        if not (sweep / SWEEP).exists():
            write_json(sweep / SWEEP, about)
    return added


def _read_lines(file: Path) -> list[dict[str, Any]]:
    try:
        text = gzip.decompress(regular(file).read_bytes()).decode()
        lines = [parse_json(line) for line in text.splitlines()]
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise unreadable(file, error) from None
    for number, line in enumerate(lines, 1):
        if not isinstance(line, dict) or {"folder", "job", "result"} - line.keys():
            raise UserError(f"{file}, line {number}: the keys are folder, job and result")
        name = line["folder"]
        if not isinstance(name, str) or plain_name(name) != name or name.startswith(PREFIX):
            raise UserError(f"{file}, line {number}: {name!r} cannot be the name of a job's folder")
    return lines
