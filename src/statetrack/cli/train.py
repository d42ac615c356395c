"""`statetrack train`.

Every field of a run's configuration is a flag. Which fields there are depends on the task and the
mixers, so --task, --mixer, --preset, --config and --resume are read first; they give the
configuration whose values are the defaults of all other flags.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from statetrack.cli.parser import Option, config_options
from statetrack.config import hints, unknown
from statetrack.errors import UserError
from statetrack.files import free_folder, plain_name
from statetrack.terminal import PlainConsole, make_console, print_progress, write_result

if TYPE_CHECKING:
    from statetrack.models import ModelConfig
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
        init_from: start with the weights of this run, trained or compiled.
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
        task=task, mixer=mixer, preset=preset, config=config, resume=resume, values=values
    )
    steps = values.pop("steps", None) if resume is not None else None
    whole = with_options(base, values)
    stem = f"{whole.task.name}-{_mixer_names(whole.model).replace(',', '+')}"
    folder = resume or out or free_folder(Path("runs"), plain_name(stem))
    callbacks = [*make_trackers(track)]
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
    chosen = {name: first.get(name) for name in ("task", "mixer", "preset", "config", "resume")}
    return [field.option for field in _fields(base_config(**chosen, values={}))]


def base_config(
    *,
    task: str | None,
    mixer: str | None,
    preset: str | None,
    config: Path | None,
    resume: Path | None,
    values: dict[str, Any],
) -> RunConfig:
    """Return the configuration whose fields are the defaults of the flags."""
    from statetrack.layers import MixerConfig
    from statetrack.models import ModelConfig
    from statetrack.recipes.presets import PRESETS
    from statetrack.tasks import make_task
    from statetrack.training import Run, RunConfig, TrainingConfig, read_config

    if resume is not None:
        old = Run.open(resume).config
        same = task in (None, old.task.name) and mixer in (None, _mixer_names(old.model))
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
    chosen, model = read.task, read.model
    if task is not None and task != chosen.name:
        chosen = _shared_fields(make_task(task), chosen)
    if mixer is not None and mixer != _mixer_names(model):
        classes = [MixerConfig.class_for(name) for name in mixer.split(",")]
        mixers = tuple(_shared_fields(known(), model.pattern[0]) for known in classes)
        layers = model.num_layers if model.num_layers % len(mixers) == 0 else len(mixers)
        pattern = mixers[0] if len(mixers) == 1 else mixers
        model = replace(model, mixer=pattern, num_layers=layers)
    model = replace(model, vocab_size=len(chosen.vocab))
    training = read.training
    if config is None and chosen.given_lengths is not None:
        low, high = map(int, chosen.given_lengths[[0, -1]])
        every = (f"{low}-{high}",)
        training = replace(training, min_length=low, max_length=high, eval_lengths=every)
    return RunConfig(chosen, model, training, read.stages)


def _shared_fields(new: Any, old: Any) -> Any:
    """Return `new` with the values of `old` that are no defaults, of options that both have."""
    both = (hints(type(new)).keys() & hints(type(old)).keys()) - {"name"}
    if getattr(new, "no_switch", ""):
        both -= {"allow_neg_eigval"}
    changed = {f.name for f in fields(old) if getattr(old, f.name) != f.default}
    return replace(new, **{name: getattr(old, name) for name in both & changed})


class _Field(NamedTuple):
    """A field of a configuration, and its flag, whose name may differ."""

    sections: tuple[str, ...]  # "task", "model", "training", "mixer0", "mixer1", ...
    name: str
    option: Option


def _fields(base: RunConfig) -> Iterator[_Field]:
    pattern = base.model.pattern
    # the switch is one flag for all layers of a hybrid that have it, unless a file sets them apart
    switched = {f"mixer{i}": m.allow_neg_eigval for i, m in enumerate(pattern) if not m.no_switch}
    shared = len(set(switched.values())) == 1
    sections: dict[str, Any] = {f"mixer{i}": mixer for i, mixer in enumerate(pattern)}
    sections = {"task": base.task, **sections, "model": base.model, "training": base.training}
    for section, config in sections.items():
        for option in config_options(config):
            name = option.name
            if name in ("vocab_size", "mixer"):
                continue  # they follow from --task and --mixer
            # in a hybrid the options of its layers are told apart by their position
            if len(pattern) == 1 or not section.startswith("mixer"):
                yield _Field((section,), name, option)
            elif name != "allow_neg_eigval" or (section in switched and not shared):
                own = option._replace(name=f"{section}_{name}")
                yield _Field((section,), name, own)
            elif section == next(iter(switched), None):
                yield _Field(tuple(switched), name, option)


def with_options(base: RunConfig, values: dict[str, Any]) -> RunConfig:
    """Return the configuration with the given values of the flags."""
    from statetrack.training import RunConfig

    changes: dict[str, dict[str, Any]] = {}
    for field in _fields(base):
        if field.option.name in values:
            for section in field.sections:
                changes.setdefault(section, {})[field.name] = values[field.option.name]
    mixers = [replace(m, **changes.get(f"mixer{i}", {})) for i, m in enumerate(base.model.pattern)]
    task = replace(base.task, **changes.get("task", {}))
    model = replace(
        base.model,
        vocab_size=len(task.vocab),
        mixer=tuple(mixers) if isinstance(base.model.mixer, tuple) else mixers[0],
        **changes.get("model", {}),
    )
    training = replace(base.training, **changes.get("training", {}))
    return RunConfig(task, model, training, base.stages)


def _mixer_names(model: ModelConfig) -> str:
    return ",".join(mixer.name for mixer in model.pattern)
