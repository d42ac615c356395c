"""`statetrack sweep`: a grid of runs. The options of `statetrack train` take several values."""

from __future__ import annotations

import itertools
import math
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Group
from rich.live import Live
from rich.table import Table

from statetrack.cli.parser import Option, several, several_values
from statetrack.cli.train import base_config, train_options, with_options
from statetrack.errors import UserError
from statetrack.files import plain_name
from statetrack.terminal import make_console, write_result

if TYPE_CHECKING:
    from statetrack.sweep.job import Job
    from statetrack.sweep.status import JobStatus

MAX_JOBS = 10_000
SINGLE = ("device", "compile")  # options that are no part of what a run is
REFRESH = 2.0  # seconds between checks of the folder


def sweep(
    *,
    task: str | None = None,
    mixer: str | None = None,
    preset: str | None = None,
    config: Path | None = None,
    out: Path | None = None,
    jobs: int | None = None,
    lengths: tuple[str, ...] = (),
    curve: int | None = None,
    samples: int = 1024,
    harden: bool = False,
    spectrum: bool = False,
    engine: Literal["local", "slurm"] = "local",
    engine_options: tuple[str, ...] = (),
    retry_failed: bool = False,
    track: tuple[str, ...] = (),
    plan: bool = False,
    json: str | None = None,
    **values: Any,
) -> int:
    """Train and evaluate a grid of models. Run it again to continue; see also `sweep status`.

    Every option of `statetrack train`, except for --device and --compile, takes several values:
    --lr 1e-3,1e-4 --seed 0-4 --allow-neg-eigval both. An option that a task or mixer lacks is left
    out for it. Finished runs are not repeated, interrupted ones resume, and two processes may work
    on one sweep. The exit code is 1 if a run failed.

    Args:
        task: tasks, separated by commas; parity if absent.
        mixer: mixers, separated by commas; a+b for a hybrid; delta_net if absent.
        preset: paper, repo or demo: start from what they train.
        config: start from this file, e.g. a run's config.json.
        out: the sweep's folder; runs/sweep-TASK if absent.
        jobs: runs side by side; if absent one per GPU where they are used, else one per core, or
            all with Slurm.
        lengths: lengths to evaluate, and ranges such as 40-256; by default the training range and
            the validation lengths.
        curve: trace accuracy against length up to this one.
        samples: sequences per evaluation.
        harden: harden each model that learned its task, and evaluate the result, too.
        spectrum: keep eigenvalues of the trained models.
        engine: where to run: on this machine or on a Slurm cluster.
        engine_options: for Slurm, such as partition=cpu time=120 mem_gb=4.
        retry_failed: do runs that failed earlier once more.
        track: tensorboard, wandb: send the metrics there as well.
        plan: only print what would be run.
    """
    from statetrack.devices import use_device
    from statetrack.sweep.display import SweepDisplay
    from statetrack.sweep.engine import check_options, read_results, run_sweep, write_sweep_file

    options = dict(map(engine_option, engine_options))
    check_options(jobs, engine, options, track)
    measured = {"curve": curve, "samples": samples, "harden": harden, "spectrum": spectrum}
    chosen = {"task": task, "mixer": mixer, "preset": preset, "config": config}
    grid = list(_grid(chosen, values, lengths, measured))
    if engine == "local" and not plan:
        for device in {job.device for job in grid}:
            use_device(device)
    console = make_console(json)
    tasks = "+".join(dict.fromkeys(job.config.task.name for job in grid))
    folder = out or Path("runs") / plain_name(f"sweep-{tasks}")
    known = read_results(folder)
    listed = {job.key: job for job in grid}
    left = [job for key, job in listed.items() if key not in known]
    console.print(f"{len(listed)} runs, {len(left)} to do: {folder}", soft_wrap=True)
    if plan:
        for job in left:
            console.print(job.name, soft_wrap=True)
        write_result(json, {"folder": str(folder), "jobs": [job.name for job in left]})
        return 0
    write_sweep_file(folder, shlex.join(["statetrack", *sys.argv[1:]]))
    try:
        with SweepDisplay(console, jobs) as display:
            results = run_sweep(
                folder,
                lambda results: grid,
                workers=jobs,
                engine=engine,
                engine_options=options,
                on_event=display,
                retry_failed=retry_failed,
                track=track,
            )
    except KeyboardInterrupt:
        console.print(
            f"\nInterrupted; the same command continues. See statetrack sweep status {folder}"
        )
        raise
    found = [results[key] for key in listed if key in results]
    failed = len(listed) - sum(result["status"] == "done" for result in found)
    console.print(f"{len(listed) - failed} done, {failed} failed. Next: statetrack report {folder}")
    write_result(json, {"folder": str(folder), "failed": failed, "results": found})
    return 1 if failed else 0


def sweep_options(first: dict[str, Any]) -> list[Option]:
    """List the options of `train` for any of the chosen tasks and mixers."""
    found: dict[str, Option] = {}
    for names in _combinations(first):
        for option in train_options(names):
            found.setdefault(option.name, option if option.name in SINGLE else several(option))
    return list(found.values())


def _combinations(chosen: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the first options of `train` for every task and mixer."""
    plain = {name: chosen.get(name) for name in ("preset", "config", "resume")}
    for task, mixer in itertools.product(*(_names(chosen.get(n)) for n in ("task", "mixer"))):
        yield {**plain, "task": task, "mixer": mixer and mixer.replace("+", ",")}


def _names(text: str | None) -> list[str | None]:
    """Split names at commas, but not those that may have some, such as regex:a{1,2}."""
    return [text] if text is None or ":" in text else [*text.split(",")]


def _grid(
    chosen: dict[str, Any],
    values: dict[str, Any],
    lengths: tuple[str, ...],
    measured: dict[str, Any],
) -> Iterator[Job]:
    """Yield a job for every combination of the values."""
    from statetrack.sweep.job import Job

    count = 0
    for names in _combinations(chosen):
        base = base_config(**names, values={})
        options = {option.name: option for option in train_options(names)}
        if all(m.no_switch for m in base.model.pattern):
            options.pop("allow_neg_eigval", None)
        axes = {
            name: several_values(options[name], given)
            if isinstance(given, str) and name not in SINGLE
            else (given,)
            for name, given in values.items()
            if name in options
        }
        count += math.prod(map(len, axes.values()))
        if count > MAX_JOBS:
            raise UserError(f"a sweep has at most {MAX_JOBS:,} runs; this grid has more")
        for point in itertools.product(*axes.values()):
            cell = dict(zip(axes, point, strict=True))
            config = with_options(base_config(**names, values=cell), cell)
            t = config.training
            evaluated = lengths or (f"{t.min_length}-{t.max_length}", *t.eval_lengths)
            varied = {n: v for n, v in cell.items() if len(axes[n]) > 1 and n != "allow_neg_eigval"}
            labels = [f"{name} {value}" for name, value in varied.items()]
            name = " ".join([config.task.name, config.model.title, *labels])
            yield Job(name, config, evaluated, **measured)


def engine_option(text: str) -> tuple[str, int | float | str]:
    """Parse an option of the engine such as mem_gb=4."""
    name, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"an option of the engine has the form name=value; got {text!r}")
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


def status(
    folder: Path,
    *,
    all: bool = False,
    live: bool = False,
    json: str | None = None,
) -> None:
    """Show which jobs of a sweep are done, running, failed or waiting.

    Args:
        folder: the sweep's folder, also one of `statetrack reproduce`.
        all: list every job, not only those that run or failed.
        live: go on showing it until nothing runs.
    """
    from statetrack.sweep.status import read_status

    console = make_console(json)
    jobs = read_status(folder)
    if live and console.is_terminal:
        with Live(_table(jobs, all), console=console, auto_refresh=False, transient=True) as shown:
            while any(job.status == "running" for job in jobs):
                time.sleep(REFRESH)
                jobs = read_status(folder)
                shown.update(_table(jobs, all), refresh=True)
    console.print(_table(jobs, all))
    counts = Counter(job.status for job in jobs)
    write_result(json, {"counts": dict(counts), "jobs": [job.to_json() for job in jobs]})


def _table(jobs: list[JobStatus], all: bool) -> Group | str:
    from statetrack.sweep.status import STATUSES

    counts = Counter(job.status for job in jobs)
    summary = ", ".join(f"{counts[name]} {name}" for name in STATUSES[::-1])
    shown = [job for job in jobs if all or job.status in ("running", "failed")]
    if not shown:
        return summary
    table = Table()
    for name in ("job", "status", "step", "loss", "accuracy", ""):
        table.add_column(name, justify="right" if name in ("step", "loss", "accuracy") else "left")
    for job in shown:
        numbers = ("" if n is None else f"{n:.4f}" for n in (job.loss, job.accuracy))
        table.add_row(job.name, job.status, f"{job.step}/{job.steps}", *numbers, job.text)
    return Group(summary, table)


def pack_sweep(folder: Path, *, out: Path, json: str | None = None) -> None:
    """Write the results of a sweep, without weights and logs, into a few compressed files.

    A repository can hold them; `statetrack sweep unpack` makes a sweep of them again, from which
    `statetrack report` and `statetrack reproduce` go on.

    Args:
        folder: the sweep's folder, also one of `statetrack reproduce`.
        out: folder for the packed results.
    """
    from statetrack.sweep.packing import pack

    count = pack(folder, out)
    make_console(json).print(f"{count:,} results written to {out}", soft_wrap=True)
    write_result(json, {"folder": str(out), "results": count})


def unpack_sweep(folder: Path, *, out: Path, json: str | None = None) -> None:
    """Make a sweep of packed results, or add them to one.

    Args:
        folder: what `statetrack sweep pack` wrote.
        out: the sweep's folder; results that it has already are kept.
    """
    from statetrack.sweep.packing import unpack

    count = unpack(folder, out)
    make_console(json).print(f"{count:,} results added to {out}", soft_wrap=True)
    write_result(json, {"folder": str(out), "results": count})
