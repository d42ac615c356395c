"""Which lm-eval tasks to run: names, the paper's sets or the pack, from folders or the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lm_eval.tasks import TaskManager

from statetrack.config import unknown
from statetrack.errors import UserError
from statetrack.lm.harness.folder import GROUP, TaskAbout, read_index
from statetrack.lm.harness.published import PAPER_TASKS


@dataclass(frozen=True)
class Selection:
    """Tasks, in the order of their evaluation."""

    tasks: tuple[TaskAbout, ...]
    missing: tuple[str, ...]  # the paper's tasks that no folder has
    manager: TaskManager


def select_tasks(
    names: Sequence[str], folders: Sequence[Path], *, online: bool = False
) -> Selection:
    """Find tasks in folders of `statetrack lm tasks` and `statetrack lm fetch`.

    Args:
        names: `paper` for the tasks of the paper's table, `pack` or `statetrack`, the name of its
            group, for all of a pack, or names.
        folders: The folders that have the tasks.
        online: Whether to take tasks that no folder has from lm-eval, with data from the Hub.

    Raises:
        UserError: A task is unknown, is in two folders, or its files do not load.
    """
    found: dict[str, TaskAbout] = {}
    pack: list[str] = []
    for folder in dict.fromkeys(path.resolve() for path in folders):
        index = read_index(folder)
        for about in index.tasks:
            if about.name in found:
                raise UserError(f"{about.name} is in two of the folders; give one of them")
            found[about.name] = about
            pack += [about.name] if index.kind == "pack" else []
    manager = TaskManager(include_path=[str(f) for f in folders], include_defaults=online)
    stock = set(manager.all_subtasks) if online else set()
    wanted: list[str] = []
    missing: list[str] = []
    for name in names:
        if name == "paper":
            present = [task for task in PAPER_TASKS if task in found or task in stock]
            if not present:
                raise UserError("no folder has the paper's sets: make one with statetrack lm fetch")
            wanted += present
            missing += [task for task in PAPER_TASKS if task not in present]
        elif name in ("pack", GROUP):
            if not pack:
                raise UserError("no folder has a pack: make one with statetrack lm tasks")
            wanted += pack
        elif name in found or name in stock:
            wanted.append(name)
        else:
            raise unknown("task", name, ["paper", "pack", GROUP, *found, *stock])
    tasks = [found.get(name, TaskAbout(name, name, 0)) for name in dict.fromkeys(wanted)]
    for task in tasks:
        if task.name not in manager.all_subtasks:
            raise UserError(
                f"lm-eval cannot read {task.name}.yaml: its folder was made with another "
                "installation of lm-eval; make it anew"
            )
    return Selection(tuple(tasks), tuple(dict.fromkeys(missing)), manager)
