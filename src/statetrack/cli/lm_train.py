"""`statetrack lm train`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statetrack.cli.config_flags import Field, changed_model, changes_by_section, config_fields
from statetrack.cli.parser import Option
from statetrack.config import at_least
from statetrack.errors import UserError
from statetrack.lm.extra import require_lm
from statetrack.terminal import PlainConsole, make_console, print_progress, write_result

if TYPE_CHECKING:
    from statetrack.lm.pretraining.config import PretrainingConfig


def lm_train(
    *,
    data: Path | None = None,
    preset: str | None = None,
    mixer: str | None = None,
    out: Path | None = None,
    resume: Path | None = None,
    pair: bool = False,
    tokens: int | None = None,
    track: tuple[str, ...] = (),
    json: str | None = None,
    **values: Any,
) -> None:
    """Pretrain a language model; the same command again continues it.

    Several processes: torchrun --nproc-per-node N -m statetrack lm train ...

    Args:
        data: what `statetrack lm data` wrote.
        preset: tiny, small, 340m, 1.3b or mamba-370m; tiny if absent.
        mixer: see `statetrack models`; a,b for a hybrid; the preset's if absent.
        out: the folder of the run, or of both with --pair.
        resume: continue what is in this folder, with the options that it has.
        pair: train both ranges of eigenvalues into --out, and compare them in one report.
        tokens: how many tokens to train on, in place of --steps.
        track: tensorboard, wandb: send the metrics there as well.
    """
    require_lm()
    from statetrack.lm.pretraining.distributed import end_processes

    console = PlainConsole(quiet=True) if _rank() else make_console(json)
    config = _with_options(_base(preset, mixer, resume), values, tokens, data)
    folder = resume or out
    if folder is None or (resume is not None and out is not None):
        raise UserError("give --out for a new run or --resume for an old one")
    pair = pair or (resume is not None and _is_pair(resume))
    if pair and "allow_neg_eigval" in values:
        raise UserError("--pair trains both ranges: leave out --allow-neg-eigval")
    try:
        result = (_train_pair if pair else _train)(config, folder, track, console)
    except KeyboardInterrupt:
        console.print(f"\nInterrupted; to go on: statetrack lm train --resume {folder}")
        raise
    finally:
        end_processes()
    if not _rank():
        write_result(json, result)


def _train(
    config: PretrainingConfig, folder: Path, track: tuple[str, ...], console: PlainConsole
) -> dict[str, Any]:
    from statetrack.lm.pretraining.loop import pretrain
    from statetrack.training.trackers import make_trackers

    title = config.model.title
    show = print_progress(console, title)
    run = pretrain(config, folder, trackers=make_trackers(track), on_progress=show)
    last = next((row for row in reversed(run.metrics()) if row["kind"] == "validation"), None)
    loss = "" if last is None else f" Validation loss {last['loss']:.4f}."
    console.print(f"{title}: {run.model_folder} has the model.{loss}", soft_wrap=True)
    return {"run": str(run.folder), "config": config.to_json(), "validation": last}


def _train_pair(
    config: PretrainingConfig, folder: Path, track: tuple[str, ...], console: PlainConsole
) -> dict[str, Any]:
    from statetrack.lm.pretraining.pair import Pair, pair_configs, pair_document
    from statetrack.report.render import print_document, write_document

    configs = pair_configs(config)
    if (folder / "config.json").exists():
        raise UserError(f"{folder} holds a single run; choose another folder for a pair")
    runs: dict[str, Any] = {
        name: _train(one, folder / name, track, console) for name, one in configs.items()
    }
    if _rank():
        return runs
    document = pair_document([folder])
    write_document(document, folder)
    print_document(console, document)
    console.print(f"Report: {folder / 'index.html'}", soft_wrap=True)
    return {**runs, "difference": Pair.open(folder).difference, "report": str(folder)}


def lm_train_options(first: dict[str, Any]) -> list[Option]:
    """List the fields of the configuration that the first options choose."""
    chosen = _base(first.get("preset"), first.get("mixer"), first.get("resume"))
    return [field.option for field in _fields(chosen)]


def _base(preset: str | None, mixer: str | None, resume: Path | None) -> PretrainingConfig:
    """Return the configuration whose fields are the defaults of the flags."""
    from statetrack.lm.pretraining.config import read_pretraining_config
    from statetrack.lm.pretraining.presets import preset as known

    if resume is None:
        return known(preset or "tiny", mixer)
    if preset is not None or mixer is not None:
        raise UserError(f"{resume} is resumed with the preset and mixer it has")
    folder = resume / "narrow" if _is_pair(resume) else resume
    return read_pretraining_config(folder / "config.json")


def _is_pair(folder: Path) -> bool:
    return (folder / "narrow" / "config.json").is_file()


def _fields(base: PretrainingConfig) -> list[Field]:
    return list(config_fields(base.model, {}, {"pretraining": base}))


def _with_options(
    base: PretrainingConfig, values: dict[str, Any], tokens: int | None, data: Path | None
) -> PretrainingConfig:
    """Return the configuration with the given values of the flags, and of the data."""
    from statetrack.lm.data import TokenData

    if data is None and not base.data_folder:
        raise UserError("--data is missing: `statetrack lm data --out DIR` makes a data folder")
    source = TokenData.open(data or base.data_folder)
    changes = changes_by_section(_fields(base), values)
    model = changed_model(base.model, changes, source.vocab_size)
    options = changes.get("pretraining", {})
    if tokens is not None:
        if "steps" in options:
            raise UserError("give --steps or --tokens, not both")
        sizes = {
            name: options[name] for name in ("context_length", "batch_size") if name in options
        }
        options["steps"] = _steps(tokens, replace(base, **sizes).tokens_per_step)
    if not base.data_folder:  # a preset's, not those of a resumed run
        options.setdefault("warmup", min(base.warmup, options.get("steps", base.steps) // 10))
        if "lr" in options:
            options.setdefault("min_lr", options["lr"] * (base.min_lr / base.lr))
    return replace(
        base,
        model=model,
        data_folder=str(source.folder.resolve()),
        data_fingerprint=source.fingerprint,
        **options,
    )


def _steps(tokens: int, per_step: int) -> int:
    """Return the steps in which that many tokens are read."""
    at_least("tokens", tokens, 1)
    if tokens < per_step:
        raise UserError(f"--tokens {tokens:,} is less than a step, which reads {per_step:,}")
    return round(tokens / per_step)


def _rank() -> int:
    """The number of this process among those that torchrun started; 0 if it is alone."""
    return int(os.environ.get("RANK", "0"))
