"""`statetrack tasks`, `statetrack tasks export` and `statetrack tasks import`.

The options of the chosen task are flags of each.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, Literal

import numpy as np

from statetrack.cli.parser import Option, config_options
from statetrack.config import to_dict
from statetrack.files import plain_name
from statetrack.terminal import make_console, print_table, write_result


def task_options(first: dict[str, Any]) -> list[Option]:
    """List the options of the task that the command names."""
    from statetrack.tasks import make_task

    name = first.get("task", first.get("name"))
    return [] if name is None else list(config_options(make_task(name)))


def tasks(name: str | None = None, *, json: str | None = None, **options: Any) -> None:
    """List the tasks, or show one; export and import files of its sequences.

    `statetrack tasks NAME --help` shows the task's options, too. `statetrack tasks export` writes
    sequences to a file, `statetrack tasks import` checks such a file.

    Args:
        name: a task to show in full, with an example.
    """
    from statetrack.tasks import FAMILIES, IGNORE, generator, make_task

    console = make_console(json)
    if name is None:
        found = [make_task(example) for family in FAMILIES for example in family.examples]
        columns = ["task", "family", "what is asked", "tokens", "chance", "scored on"]
        body = [
            [t.name, t.family, t.about, str(len(t.vocab)), f"{t.chance:.4g}", t.metric]
            for t in found
        ]
        few = [0, 2, 3]  # what fits beside the longest name; the rest is in the JSON and per task
        shown = [[row[i] for i in few] for row in body]
        print_table(console, "Tasks", [columns[i] for i in few], shown)
        groups = "any group (S<n>, A<n>, Z<m>, D<n>, Q8, products, group:FILE)"
        more = f"Also {groups}, dfa:FILE and dataset:FILE."
        console.print(more, style="dim")
        write_result(json, {"tasks": [dict(zip(columns, row, strict=True)) for row in body]})
        return
    task = make_task(name, **options)
    # the greatest training length unless another is chosen
    length = task.near_length(max(40, task.min_length))
    majority = task.majority(length)
    short = task.near_length(max(10, task.min_length))
    batch = task.sample(generator(0, "test", 0), np.array([short]))
    tokens = [task.vocab[t] for t in batch.tokens[0]]
    targets = ["." if t == IGNORE else task.vocab[t] for t in batch.targets[0]]
    values = ", ".join(f"{k}={v}" for k, v in to_dict(task).items() if k != "name")
    console.print(f"{task.name} ({task.family}): {task.about}")
    console.print(inspect.cleandoc(type(task).__doc__ or ""), style="dim")
    console.print(f"options: {values}")
    blind = f"guessing {task.chance:.4g}, always the most frequent {majority:.4g} at {length}"
    console.print(f"scored on: {task.metric}; {blind}")
    console.print(f"input:   {' '.join(tokens)}")
    console.print(f"target:  {' '.join(targets)}")
    facts = {
        "about": task.about,
        "vocab": list(task.vocab),
        "chance": task.chance,
        "majority": majority,
        "metric": task.metric,
        "example": {"input": tokens, "target": targets},
    }
    write_result(json, {**to_dict(task), **facts})


def export_file(
    name: str,
    *,
    out: Path | None = None,
    n: int = 10_000,
    format: Literal["jsonl", "parquet", "csv"] | None = None,
    split: Literal["train", "validation", "test"] = "test",
    min_length: int = 40,
    max_length: int = 256,
    data_seed: int = 0,
    json: str | None = None,
    **options: Any,
) -> None:
    """Write sequences of a task to a file. NAME --help shows the task's options, too.

    Args:
        name: a task.
        out: a new file; NAME-SPLIT.FORMAT if absent.
        n: how many sequences.
        format: the file's ending, or jsonl, if absent; csv is that of jopetty/word-problem, for
            word problems only and with a target for every token.
        split: which stream they come from.
        min_length: least length.
        max_length: greatest length.
        data_seed: seed of the stream.
    """
    from statetrack.tasks import make_task
    from statetrack.tasks.exchange import export_task, format_of

    task = make_task(name, **options)
    console = make_console(json)
    out = out or Path(f"{plain_name(task.name)}-{split}.{format or 'jsonl'}")
    written = export_task(
        task,
        out,
        format=format,
        count=n,
        lengths=(min_length, max_length),
        split=split,
        data_seed=data_seed,
    )
    console.print(f"{n} sequences of {task.name} in {out}")
    if written != task:
        console.print("csv has a target for every token: supervision is dense")
    facts = {"file": str(out), "format": format_of(out), "sequences": n}
    write_result(json, {**facts, "task": to_dict(written)})


def import_file(file: Path, *, task: str, json: str | None = None, **options: Any) -> None:
    """Solve every sequence of a file and compare its targets with the right ones.

    Args:
        file: a jsonl, parquet or csv file.
        task: the task that the file is of, see `statetrack tasks`.
    """
    from statetrack.tasks import make_task
    from statetrack.tasks.exchange import compare_task, wrong_target

    chosen = make_task(task, **options)
    console = make_console(json)
    batch, wrong = compare_task(chosen, file)
    count, tokens = len(batch.lengths), int((batch.tokens != chosen.pad).sum())
    low, high = int(batch.lengths.min()), int(batch.lengths.max())
    lengths = f"length {low}" if low == high else f"lengths {low}-{high}"
    agree = count - len(wrong)
    console.print(f"{file}: {count} sequences of {lengths}, {tokens} tokens")
    console.print(f"{agree} of {count} have the targets of {chosen.name}")
    result = {
        "file": str(file),
        "task": to_dict(chosen),
        "sequences": count,
        "tokens": tokens,
        "min_length": low,
        "max_length": high,
        "agree": agree,
        "disagree": [int(i) + 1 for i in wrong],  # counted from 1, as in messages
    }
    write_result(json, result)
    if len(wrong):
        raise wrong_target(chosen, file, wrong)
