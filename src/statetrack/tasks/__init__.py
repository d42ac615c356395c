"""Tasks that measure state tracking. Every module in this package registers its own."""

import importlib
import pkgutil
from typing import Any

from statetrack.config import from_dict
from statetrack.errors import check_type
from statetrack.tasks.base import (
    FAMILIES,
    IGNORE,
    Batch,
    PrefixTask,
    Task,
    generator,
    register,
)
from statetrack.tasks.data import Data, FiniteDataset, HeldOut, Stream

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def make_task(name: str, **options: Any) -> Task:
    """Make a task.

    Args:
        name: A name that `statetrack tasks` lists, `regex:PATTERN`, `dfa:FILE`, `group:FILE`,
            `dataset:FILE` or `automaton:TASK`.
        options: The fields of the task's class.

    Returns:
        The task: a frozen dataclass that draws sequences (`sample`) and solves them (`solve`).

    >>> make_task("S5_only_swaps", supervision="last").family
    'word problem'
    """
    check_type("the name of a task", name, str, "a text")
    return from_dict(Task.class_for(name), {"name": name, **options}, "task")


__all__ = [
    "FAMILIES",
    "IGNORE",
    "Batch",
    "Data",
    "FiniteDataset",
    "HeldOut",
    "PrefixTask",
    "Stream",
    "Task",
    "generator",
    "make_task",
    "register",
]
