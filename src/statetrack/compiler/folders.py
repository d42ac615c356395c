"""Compiled networks on disk: language.json and tables.safetensors, or a run folder."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from statetrack.automata import DFA, group
from statetrack.compiler.compiler import MODEL, compile
from statetrack.compiler.languages import REGEX, Language
from statetrack.compiler.model import CompiledModel
from statetrack.compiler.network import CompiledRNN
from statetrack.errors import UserError, check_type
from statetrack.files import read_json, regular, whole_folder, write_atomic, write_json
from statetrack.models import SequenceModel
from statetrack.tasks.automaton import Automaton
from statetrack.tasks.languages import check_size
from statetrack.training import Run, RunConfig, TrainingConfig

SCHEMA = 1
KEYS = ("schema", "language", "kind", "group", "dfa", "target", "method", "delay")
TABLES = "tables.safetensors"
ABOUT = "language.json"
HARDENED = "hardened.json"  # what hardening did, in a run that it wrote
AUTOMATON = "dfa.json"


def save(
    folder: Path,
    net: CompiledRNN | CompiledModel,
    language: Language,
    target: str,
    method: str,
    delay: str,
) -> None:
    """Write a network to a new folder; `language.json`, last, says how it was compiled.

    A CompiledModel makes it a run folder, of the task to tell the state.
    """
    if isinstance(net, CompiledModel):
        check_size(language.text, net.dfa.states)
        if net.dfa.states == 1:
            raise UserError(f"{language.text} has one state only: no task, so no run of a model")
        for symbol in net.dfa.alphabet:
            if re.fullmatch("PAD|q[0-9]+", symbol):  # the task's own tokens
                raise UserError(f"{language.text}: a run of a model cannot have symbol {symbol!r}")
    with whole_folder(folder) as made:
        if isinstance(net, CompiledModel):
            _save_run(made, net.model, net.dfa, language)
        else:
            tables = {name: table.contiguous() for name, table in net.state_dict().items()}
            write_atomic(made / TABLES, safetensors.torch.save(tables))
        write_json(made / ABOUT, about(net.dfa, language, target, method, delay))


def _save_run(folder: Path, model: SequenceModel, dfa: DFA, language: Language) -> None:
    """As if it had been trained for 0 steps."""
    name = language.text
    if not name.startswith("regex:") and language.kind == REGEX:
        name = f"regex:{name}"
    plain = replace(dfa, outputs=None)
    named = Automaton.matches(name) and replace(Automaton(name=name).dfa, outputs=None) == plain
    if not named:  # no language with a name of its own
        name = f"dfa:{folder / AUTOMATON}"
        write_json(folder / AUTOMATON, dfa.to_json())
    config = RunConfig(Automaton(name=name), model.config, TrainingConfig())
    data = config.to_json()
    if not named:
        data["task"]["name"] = f"dfa:{AUTOMATON}"  # beside config.json, wherever that is moved to
    run = Run(folder, config)
    write_json(folder / "config.json", data)
    run.save(0, model, torch.optim.AdamW(model.parameters()))


def about(dfa: DFA, language: Language, target: str, method: str, delay: str) -> dict[str, Any]:
    """The content of language.json."""
    is_dfa = isinstance(language.value, DFA)
    return {
        "schema": SCHEMA,
        "language": language.text,
        "kind": language.kind,
        "group": None if is_dfa else language.text,
        "dfa": dfa.to_json(),
        "target": target,
        "method": method,
        "delay": delay,
    }


def holds_tables(folder: Path) -> bool:
    """Whether a compiled network that is no run lies in a folder."""
    return (folder / TABLES).is_file()


def is_compiled(folder: Path) -> bool:
    """Whether `compile` has written a folder, rather than training."""
    return (folder / ABOUT).is_file()


def is_hardened(folder: Path) -> bool:
    """Whether `harden` has written a folder, rather than training."""
    return (folder / HARDENED).is_file()


def load(folder: Path | str) -> SequenceModel | CompiledRNN | CompiledModel:
    """Load what `train`, `harden` or `compile` has written to a folder.

    Args:
        folder: a run folder, or what `statetrack compile` has written.

    Returns:
        The SequenceModel of a run that was trained or hardened, at its last checkpoint, ready to
        evaluate; the CompiledModel or CompiledRNN of a compiled language.

    Raises:
        UserError: if the folder holds neither, or a file in it is damaged.
    """
    check_type("folder", folder, (str, Path), "the path of a folder")
    folder = Path(folder)
    compiled = is_compiled(folder) or holds_tables(folder)
    return load_compiled(folder) if compiled else Run.open(folder).model()


def load_compiled(folder: Path) -> CompiledRNN | CompiledModel:
    """The network in a folder: a run's model, or compiled anew with the tables that lie there."""
    data = read_about(folder)
    dfa = DFA.from_json(data["dfa"], f"dfa of {folder / ABOUT}")
    if data["target"] == MODEL:
        model = Run.open(folder).model()
        if model.config.vocab_size != 1 + len(dfa.alphabet) + dfa.states:
            raise UserError(f"the model in {folder} does not belong to its {ABOUT}")
        return CompiledModel(dfa, model, f"the model in {folder}")
    language = dfa if data["group"] is None else group(data["group"])
    net = compile(language, data["target"], data["method"], data["delay"])
    assert isinstance(net, CompiledRNN)
    try:
        tables = safetensors.torch.load_file(regular(folder / TABLES))
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read {folder / TABLES}: {error}") from None
    own = net.state_dict()
    for name in sorted(own.keys() | tables.keys()):
        if name not in own or name not in tables or own[name].shape != tables[name].shape:
            raise UserError(f"{folder / TABLES} does not belong to {ABOUT}: see tensor {name}")
        problem = _problem(own[name], tables[name])
        if problem:
            raise UserError(f"{folder / TABLES}: tensor {name} {problem}")
    floats = {table.dtype for table in tables.values() if table.is_floating_point()}
    if len(floats) != 1:
        names = ", ".join(sorted(map(str, floats)))
        raise UserError(f"{folder / TABLES} mixes number types: {names}")
    net.to(floats.pop()).load_state_dict(tables)
    return net


def _problem(own: Tensor, given: Tensor) -> str:
    """What keeps a table from taking the place of one that was just compiled, if anything."""
    if own.is_floating_point():
        if not given.is_floating_point():
            return f"must have a floating-point type; got {given.dtype}"
        return "" if bool(given.isfinite().all()) else "must have finite numbers only"
    if given.dtype != own.dtype:
        return f"must have type {own.dtype}; got {given.dtype}"
    if own.dtype == torch.bool or not len(own):
        return ""
    low, high, most = int(given.min()), int(given.max()), int(own.max())
    return "" if low >= 0 and high <= most else f"must lie in 0..{most}; got {low} to {high}"


def read_about(folder: Path) -> dict[str, Any]:
    """The content of a folder's language.json, checked."""
    path = Path(folder) / ABOUT
    if not path.is_file():
        raise UserError(f"{folder} holds no compiled language: it has no {ABOUT}")
    data = read_json(path)
    if not isinstance(data, dict) or set(data) != set(KEYS):
        raise UserError(f"{path} must be an object with {', '.join(KEYS)}")
    if not (data["group"] is None or isinstance(data["group"], str)):
        raise UserError(f"{path}: group must be a name or null; got {data['group']!r}")
    if data["schema"] is True or data["schema"] != SCHEMA:
        raise UserError(f"{path} has schema {data['schema']!r}; this version reads {SCHEMA}")
    return data
