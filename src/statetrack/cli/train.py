"""`statetrack train`: every field of a run's configuration as a flag.

Which flags there are depends on the task and the mixer, so those two (and a configuration file)
are read first; then one flat set of options is made of the fields of the task, the mixer, the
model and the training, with the file's values, or the defaults, as defaults.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from statetrack.cli.flags import Flag, config_flags, described, first_values, parse
from statetrack.config import hints, unknown
from statetrack.errors import UserError
from statetrack.files import free_folder, plain_name
from statetrack.layers import MixerConfig
from statetrack.models import ModelConfig
from statetrack.recipes.presets import PRESETS
from statetrack.tasks import Task, make_task
from statetrack.terminal import Json, check_json, make_console, print_progress, write_result
from statetrack.training import Run, RunConfig, TrainingConfig, read_config
from statetrack.training import train as train_run

C = TypeVar("C", Task, MixerConfig)


def main(args: Sequence[str]) -> None:
    """Parse the rest of the command line and train."""
    base = _base(args)
    given = _parse(args, base)
    if given.preset is not None:
        # seed, learning rate and task are known now, and what the preset makes follow from them
        base = _settled(base, given)
        given = _parse(args, base)
    values = {(f.section, f.field): getattr(given, f.flag) for f in _flags(base)}
    _train(_config(base, values), given.out, given.resume, given.json)


def _parse(args: Sequence[str], base: RunConfig) -> Any:
    names = _mixer_names(base.model)
    head = [
        Flag("task", described(str, "see `statetrack tasks`"), base.task.name),
        Flag("mixer", described(str, "see `statetrack models`; a,b for a hybrid"), names),
        Flag(
            "preset", described(str | None, "paper, repo or demo: start from what they train"), None
        ),
        Flag(
            "config", described(Path | None, "start from this file, e.g. a run's config.json"), None
        ),
        Flag(
            "out",
            described(Path | None, "the run's folder; runs/TASK-MIXER-1, -2, ... if absent"),
            None,
        ),
        Flag("resume", described(Path | None, "go on with the run in this folder"), None),
        Flag("json", Json, None),
    ]
    about = "Train a model on a task into a run folder. The flags depend on --task and --mixer."
    flags = [Flag(f.flag, f.type, f.default) for f in _flags(base)]
    return parse("train", about, head + flags, args)


def _settled(base: RunConfig, given: Any) -> RunConfig:
    """The preset again, with the given values of whatever it takes."""
    preset = PRESETS[given.preset]
    takes = inspect.signature(preset).parameters
    names = [name for name in ("allow_neg_eigval", "seed", "lr") if name in takes]
    if "options" in takes:
        names += [flag.name for flag in config_flags(base.task)]
    return preset(given.mixer, given.task, **{name: getattr(given, name) for name in names})


def _base(args: Sequence[str]) -> RunConfig:
    """The configuration whose fields are the defaults of the flags."""
    known, _ = first_values(("config", "preset", "task", "mixer", "resume"), args)
    if known.resume is not None:
        config = Run.open(Path(known.resume)).config
        others = (known.config, known.preset, known.task or config.task.name, known.mixer)
        if others != (None, None, config.task.name, known.mixer and _mixer_names(config.model)):
            raise UserError(f"{known.resume} is resumed with the task, mixer and options it has")
        return config
    task, model, training = make_task("parity"), ModelConfig(), TrainingConfig()
    if known.preset is not None:
        if known.config is not None:
            raise UserError("give --preset or --config, not both")
        if known.preset not in PRESETS:
            raise unknown("preset", known.preset, PRESETS)
        names = (known.mixer or "delta_net", known.task or "parity")
        return PRESETS[known.preset](*names)
    if known.config is not None:
        config = read_config(Path(known.config))
        task, model, training = config.task, config.model, config.training
    if known.task is not None and known.task != task.name:
        task = _shared_fields(make_task(known.task), task)
    if known.mixer is not None and known.mixer != _mixer_names(model):
        old = _pattern(model)[0]
        names = known.mixer.split(",")
        mixers = tuple(_shared_fields(MixerConfig.class_for(name)(), old) for name in names)
        layers = model.num_layers if model.num_layers % len(mixers) == 0 else len(mixers)
        pattern = mixers[0] if len(mixers) == 1 else mixers
        model = replace(model, mixer=pattern, num_layers=layers)
    return RunConfig(task, replace(model, vocab_size=len(task.vocab)), training)


def _shared_fields(new: C, old: Any) -> C:
    """`new` with what `old` says of the options that both have, but for the name."""
    both = (hints(type(new)).keys() & hints(type(old)).keys()) - {"name"}
    if isinstance(new, MixerConfig) and new.no_switch:
        both -= {"allow_neg_eigval"}
    changed = {f.name for f in dataclasses.fields(old) if getattr(old, f.name) != f.default}
    return replace(new, **{name: getattr(old, name) for name in both & changed})


class _Flag(NamedTuple):
    flag: str
    section: str  # "task", "model", "training", "mixer0", "mixer1", ..., "mixers" for the switch
    field: str
    type: Any
    default: Any


def _flags(base: RunConfig) -> Iterator[_Flag]:
    pattern = _pattern(base.model)
    # the switch is one flag for all layers of a hybrid that have it, unless a file sets them apart
    switched = {f"mixer{i}": m.allow_neg_eigval for i, m in enumerate(pattern) if not m.no_switch}
    shared = len(set(switched.values())) == 1
    sections: dict[str, Any] = {f"mixer{i}": mixer for i, mixer in enumerate(pattern)}
    sections = {"task": base.task, **sections, "model": base.model, "training": base.training}
    for section, config in sections.items():
        for field, kind, default in config_flags(config):
            if field in ("vocab_size", "mixer"):
                continue  # following from --task and --mixer
            # in a hybrid the options of its layers are told apart by their position
            hybrid = section.startswith("mixer") and len(pattern) > 1
            if not hybrid:
                yield _Flag(field, section, field, kind, default)
            elif field != "allow_neg_eigval" or (section in switched and not shared):
                yield _Flag(f"{section}_{field}", section, field, kind, default)
            elif section == next(iter(switched), None):
                yield _Flag(field, "mixers", field, kind, default)


def _config(base: RunConfig, values: dict[tuple[str, str], Any]) -> RunConfig:
    def changed(section: str, config: Any, **more: Any) -> Any:
        switched = section.startswith("mixer") and not config.no_switch
        owners = {section, "mixers"} if switched else {section}
        own = {field: value for (owner, field), value in values.items() if owner in owners}
        return replace(config, **own, **more)

    mixers = tuple(changed(f"mixer{i}", m) for i, m in enumerate(_pattern(base.model)))
    task = changed("task", base.task)
    model = changed(
        "model",
        base.model,
        vocab_size=len(task.vocab),
        mixer=mixers if isinstance(base.model.mixer, tuple) else mixers[0],
    )
    return RunConfig(task, model, changed("training", base.training))


def _train(config: RunConfig, out: Path | None, resume: Path | None, json: str | None) -> None:
    check_json(json)
    console = make_console(json)
    if resume is not None and out is not None:
        raise UserError("give --out for a new run or --resume for an old one, not both")
    stem = f"{config.task.name}-{_mixer_names(config.model).replace(',', '+')}"
    folder = resume or out or free_folder(Path("runs"), plain_name(stem))
    show = print_progress(console, f"{config.model.title} on {config.task.name}")
    try:
        run = train_run(config, folder, resume=resume is not None, on_progress=show)
    except KeyboardInterrupt:
        console.print(f"\nInterrupted; to go on: statetrack train --resume {folder}")
        raise
    last = next((row for row in reversed(run.metrics()) if row.get("kind") == "train"), None)
    console.print(f"Done: {run.folder}. Next: statetrack eval {run.folder}")
    write_result(json, {"run": str(run.folder), "config": config.to_json(), "last": last})


def _pattern(model: ModelConfig) -> tuple[MixerConfig, ...]:
    return model.mixer if isinstance(model.mixer, tuple) else (model.mixer,)


def _mixer_names(model: ModelConfig) -> str:
    return ",".join(mixer.name for mixer in _pattern(model))
