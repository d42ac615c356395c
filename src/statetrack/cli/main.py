"""Find the command, parse its options, call it. Commands import torch only when they run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from statetrack.allocator import tune_allocator
from statetrack.cli.check import check
from statetrack.cli.compile import compile
from statetrack.cli.demo import demo
from statetrack.cli.diagnose import diagnose
from statetrack.cli.evaluate import evaluate
from statetrack.cli.explain import explain
from statetrack.cli.harden import harden
from statetrack.cli.info import info
from statetrack.cli.lm import lm
from statetrack.cli.lm_audit import lm_audit
from statetrack.cli.lm_data import data_options, lm_data
from statetrack.cli.lm_eval import lm_eval
from statetrack.cli.lm_export import lm_export
from statetrack.cli.lm_fetch import lm_fetch
from statetrack.cli.lm_generate import lm_generate
from statetrack.cli.lm_perplexity import lm_perplexity
from statetrack.cli.lm_tasks import lm_tasks
from statetrack.cli.lm_train import lm_train, lm_train_options
from statetrack.cli.models import models
from statetrack.cli.parser import Option, Parser, summary
from statetrack.cli.report import report
from statetrack.cli.reproduce import reproduce
from statetrack.cli.run import run
from statetrack.cli.selftest import selftest
from statetrack.cli.sweep import pack_sweep, status, sweep, sweep_options, unpack_sweep
from statetrack.cli.tasks import export_file, import_file, task_options, tasks
from statetrack.cli.train import train, train_options
from statetrack.config import unknown
from statetrack.errors import UserError
from statetrack.files import check_figure
from statetrack.plugins import load_plugins
from statetrack.terminal import check_json, quiet_stdout

COMMANDS: dict[str, Callable[..., int | None]] = {
    "demo": demo,
    "train": train,
    "reproduce": reproduce,
    "sweep": sweep,
    "eval": evaluate,
    "diagnose": diagnose,
    "explain": explain,
    "compile": compile,
    "run": run,
    "harden": harden,
    "report": report,
    "tasks": tasks,
    "models": models,
    "lm": lm,
    "check": check,
    "selftest": selftest,
    "info": info,
}
SUBCOMMANDS: dict[tuple[str, ...], Callable[..., int | None]] = {
    ("sweep", "status"): status,
    ("sweep", "pack"): pack_sweep,
    ("sweep", "unpack"): unpack_sweep,
    ("tasks", "export"): export_file,
    ("tasks", "import"): import_file,
    ("lm", "perplexity"): lm_perplexity,
    ("lm", "audit"): lm_audit,
    ("lm", "data"): lm_data,
    ("lm", "tasks"): lm_tasks,
    ("lm", "fetch"): lm_fetch,
    ("lm", "eval"): lm_eval,
    ("lm", "generate"): lm_generate,
    ("lm", "export"): lm_export,
    ("lm", "train"): lm_train,
}
MORE_OPTIONS: dict[Callable[..., Any], Callable[[dict[str, Any]], Sequence[Option]]] = {
    train: train_options,
    sweep: sweep_options,
    tasks: task_options,
    export_file: task_options,
    import_file: task_options,
    lm_data: data_options,
    lm_train: lm_train_options,
}
"""Options that depend on the values of others, such as those of the chosen task."""
TUNED = ("demo", "train", "eval", "diagnose", "harden", "report", "lm")
"""Commands that allocate large tensors again and again."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code.

    0; 1 if nothing was written (harden), a check failed (check, selftest) or a run failed (sweep);
    2 for a mistake in the input; 130 for Ctrl-C.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    return exit_code("statetrack", lambda: _run(arguments))


def exit_code(program: str, run: Callable[[], int]) -> int:
    """Return what `run` does; for a mistake of the user, print one sentence and return 2."""
    try:
        return run()
    except UserError as error:
        message = str(error)
    except BrokenPipeError:
        quiet_stdout()
        return 0
    except MemoryError as error:
        message = f"not enough memory: {str(error) or 'choose a smaller batch, length or model'}"
    except RuntimeError as error:  # torch's own for the same, on the CPU and on a GPU
        text = str(error)
        if "can't allocate memory" in text:
            message = f"not enough memory: {text.partition('DefaultCPUAllocator: ')[2]}"
        elif "out of memory" in text:
            remedy = "choose a smaller batch, length or model, or --device cpu"
            message = f"not enough memory: {text.partition('. GPU ')[0]}; {remedy}"
        else:
            raise
    except OSError as error:
        named = f" {error.filename}" if error.filename else ""
        message = f"cannot read or write{named}: {error.strerror or error}"
    except KeyboardInterrupt:
        return 130
    sys.stderr.write(f"{program}: error: {message}\n")
    return 2


def _run(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "--help"
    if name in ("--version", "--help", "-h"):
        shown = f"statetrack {version('statetrack')}" if name == "--version" else _help()
        sys.stdout.write(f"{shown}\n")
        return 0
    if name not in COMMANDS:
        raise unknown("command", name, COMMANDS)
    if name == "lm" and len(arguments) > 1 and not arguments[1].startswith("-"):
        names = [words[1] for words in SUBCOMMANDS if words[0] == "lm"]
        if arguments[1] not in names:
            raise unknown("command of lm", arguments[1], names)
    count = 2 if tuple(arguments[:2]) in SUBCOMMANDS else 1
    command = SUBCOMMANDS.get(tuple(arguments[:2]), COMMANDS[name])
    if name in TUNED:
        tune_allocator()
    parser = Parser(" ".join(["statetrack", *arguments[:count]]), command)
    parser.add_plugins()
    if command in MORE_OPTIONS:
        first = parser.first(arguments[count:])
        load_plugins(first["plugin"])
        try:
            parser.add(MORE_OPTIONS[command](first))
        except UserError:
            parser.check_first(arguments[count:], first)
            raise
    given = parser.parse(arguments[count:])
    check_json(given.get("json"))
    if given.get("figure") is not None:
        check_figure(given["figure"])
    load_plugins(given.pop("plugin"))
    return command(**given) or 0


def _help() -> str:
    lines = [f"  {name:10}{summary(command)}" for name, command in COMMANDS.items()]
    about = "usage: statetrack COMMAND [options]\n\nLinear RNNs that can track state.\n\ncommands:"
    return "\n".join([about, *lines, "", "The options of a command: statetrack COMMAND --help"])
