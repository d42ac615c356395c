"""`statetrack tasks`: show a task, write its sequences to a file, check a file against it.

Which flags there are depends on the task, so its name is read first, as in `statetrack train`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from statetrack.cli.flags import Flag, config_flags, described, first_values, parse, positional
from statetrack.config import to_dict
from statetrack.files import plain_name
from statetrack.tasks import FAMILIES, IGNORE, Task, generator, make_task
from statetrack.tasks.exchange import compare_task, export_task, format_of, wrong_target
from statetrack.terminal import Json, check_json, make_console, print_table, write_result


def main(args: Sequence[str]) -> None:
    """Run `statetrack tasks` with the rest of the command line."""
    commands = {"export": _export, "import": _import}
    if args and args[0] in commands:
        commands[args[0]](args[1:])
    else:
        _show(args)


def _show(args: Sequence[str]) -> None:
    about = (
        "List the tasks, or show one of them, with its options as flags. `statetrack tasks export` "
        "writes sequences to a file, `statetrack tasks import` checks such a file."
    )
    name = positional(str | None, "[NAME]", "a task to show in full, with an example")
    flags = [Flag("name", name, None), Flag("json", Json, None)]
    given, task = _parse("tasks", about, flags, args)
    check_json(given.json)
    if task is None:
        _list(given.json)
    else:
        _show_one(task, given.json)


def _list(json: str | None) -> None:
    console = make_console(json)
    found = [make_task(example) for family in FAMILIES for example in family.examples]
    columns = ["task", "family", "what is asked", "tokens", "chance", "scored on"]
    body = [
        [t.name, t.family, t.about, str(len(t.vocab)), f"{t.chance:.4g}", t.metric] for t in found
    ]
    few = [0, 2, 3]  # what fits beside the longest name; the rest is in the JSON and per task
    shown = [[row[i] for i in few] for row in body]
    print_table(console, "Tasks", [columns[i] for i in few], shown)
    more = "Also any group (S<n>, A<n>, Z<m>, D<n>, Q8, products, group:FILE) and dfa:FILE."
    console.print(more, style="dim")
    write_result(json, {"tasks": [dict(zip(columns, row, strict=True)) for row in body]})


def _show_one(task: Task, json: str | None) -> None:
    console = make_console(json)
    length = max(40, task.min_length)  # the greatest training length unless another is chosen
    majority = task.majority(length)
    batch = task.sample(generator(0, "test", 0), np.array([max(10, task.min_length)]))
    tokens = [task.vocab[t] for t in batch.tokens[0]]
    targets = ["." if t == IGNORE else task.vocab[t] for t in batch.targets[0]]
    options = ", ".join(f"{k}={v}" for k, v in to_dict(task).items() if k != "name")
    console.print(f"{task.name} ({task.family}): {task.about}")
    console.print(inspect.cleandoc(type(task).__doc__ or ""), style="dim")
    console.print(f"options: {options}")
    blind = f"guessing {task.chance:.4g}, always the most frequent {majority:.4g} at {length}"
    console.print(f"scored on: {task.metric}; {blind}")
    console.print(f"input:   {' '.join(tokens)}")
    console.print(f"target:  {' '.join(targets)}")
    write_result(
        json,
        {
            **to_dict(task),
            "about": task.about,
            "vocab": list(task.vocab),
            "chance": task.chance,
            "majority": majority,
            "metric": task.metric,
            "example": {"input": tokens, "target": targets},
        },
    )


def _export(args: Sequence[str]) -> None:
    formats, splits = Literal["jsonl", "parquet", "csv"], Literal["train", "validation", "test"]
    flags = [
        Flag("name", positional(str, "NAME", "a task")),
        Flag("out", described(Path | None, "a new file; NAME-SPLIT.FORMAT if absent"), None),
        Flag("n", described(int, "how many sequences"), 10_000),
        Flag(
            "format",
            described(
                formats | None,
                "the file's ending, or jsonl, if absent; csv is that of jopetty/word-problem, for "
                "word problems only and with a target for every token",
            ),
            None,
        ),
        Flag("split", described(splits, "which stream they come from"), "test"),
        Flag("min_length", described(int, "least length"), 40),
        Flag("max_length", described(int, "greatest length"), 256),
        Flag("data_seed", described(int, "of the stream"), 0),
        Flag("json", Json, None),
    ]
    about = "Write sequences of a task to a file. NAME --help shows the task's options, too."
    given, task = _parse("tasks export", about, flags, args)
    assert task is not None  # the name is required
    check_json(given.json)
    console = make_console(given.json)
    out = given.out or Path(f"{plain_name(task.name)}-{given.split}.{given.format or 'jsonl'}")
    written = export_task(
        task,
        out,
        format=given.format,
        count=given.n,
        lengths=(given.min_length, given.max_length),
        split=given.split,
        data_seed=given.data_seed,
    )
    console.print(f"{given.n} sequences of {task.name} in {out}")
    if written != task:
        console.print("csv has a target for every token: supervision is dense")
    told = {"file": str(out), "format": format_of(out), "sequences": given.n}
    write_result(given.json, {**told, "task": to_dict(written)})


def _import(args: Sequence[str]) -> None:
    flags = [
        Flag("file", positional(Path, "FILE", "a jsonl, parquet or csv file")),
        Flag("task", described(str, "the task that the file is of, see `statetrack tasks`")),
        Flag("json", Json, None),
    ]
    about = "Solve every sequence of a file and compare its targets with the right ones."
    given, task = _parse("tasks import", about, flags, args)
    assert task is not None  # the task is required
    check_json(given.json)
    console = make_console(given.json)
    batch, wrong = compare_task(task, given.file)
    count, tokens = len(batch.lengths), int((batch.tokens != task.pad).sum())
    low, high = int(batch.lengths.min()), int(batch.lengths.max())
    lengths = f"length {low}" if low == high else f"lengths {low}-{high}"
    agree = count - len(wrong)
    console.print(f"{given.file}: {count} sequences of {lengths}, {tokens} tokens")
    console.print(f"{agree} of {count} have the targets of {task.name}")
    result = {
        "file": str(given.file),
        "task": to_dict(task),
        "sequences": count,
        "tokens": tokens,
        "min_length": low,
        "max_length": high,
        "agree": agree,
        "disagree": [int(i) + 1 for i in wrong],  # counted from 1, as in messages
    }
    write_result(given.json, result)
    if len(wrong):
        raise wrong_target(task, given.file, wrong)


def _parse(
    command: str, about: str, flags: list[Flag], args: Sequence[str]
) -> tuple[Any, Task | None]:
    """The values of the flags and, if one of them (`name` or --task) names a task, that task."""
    name = _task_name(flags, args)
    options = [] if name is None else list(config_flags(make_task(name)))
    given = parse(command, about, flags + options, args)
    if name is None:  # none is given, or the first parser failed where this one did not
        name = given.task if hasattr(given, "task") else given.name
    chosen = {flag.name: getattr(given, flag.name) for flag in options}
    return given, None if name is None else replace(make_task(name), **chosen)


def _task_name(flags: list[Flag], args: Sequence[str]) -> str | None:
    """The task on the command line, whose options are not known yet."""
    named = [flag.name for flag in flags if flag.name not in ("name", "file")]
    known, rest = first_values(named, args)
    if hasattr(known, "task"):
        task: str | None = known.task
        return task
    return next((word for word in rest if not word.startswith("-")), None)
