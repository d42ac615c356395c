"""List the files that two commands cross, function by function, as docs/architecture.md shows them.

    python -m benchmarks walks compile
    python -m benchmarks walks train

Functions of `statetrack` are listed in the order of their first calls: for `compile` those
of the whole command, for `train` those of one training step, from the batch through the kernels and
back. A return is a change to a file that the walk had already left. What runs while a module is
imported does not count.
"""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import statetrack
from statetrack.cli import main as command
from statetrack.config import unknown
from statetrack.errors import UserError

COMMANDS = {  # the function that the walk starts from, and the command
    "compile": ("main", ["compile", "(ab)*", "--prove"]),
    "train": ("_Loop.step", ["train", "--task", "parity", "--mixer", "delta_net", "--steps", "1"]),
}
SOURCE = Path(statetrack.__file__).parent


class Walk(NamedTuple):
    """The functions of a command in the order of their first calls."""

    functions: list[tuple[str, str]]  # file, name

    @property
    def files(self) -> list[str]:
        """The files in order; one that is entered again stands there again."""
        return [file for file, _ in groupby(file for file, _ in self.functions)]

    @property
    def returns(self) -> int:
        """Count the times that the walk enters a file which it had left."""
        return len(self.files) - len(set(self.files))


def walk(start: str, args: list[str]) -> Walk:
    """Run a command in an empty folder; record the functions called while `start` runs."""
    found: dict[tuple[str, str], None] = {}
    depth = 0  # of `start`

    def record(frame: FrameType, event: str, _: object) -> None:
        nonlocal depth
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(str(SOURCE)):
            return
        if code.co_qualname == start:
            depth += 1 if event == "call" else -1
        is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        if event == "call" and depth and is_function and not _importing(frame):
            file = str(Path(code.co_filename).relative_to(SOURCE))
            found.setdefault((file, code.co_qualname))

    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.setprofile(record)
        try:
            code = command(args)
        finally:
            sys.setprofile(None)
            os.chdir(home)
    if code:
        raise UserError(f"statetrack {' '.join(args)} failed")
    return Walk(list(found))


def _importing(frame: FrameType | None) -> bool:
    """Whether a module of `statetrack` is being executed."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and code.co_filename.startswith(str(SOURCE)):
            return True
        frame = frame.f_back
    return False


def main(commands: tuple[str, ...] = tuple(COMMANDS)) -> None:
    """Print the files and functions that a command crosses.

    Args:
        commands: compile, train or both.
    """
    for name in commands:
        if name not in COMMANDS:
            raise unknown("command", name, COMMANDS)
        found = walk(*COMMANDS[name])
        print(f"{name}: {len(set(found.files))} files, {found.returns} returns")
        for file, functions in groupby(found.functions, key=lambda row: row[0]):
            print(f"  {file}: {', '.join(function for _, function in functions)}")
