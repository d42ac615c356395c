"""`statetrack train`.

Every field of a run's configuration is a flag. Which fields there are depends on the task and the
mixers, so --task, --mixer, --preset, --config, --resume and --init-from are read first; they give
the configuration whose values are the defaults of all other flags.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statetrack.cli.config_flags import (
    Field,
    changed_model,
    changes_by_section,
    config_fields,
)
from statetrack.cli.parser import Option, config_options
from statetrack.config import shared_values, unknown
from statetrack.errors import UserError
from statetrack.files import free_folder, plain_name
from statetrack.terminal import PlainConsole, make_console, print_progress, write_result

if TYPE_CHECKING:
    from statetrack.training import Callback, Run, RunConfig

STOPPED = {
    "score": "the validation score was reached",
    "hopeless": "the validation score stayed below stop_below_score",
    "time": "the time budget was used up",
}


def train(
    *,
    task: str | None = None,
    mixer: str | None = None,
    preset: str | None = None,
    config: Path | None = None,
    resume: Path | None = None,
    init_from: Path | None = None,
    track: tuple[str, ...] = (),
    out: Path | None = None,
    json: str | None = None,
    **values: Any,
) -> None:
    """Train a model on a task into a run folder. The options depend on --task and --mixer.

    Args:
        task: see `statetrack tasks`; parity if absent.
        mixer: see `statetrack models`; a,b for a hybrid; delta_net if absent.
        preset: paper, repo or demo: start from what they train.
        config: start from this file, e.g. a run's config.json.
        resume: continue the run in this folder; with more --steps also a finished one.
        init_from: start with the weights of this run, trained or compiled; task and model are its
            own unless given.
        track: tensorboard, wandb: send the metrics there as well.
        out: the run folder; runs/TASK-MIXER-1, -2, ... if absent.
    """
    from statetrack.training import Run
    from statetrack.training import train as train_run
    from statetrack.training.trackers import make_trackers

    if resume is not None and out is not None:
        raise UserError("give --out for a new run or --resume for an old one, not both")
    console = make_console(json)
    base = base_config(
        task=task,
        mixer=mixer,
        preset=preset,
        config=config,
        resume=resume,
        init_from=init_from,
        values=values,
    )
    steps = values.pop("steps", None) if resume is not None else None
    whole = with_options(base, values)
    stem = f"{whole.task.name}-{whole.model.mixer_names.replace(',', '+')}"
    folder = resume or out or free_folder(Path("runs"), plain_name(stem))
    callbacks: list[Callback] = [*make_trackers(track)]
    if init_from is not None:
        callbacks.insert(0, _start_printer(console))
    show = print_progress(console, f"{whole.model.title} on {whole.task.name}")
    ended = resume is not None and steps is None and Run.open(resume).finished
    try:
        run = train_run(
            whole,
            folder,
            resume=resume is not None,
            steps=steps,
            init_from=init_from,
            callbacks=callbacks,
            on_progress=show,
        )
    except KeyboardInterrupt:
        console.print(f"\nInterrupted; to go on: statetrack train --resume {folder}")
        raise
    last = next((row for row in reversed(run.metrics()) if row.get("kind") == "train"), None)
    done = run.checkpoint_steps()[-1]
    if run.stopped:
        console.print(f"Stopped at step {done}: {STOPPED[run.stopped]}.")
    if ended:
        has = "has ended" if run.stopped else f"has all {done} steps"
        text = f"{run.folder} {has} already; --steps N to go on."
    else:
        text = f"Done: {run.folder}."
    console.print(f"{text} Next: statetrack eval {run.folder}", soft_wrap=True)
    facts = {"run": str(run.folder), "config": run.config.to_json(), "last": last}
    write_result(json, {**facts, "stopped": run.stopped})


def _start_printer(console: PlainConsole) -> Callback:
    """Return a callback that says which weights a run starts with."""
    from statetrack.training import Callback

    class StartPrinter(Callback):
        def on_start(self, run: Run) -> None:
            row, total = run.metrics()[0], run.config.model.vocab_size
            source = f"Starting with the weights of {row['from']}, step {row['from_step']}"
            tokens = f"{total - row['new_tokens']} of {total} tokens, matched by name"
            console.print(f"{source}; embedding and head: {tokens}.", soft_wrap=True)

    return StartPrinter()


def train_options(first: dict[str, Any]) -> list[Option]:
    """List the fields of the configuration that the first options choose."""
    names = ("task", "mixer", "preset", "config", "resume", "init_from")
    chosen = {name: first.get(name) for name in names}
    return [field.option for field in _fields(base_config(**chosen, values={}))]


def base_config(
    *,
    task: str | None,
    mixer: str | None,
    preset: str | None,
    config: Path | None,
    resume: Path | None,
    init_from: Path | None = None,
    values: dict[str, Any],
) -> RunConfig:
    """Return the configuration whose fields are the defaults of the flags."""
    from statetrack.models import ModelConfig
    from statetrack.recipes.presets import PRESETS
    from statetrack.tasks import make_task
    from statetrack.training import Run, RunConfig, TrainingConfig, read_config

    if resume is not None:
        old = Run.open(resume).config
        same = task in (None, old.task.name) and mixer in (None, old.model.mixer_names)
        if not same or preset is not None or config is not None:
            raise UserError(f"{resume} is resumed with the task, mixer and options it has")
        return old
    if preset is not None:
        if config is not None:
            raise UserError("give --preset or --config, not both")
        if preset not in PRESETS:
            raise unknown("preset", preset, PRESETS)
        make, task = PRESETS[preset], task or "parity"
        takes = inspect.signature(make).parameters
        names = {name for name in ("allow_neg_eigval", "seed", "lr") if name in takes}
        if "options" in takes:
            names |= {option.name for option in config_options(make_task(task))}
        given = {name: value for name, value in values.items() if name in names}
        return make(mixer or "delta_net", task, **given)
    read = RunConfig(make_task("parity"), ModelConfig(vocab_size=3), TrainingConfig())
    if config is not None:
        read = read_config(config)
    elif init_from is not None:
        old = Run.open(init_from).config
        read = replace(read, task=old.task, model=old.model)
    chosen, model = read.task, read.model
    if task is not None and task != chosen.name:
        chosen = shared_values(make_task(task), chosen)
    if mixer is not None:
        model = model.with_mixers(mixer)
    model = replace(model, vocab_size=len(chosen.vocab))
    training = read.training
    if config is None and chosen.given_lengths is not None:
        low, high = map(int, chosen.given_lengths[[0, -1]])
        every = (f"{low}-{high}",)
        training = replace(training, min_length=low, max_length=high, eval_lengths=every)
    return RunConfig(chosen, model, training, read.stages)


def _fields(base: RunConfig) -> list[Field]:
    before, after = {"task": base.task}, {"training": base.training}
    return list(config_fields(base.model, before, after))


def with_options(base: RunConfig, values: dict[str, Any]) -> RunConfig:
    """Return the configuration with the given values of the flags."""
    from statetrack.training import RunConfig

    changes = changes_by_section(_fields(base), values)
    task = replace(base.task, **changes.get("task", {}))
    model = changed_model(base.model, changes, len(task.vocab))
    training = replace(base.training, **changes.get("training", {}))
    return RunConfig(task, model, training, base.stages)
