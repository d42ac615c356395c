"""The command line: parses, calls, prints. Heavy imports wait until a command needs them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import tyro

from statetrack.allocator import tune_allocator
from statetrack.config import to_dict
from statetrack.errors import UserError
from statetrack.terminal import (
    Json,
    check_json,
    make_console,
    print_table,
    quiet_stdout,
    write_result,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, 2 for a mistake in the input, 130 for Ctrl-C."""
    args = list(sys.argv[1:] if argv is None else argv)
    commands: dict[str, Callable[..., Any]] = {
        "demo": demo,
        "train": train,
        "eval": evaluate,
        "tasks": tasks,
        "models": models,
        "bench": bench,
        "info": info,
    }
    try:
        if args == ["--version"]:
            sys.stdout.write(f"statetrack {version('statetrack')}\n")
            return 0
        if args[:1] and args[0] in ("demo", "train", "eval", "bench"):
            tune_allocator()
        if args[:2] == ["bench", "ops"]:
            tyro.cli(bench_ops, prog="statetrack bench ops", args=args[2:])
            return 0
        if args[:2] == ["tasks", "export"]:
            tyro.cli(export, prog="statetrack tasks export", args=args[2:])
            return 0
        if args[:1] == ["train"]:
            from statetrack import train_command

            train_command.main(args[1:])
            return 0
        tyro.extras.subcommand_cli_from_dict(
            commands,
            prog="statetrack",
            description="Linear RNNs that can track state.",
            args=args or ["--help"],
            sort_subcommands=False,
        )
    except UserError as error:
        return _fail(str(error))
    except BrokenPipeError:
        quiet_stdout()
        return 0
    except MemoryError as error:
        return _fail(f"not enough memory: {error or 'choose a smaller batch, length or model'}")
    except OSError as error:
        named = f" {error.filename}" if error.filename else ""
        return _fail(f"cannot read or write{named}: {error.strerror or error}")
    except KeyboardInterrupt:
        return 130
    return 0


def demo(
    seed: int = 0,
    out: Path | None = None,
    json: Json = None,
    quick: bool = False,
    workers: int | None = None,
) -> None:
    """Train and compare, live: what eigenvalues in [-1,1] can track and [0,1] cannot.

    Args:
        seed: n stands for the training seeds 3n, 3n + 1, 3n + 2 on parity and 3n on swaps.
        out: folder for the figure, page, metrics and checkpoints; runs/demo-1, -2, ... if absent.
        json: see above.
        quick: everything, but too short to learn: a test of the machinery in seconds.
        workers: processes that train side by side; one per core if absent.
    """
    if not 0 <= seed < 2**30:
        raise UserError(f"seed must lie in 0..2^30-1; got {seed}")
    if workers is not None and workers < 1:
        raise UserError(f"workers must be at least 1; got {workers}")
    from statetrack.experiments.demo import Demo
    from statetrack.experiments.display import Display
    from statetrack.experiments.report import NOTE, print_tables, write_report
    from statetrack.files import free_folder, new_folder

    check_json(json)
    console = make_console(json)
    folder = new_folder(out or free_folder(Path("runs"), "demo"))
    this = Demo.start(seed, folder, quick=quick)
    titles = [f"{job.experiment} {job.title} s{job.config.training.seed}" for job in this.jobs]
    try:
        with Display(titles, console) as display:
            for event in this.run(workers):
                display.show(event)
    finally:  # whatever ended it: what is done is kept and shown
        summary = this.summary()
        write_report(summary, folder)
        print_tables(summary, console)
        if not this.complete:
            said = (
                f"Cut short: {len(this.results)} of {len(this.jobs)} runs are done; see {folder}."
            )
            console.print(said, markup=False)
        write_result(json, summary)
    console.print(NOTE, style="dim", markup=False)
    page = folder / "index.html"
    console.print(f"{this.seconds:.0f} s. Open {page} for the figure.", markup=False)


def train() -> None:
    """Train a model on a task into a run folder. Options: statetrack train --help."""


def evaluate(
    run: tyro.conf.Positional[Path],
    /,
    lengths: tuple[str, ...] = (),
    samples: int = 1024,
    split: Literal["validation", "test"] = "test",
    data_seed: int | None = None,
    curve: int | None = None,
    figure: Path | None = None,
    json: Json = None,
) -> None:
    """Evaluate a run by length.

    Args:
        run: a run folder.
        lengths: lengths, and ranges such as 40-256 from which they are drawn; by default the
            training range and multiples of its end.
        samples: sequences per length or range.
        split: which fresh sequences; training draws from neither.
        data_seed: of the sequences; the run's own if absent.
        curve: accuracy against length up to this one, of at most 256 sequences each, and the
            horizon: the length up to which it stays at 0.99 or above.
        figure: a PNG, SVG or PDF of the results against length, training lengths marked.
        json: see above.
    """
    from statetrack.experiments.figures import check_figure, write_figure
    from statetrack.training import Run
    from statetrack.training import curve as trace_curve
    from statetrack.training import evaluate as evaluate_model

    check_json(json)
    opened = Run.open(run)
    task, trained = opened.config.task, opened.config.training
    top = trained.max_length
    wanted = [_length(text) for text in lengths] or [
        (trained.min_length, top), *((n * top, n * top) for n in (1, 2, 4, 8))
    ]  # fmt: skip
    for low, high in wanted:
        task.check_lengths(low, high)
    if figure is not None:
        check_figure(figure)
    model = opened.model()
    console = make_console(json)
    rows = []
    traced = None
    seed = trained.data_seed if data_seed is None else data_seed
    with console.status("evaluating") as status:
        if curve is not None:
            status.update(f"evaluating {task.name} up to {curve}")
            traced = trace_curve(
                model, task, curve, samples=min(samples, 256), split=split, data_seed=seed
            )
        for low, high in wanted:
            status.update(f"evaluating {task.name} at {low}-{high}")
            result = evaluate_model(
                model, task, (low, high), samples=samples, split=split, data_seed=seed
            )
            rows.append(result)
    columns = [
        "length", f"{task.metric} accuracy", "95 % interval", "majority", "scaled", "per token",
    ]  # fmt: skip
    body = [
        [
            str(r.min_length) if r.min_length == r.max_length else f"{r.min_length}-{r.max_length}",
            f"{r.score:.4f}",
            f"{r.low:.4f}-{r.high:.4f}",
            f"{r.majority:.4f}",
            f"{r.scaled:.4f}",
            f"{r.token_accuracy:.4f}",
        ]
        for r in rows
    ]
    title = f"{opened.config.model.title} on {task.name}, trained on {trained.min_length}-{top}"
    print_table(console, title, columns, body)
    result_: dict[str, Any] = {"run": str(run), "results": [r.to_json() for r in rows]}
    if traced is not None:
        result_["curve"] = traced.to_json()
        reached = f"to length {traced.horizon}" if traced.horizon else "at no length"
        console.print(f"Accuracy stays at 0.99 or above {reached} (of {curve}).", markup=False)
    if figure is not None:
        write_figure(figure, title, task.metric, rows, traced, top)
    write_result(json, result_)


def tasks(name: tyro.conf.Positional[str | None] = None, /, json: Json = None) -> None:
    """List the tasks, or show one of them.

    Args:
        name: a task to show in full, with an example.
        json: see above.
    """
    import numpy as np

    from statetrack.tasks import FAMILIES, IGNORE, generator, make_task

    check_json(json)
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
        more = "Also any group (S<n>, A<n>, Z<m>, D<n>, Q8, products, group:FILE) and dfa:FILE."
        console.print(more, style="dim", markup=False)
        rows = [dict(zip(columns, row, strict=True)) for row in body]
        write_result(json, {"tasks": rows})
        return
    task = make_task(name)
    batch = task.sample(generator(0, "test", 0), np.array([max(10, task.min_length)]))
    tokens = [task.vocab[t] for t in batch.tokens[0]]
    targets = ["." if t == IGNORE else task.vocab[t] for t in batch.targets[0]]
    console.print(f"{task.name} ({task.family}): {task.about}", markup=False)
    console.print(inspect.cleandoc(type(task).__doc__ or ""), style="dim", markup=False)
    console.print(f"options: {_options_text(task)}", markup=False)
    console.print(f"input:   {' '.join(tokens)}", markup=False)
    console.print(f"target:  {' '.join(targets)}", markup=False)
    write_result(
        json,
        {
            **to_dict(task),
            "about": task.about,
            "vocab": list(task.vocab),
            "chance": task.chance,
            "metric": task.metric,
            "example": {"input": tokens, "target": targets},
        },
    )


def export(
    name: tyro.conf.Positional[str],
    /,
    out: Path | None = None,
    n: int = 10_000,
    format: Literal["jsonl", "parquet", "csv"] = "jsonl",
    split: Literal["train", "validation", "test"] = "test",
    min_length: int = 40,
    max_length: int = 256,
    data_seed: int = 0,
) -> None:
    """Write sequences of a task to a file.

    Args:
        name: a task.
        out: the file, NAME-SPLIT.FORMAT if absent; it must not exist.
        n: how many sequences.
        format: csv is that of jopetty/word-problem, for word problems only.
        split: which stream they come from.
        min_length: least length.
        max_length: greatest length.
        data_seed: of the stream.
    """
    from statetrack.files import plain_name
    from statetrack.tasks import make_task
    from statetrack.tasks.exchange import export_task

    lengths = (min_length, max_length)
    out = out or Path(f"{plain_name(name)}-{split}.{format}")
    export_task(
        make_task(name), out, format=format, count=n, lengths=lengths, split=split,
        data_seed=data_seed,
    )  # fmt: skip
    make_console(None).print(f"{n} sequences of {name} in {out}", markup=False)


def bench(
    what: tyro.conf.Positional[Literal["tasks"]] = "tasks",
    /,
    rounds: int = 5,
    out: Path | None = None,
    json: Json = None,
) -> None:
    """Measure how fast this machine does things.

    Args:
        what: tasks (the time to draw 1,024 sequences of length 256 on one core). The recurrences
            against those of other packages: statetrack bench ops --help.
        rounds: the least time over so many counts.
        out: a markdown file for the table.
        json: see above.
    """
    from statetrack.config import at_least
    from statetrack.experiments.bench import bench_tasks
    from statetrack.files import write_atomic

    check_json(json)
    at_least("rounds", rounds, 1)
    console = make_console(json)
    with console.status("measuring"):
        rows = bench_tasks(rounds)
    columns = ["task", "ms", "million tokens/s"]
    body = [
        [r["task"], f"{r['milliseconds']:.1f}", f"{r['tokens per second'] / 1e6:.1f}"] for r in rows
    ]
    print_table(console, "1,024 sequences of length 256, drawn and solved", columns, body)
    if out is not None:
        command = f"`statetrack bench {what} --rounds {rounds} --out {out}`"
        lines = ["| " + " | ".join(row) + " |" for row in (columns, ["---"] * 3, *body)]
        write_atomic(out, "\n".join([f"# Sampling, measured by {command}", "", *lines, ""]))
    write_result(json, {"tasks": rows})


def bench_ops(
    rows: tuple[str, ...] = (),
    threads: int = 1,
    rounds: int = 10,
    out: Path | None = None,
    json: Json = None,
) -> None:
    """Measure our recurrences against those of other packages, each at its best chunk size.

    Every candidate is checked before it is timed. The other packages come from environments of
    their own, which `make peers` builds; without them ours are measured alone.

    Args:
        rows: what to measure; everything if absent.
        threads: how many each process uses.
        rounds: the least time over so many rounds, in which the candidates take turns.
        out: a folder for bench-cpu.md, .json and .png.
        json: see above.
    """
    from statetrack.config import at_least
    from statetrack.experiments.bench_ops import load_benchmarks

    check_json(json)
    at_least("threads", threads, 1)
    at_least("rounds", rounds, 1)
    console = make_console(json)
    result = load_benchmarks().bench(rows, threads, rounds, out, console)
    write_result(json, result)


def models(name: tyro.conf.Positional[str | None] = None, /, json: Json = None) -> None:
    """List the architectures, or the options of one of them.

    Args:
        name: an architecture to show in full.
        json: see above.
    """
    import dataclasses

    from statetrack.layers import MIXERS, MixerConfig

    check_json(json)
    console = make_console(json)
    if name is None:
        columns = ["mixer", "name", "transition"]
        body = [[c.name, c.label, c.about] for c in MIXERS.values()]
        print_table(console, "Mixers; --allow-neg-eigval extends each to [-1,1]", columns, body)
    else:
        chosen = MixerConfig.class_for(name)
        columns = ["option", "default", "what it is"]
        body = [[f.name, str(f.default), f.metadata["help"]] for f in dataclasses.fields(chosen)]
        print_table(console, f"{chosen.label}: {chosen.about}", columns, body)
    write_result(json, {"models": [dict(zip(columns, row, strict=True)) for row in body]})


def info(json: Json = None) -> None:
    """Say what this installation is and what it can use.

    Args:
        json: see above.
    """
    import platform

    import torch

    from statetrack import __version__
    from statetrack.experiments.pool import cores
    from statetrack.ops.backends import BACKENDS

    check_json(json)
    facts = {
        "statetrack": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cores": cores(),
        "torch threads": torch.get_num_threads(),
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
        "op backends": ", ".join(BACKENDS),
        "default backend": "torch",
    }
    print_table(
        make_console(json), "statetrack", ["what", "value"], [[k, str(v)] for k, v in facts.items()]
    )
    write_result(json, facts)


def _options_text(config: Any) -> str:
    return ", ".join(f"{k}={v}" for k, v in to_dict(config).items() if k != "name")


def _length(text: str) -> tuple[int, int]:
    low, dash, high = text.partition("-")
    try:
        return int(low), int(high if dash else low)
    except ValueError:
        raise UserError(f"a length is a number or a range such as 40-256; got {text!r}") from None


def _fail(message: str) -> int:
    sys.stderr.write(f"statetrack: error: {message}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
