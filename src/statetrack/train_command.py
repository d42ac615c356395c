"""`statetrack train`: every field of a run's configuration as a flag.

Which flags there are depends on the task and the mixer, so those two (and a configuration file)
are read first; then one flat set of options is made of the fields of the task, the mixer, the
model and the training, with the file's values, or the defaults, as defaults.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import tyro

from statetrack.config import hints, unknown
from statetrack.errors import UserError
from statetrack.experiments.presets import PRESETS
from statetrack.files import free_folder, plain_name
from statetrack.layers import MixerConfig
from statetrack.models import ModelConfig
from statetrack.tasks import Task, make_task
from statetrack.terminal import Json, check_json, make_console, print_progress, write_result
from statetrack.training import Run, RunConfig, TrainingConfig, read_config
from statetrack.training import train as train_run

C = TypeVar("C", Task, MixerConfig)


def main(args: Sequence[str]) -> None:
    """Parse the rest of the command line and train."""
    base = _base(args)
    flags = list(_flags(base))
    names = _mixer_names(base.model)
    head: list[tuple[str, Any, Any]] = [
        ("task", _help(str, "see `statetrack tasks`"), base.task.name),
        ("mixer", _help(str, "see `statetrack models`; a,b for a hybrid"), names),
        ("preset", _help(str | None, "paper, repo or demo: start from what they train"), None),
        ("config", _help(Path | None, "start from this file, e.g. a run's config.json"), None),
        ("out", _help(Path | None, "the run's folder; runs/TASK-MIXER-1, -2, ... if absent"), None),
        ("resume", _help(Path | None, "go on with the run in this folder"), None),
        ("json", Json, None),
    ]
    fields = head + [(f.flag, f.type, f.default) for f in flags]
    Args = dataclasses.make_dataclass(
        "Train", [(name, type_, dataclasses.field(default=d)) for name, type_, d in fields]
    )
    about = "Train a model on a task into a run folder. The flags depend on --task and --mixer."
    given: Any = tyro.cli(Args, prog="statetrack train", description=about, args=list(args))
    config = _config(base, {(f.section, f.field): getattr(given, f.flag) for f in flags})
    _train(config, given.out, given.resume, given.json)


def _base(args: Sequence[str]) -> RunConfig:
    """The configuration whose fields are the defaults of the flags."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for flag in ("--config", "--preset", "--task", "--mixer", "--resume"):
        first.add_argument(flag)
    try:
        known, _ = first.parse_known_args(list(args))
    except argparse.ArgumentError:  # a flag without its value: the real parser will say so
        known = first.parse_args([])
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
        return PRESETS[known.preset](*names, allow_neg_eigval=False)
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
    changed = {f.name for f in dataclasses.fields(old) if getattr(old, f.name) != f.default}
    return replace(new, **{name: getattr(old, name) for name in both & changed})


class _Flag(NamedTuple):
    flag: str
    section: str  # "task", "model", "training", "mixer0", "mixer1", ..., "mixers" for all
    field: str
    type: Any
    default: Any


def _flags(base: RunConfig) -> Iterator[_Flag]:
    pattern = _pattern(base.model)
    # the switch is one flag for all layers of a hybrid, unless a file sets them apart
    shared = {"allow_neg_eigval"} if len({m.allow_neg_eigval for m in pattern}) == 1 else set()
    sections: dict[str, Any] = {f"mixer{i}": mixer for i, mixer in enumerate(pattern)}
    sections = {"task": base.task, **sections, "model": base.model, "training": base.training}
    for section, config in sections.items():
        types = hints(type(config))
        for f in dataclasses.fields(config):
            if f.name in ("name", "vocab_size", "mixer") or not f.init:
                continue  # chosen by --task and --mixer, or following from them
            # in a hybrid the options of its layers are told apart by their position
            hybrid = section.startswith("mixer") and len(pattern) > 1
            if hybrid and f.name in shared:
                if section != "mixer0":
                    continue
                section_ = "mixers"
            else:
                section_ = section
            flag = f"{section}_{f.name}" if hybrid and f.name not in shared else f.name
            kind = _help(types[f.name], f.metadata["help"])
            yield _Flag(flag, section_, f.name, kind, getattr(config, f.name))


def _config(base: RunConfig, values: dict[tuple[str, str], Any]) -> RunConfig:
    def changed(section: str, config: Any, **more: Any) -> Any:
        owners = {section, "mixers"} if section.startswith("mixer") else {section}
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
        console.print(f"\nInterrupted; to go on: statetrack train --resume {folder}", markup=False)
        raise
    last = next((row for row in reversed(run.metrics()) if row["kind"] == "train"), None)
    console.print(f"Done: {run.folder}. Next: statetrack eval {run.folder}", markup=False)
    write_result(json, {"run": str(run.folder), "config": config.to_json(), "last": last})


def _pattern(model: ModelConfig) -> tuple[MixerConfig, ...]:
    return model.mixer if isinstance(model.mixer, tuple) else (model.mixer,)


def _mixer_names(model: ModelConfig) -> str:
    return ",".join(mixer.name for mixer in _pattern(model))


def _help(kind: Any, text: str) -> Any:
    """A type with the help text of its flag."""
    return Annotated[kind, tyro.conf.arg(help=text)]
