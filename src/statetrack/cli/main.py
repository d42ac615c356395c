"""The command line: parses, calls, prints. Heavy imports wait until a command needs them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import tyro

from statetrack.allocator import tune_allocator
from statetrack.cli.check import check
from statetrack.cli.diagnose import diagnose
from statetrack.cli.flags import check_flags, options_of
from statetrack.cli.harden import harden
from statetrack.cli.theory import compile_language, explain, run_words
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
    """Run a command; returns the exit code.

    0; 1 if nothing was written (harden) or a check failed (check); 2 for a mistake in the input;
    130 for Ctrl-C.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    commands: dict[str, Callable[..., Any]] = {
        "demo": demo,
        "train": train,
        "eval": evaluate,
        "diagnose": diagnose,
        "explain": explain,
        "compile": compile_language,
        "run": run_words,
        "harden": harden,
        "tasks": tasks,
        "models": models,
        "check": check,
        "bench": bench,
        "info": info,
    }
    try:
        if args == ["--version"]:
            sys.stdout.write(f"statetrack {version('statetrack')}\n")
            return 0
        if args[:1] and args[0] in ("demo", "train", "eval", "diagnose", "harden", "bench"):
            tune_allocator()
        if args[:1] == ["bench"] and args[1:2] and args[1] in BENCHMARKS:
            check_flags(args[2:], options_of(BENCHMARKS[args[1]]))
            tyro.cli(BENCHMARKS[args[1]], prog=f"statetrack bench {args[1]}", args=args[2:])
            return 0
        if args[:1] == ["tasks"]:
            from statetrack.cli import tasks as task_commands

            task_commands.main(args[1:])
            return 0
        if args[:1] == ["train"]:
            from statetrack.cli import train as train_command

            train_command.main(args[1:])
            return 0
        if args[:1] and args[0] in commands:
            check_flags(args[1:], options_of(commands[args[0]]))
        code: int | None = tyro.extras.subcommand_cli_from_dict(
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
        told = str(error) or "choose a smaller batch, length or model"
        return _fail(f"not enough memory: {told}")
    except RuntimeError as error:  # torch's own for the same
        if "can't allocate memory" not in str(error):
            raise
        return _fail(f"not enough memory: {str(error).partition('DefaultCPUAllocator: ')[2]}")
    except OSError as error:
        named = f" {error.filename}" if error.filename else ""
        return _fail(f"cannot read or write{named}: {error.strerror or error}")
    except KeyboardInterrupt:
        return 130
    return code or 0


def demo(
    seed: int = 0,
    out: Path | None = None,
    json: Json = None,
    smoke: bool = False,
    workers: int | None = None,
) -> None:
    """Train and compare, live: what eigenvalues in [-1,1] can track and [0,1] cannot.

    Args:
        seed: n stands for the training seeds 3n, 3n + 1, 3n + 2 on parity and 3n on swaps.
        out: folder for the figure, page, metrics and checkpoints; runs/demo-1, -2, ... if absent.
        json: see above.
        smoke: everything, but too short to learn: a test of the machinery in seconds, whose
            numbers mean nothing.
        workers: processes that train side by side; one per core if absent.
    """
    if not 0 <= seed < 2**30:
        raise UserError(f"seed must lie in 0..2^30-1; got {seed}")
    if workers is not None and workers < 1:
        raise UserError(f"workers must be at least 1; got {workers}")
    from statetrack.files import free_folder, new_folder
    from statetrack.recipes.demo import Demo
    from statetrack.report.demo import NOTE, SMOKE, print_tables, write_report
    from statetrack.sweep.display import Display

    check_json(json)
    console = make_console(json)
    folder = new_folder(out or free_folder(Path("runs"), "demo"))
    this = Demo.start(seed, folder, smoke=smoke)
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
            console.print(said)
        write_result(json, summary)
    console.print(SMOKE if smoke else NOTE, style="dim")
    page = folder / "index.html"
    console.print(f"{this.seconds:.0f} s. Open {page} for the figure.")


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
        samples: sequences per length or range, and of a curve.
        split: which fresh sequences; training draws from neither.
        data_seed: of the sequences; the run's own if absent.
        curve: accuracy against length up to this one, and the horizon: the length up to which it
            stays at 0.99 or above.
        figure: a PNG, SVG or PDF of the results against length, training lengths marked.
        json: see above.
    """
    from statetrack.compiler.folders import is_compiled
    from statetrack.files import check_figure
    from statetrack.report.figures import write_figure
    from statetrack.report.tables import evaluation_tables, lengths_text
    from statetrack.training import Run, finite_training_set
    from statetrack.training import curve as trace_curve
    from statetrack.training import evaluate as evaluate_model

    check_json(json)
    opened = Run.open(run)
    task, trained = opened.config.task, opened.config.training
    top = trained.max_length
    wanted = [_length(text) for text in lengths] or [
        (trained.min_length, top), *((n * top, n * top) for n in (1, 2, 4, 8))
    ]  # fmt: skip
    wanted = list(dict.fromkeys(wanted))
    for low, high in wanted:
        task.check_lengths(low, high)
    if figure is not None:
        check_figure(figure)
    model = opened.model()
    console = make_console(json)
    rows = []
    traced = None
    with console.status("evaluating") as status:
        options: dict[str, Any] = {
            "samples": samples,
            "split": split,
            "data_seed": trained.data_seed if data_seed is None else data_seed,
            "exclude": finite_training_set(opened.config),
        }
        if curve is not None:
            status.update(f"evaluating {task.name} up to {curve}")
            traced = trace_curve(model, task, curve, **options)
        for low, high in wanted:
            status.update(f"evaluating {task.name} at {low}-{high}")
            rows.append(evaluate_model(model, task, (low, high), **options))
    compiled = is_compiled(run)
    origin = "compiled" if compiled else f"trained on {lengths_text(trained.min_length, top)}"
    title = f"{opened.config.model.title} on {task.name}, {origin}"
    for heading, columns, body in evaluation_tables(title, rows):
        print_table(console, heading, columns, body)
    result_: dict[str, Any] = {"run": str(run), "results": [r.to_json() for r in rows]}
    if traced is not None:
        result_["curve"] = traced.to_json()
        reached = f"to length {traced.horizon}" if traced.horizon else "at no length"
        console.print(f"Accuracy stays at 0.99 or above {reached} (of {curve}).")
    if figure is not None:
        write_figure(figure, title, rows, traced, None if compiled else top)
    write_result(json, result_)


def tasks() -> None:
    """List the tasks, show one, write or check a file of its sequences."""


def bench(
    what: tyro.conf.Positional[Literal["tasks"]] = "tasks",
    /,
    rounds: int = 5,
    out: Path | None = None,
    json: Json = None,
) -> None:
    """Measure how fast this machine does things.

    Args:
        what: tasks (the time to draw 1,024 sequences of length 256 on one core, and its limit). The
            recurrences and the layers against those of other packages: statetrack bench ops --help,
            statetrack bench layers --help.
        rounds: the least time over so many counts.
        out: a markdown file for the table.
        json: see above.
    """
    from statetrack.config import at_least
    from statetrack.files import check_output, write_atomic
    from statetrack.recipes.bench import bench_tasks

    check_json(json)
    at_least("rounds", rounds, 1)
    if out is not None:
        check_output(out)
    console = make_console(json)
    with console.status("measuring"):
        rows = bench_tasks(rounds)
    columns = ["task", "ms", "limit", "met", "million tokens/s"]
    body = [
        [
            r["task"],
            f"{r['milliseconds']:.1f}",
            f"{r['limit']:g}",
            "yes" if r["met"] else "no",
            f"{r['tokens per second'] / 1e6:.1f}",
        ]
        for r in rows
    ]
    print_table(console, "1,024 sequences of length 256, drawn and solved", columns, body)
    if out is not None:
        command = f"`statetrack bench {what} --rounds {rounds} --out {out}`"
        lines = ["| " + " | ".join(row) + " |" for row in (columns, ["---"] * len(columns), *body)]
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
    from statetrack.recipes.checkout_benchmarks import load_benchmark

    check_json(json)
    at_least("threads", threads, 1)
    at_least("rounds", rounds, 1)
    console = make_console(json)
    result = load_benchmark("ops").bench(rows, threads, rounds, out, console)
    write_result(json, result)


def bench_layers(
    layers: tuple[str, ...] = (),
    rounds: int = 5,
    out: Path | None = None,
    json: Json = None,
) -> None:
    """Measure a training step and the decoding of every layer, in both ranges, beside others.

    At the sizes of the paper's models, in one thread. Every candidate is checked before it is
    timed. The other packages come from an environment of their own, which `make peers` builds;
    without it ours are measured alone.

    Args:
        layers: which of them, by the names that `statetrack models` lists; all if absent.
        rounds: the least time over so many rounds, in which the candidates take turns.
        out: a folder for bench-layers.md and .json.
        json: see above.
    """
    from statetrack.config import at_least
    from statetrack.recipes.checkout_benchmarks import load_benchmark

    check_json(json)
    at_least("rounds", rounds, 1)
    console = make_console(json)
    write_result(json, load_benchmark("layers").bench(layers, rounds, out, console))


BENCHMARKS: dict[str, Callable[..., None]] = {"ops": bench_ops, "layers": bench_layers}
"""Those with options of their own."""


def models(name: tyro.conf.Positional[str | None] = None, /, json: Json = None) -> None:
    """List the architectures, or the options of one of them.

    Args:
        name: an architecture, or a language model, to show in full.
        json: see above.
    """
    import dataclasses

    from statetrack.config import to_dict, unknown
    from statetrack.layers import MIXERS, MixerConfig
    from statetrack.models import count_parameters
    from statetrack.recipes.language_models import LANGUAGE_MODELS

    check_json(json)
    console = make_console(json)
    more: dict[str, Any] = {}
    if name is None:
        columns = ["mixer", "name", "switch", "transition"]
        body = [[c.name, c.label, "no" if c.no_switch else "yes", c.about] for c in MIXERS.values()]
        heading = "Mixers; where there is the switch, --allow-neg-eigval extends [0,1] to [-1,1]"
        print_table(console, heading, columns, body)
        console.print("A hybrid is a pattern of them: --mixer delta_net,delta_net,attention\n")
        sizes = ["language model", "layers", "width", "parameters"]
        large = [
            [model_name, str(m.num_layers), str(m.hidden_size), f"{count_parameters(m):,}"]
            for model_name, m in LANGUAGE_MODELS.items()
        ]
        print_table(console, "The paper's language models (docs/presets.md)", sizes, large)
        more = {"language models": [dict(zip(sizes, row, strict=True)) for row in large]}
    elif name in LANGUAGE_MODELS:
        model = LANGUAGE_MODELS[name]
        columns = ["option", "value", "what it is"]
        texts = {f.name: f.metadata["help"] for f in dataclasses.fields(model)}
        values = {**to_dict(model), "mixer": ", ".join(m.label for m in model.pattern)}
        body = [[key, str(value), texts[key]] for key, value in values.items()]
        for mixer in model.pattern:
            known = {f.name: f.metadata["help"] for f in dataclasses.fields(mixer)}
            body += [[f"mixer.{k}", str(getattr(mixer, k)), text] for k, text in known.items()]
        heading = f"{name}: {count_parameters(model):,} parameters (docs/presets.md)"
        print_table(console, heading, columns, body)
    else:
        if name not in MIXERS:
            raise unknown("model", name, [*MIXERS, *LANGUAGE_MODELS])
        chosen = MixerConfig.class_for(name)
        columns = ["option", "default", "what it is"]
        refused = {"allow_neg_eigval"} if chosen.no_switch else set()
        fields = [f for f in dataclasses.fields(chosen) if f.name not in refused]
        body = [[f.name, str(f.default), f.metadata["help"]] for f in fields]
        print_table(console, f"{chosen.label}: {chosen.about}", columns, body)
    write_result(json, {"models": [dict(zip(columns, row, strict=True)) for row in body], **more})


def info(json: Json = None) -> None:
    """Say what this installation is and what it can use.

    Args:
        json: see above.
    """
    import platform

    import torch

    from statetrack import __version__
    from statetrack.kernels import library
    from statetrack.ops.backends import BACKENDS
    from statetrack.sweep.pool import cores

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
        "native kernels": library.WHY_MISSING
        or f"{library.level()} (of {', '.join(library.LEVELS)})",
        "default backend": "torch" if library.WHY_MISSING else "native on the CPU, torch elsewhere",
    }
    print_table(
        make_console(json), "statetrack", ["what", "value"], [[k, str(v)] for k, v in facts.items()]
    )
    write_result(json, facts)


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
