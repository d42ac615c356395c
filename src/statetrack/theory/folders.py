"""Compiled networks on disk: language.json and tables.safetensors, or a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError

from statetrack.automata import DFA, group
from statetrack.errors import UserError
from statetrack.files import new_folder, read_json, write_atomic, write_json
from statetrack.theory.compiler import compile
from statetrack.theory.languages import Language
from statetrack.theory.network import CompiledRNN

SCHEMA = 1
KEYS = ("schema", "language", "kind", "group", "dfa", "target", "method", "delay")
TABLES = "tables.safetensors"
ABOUT = "language.json"


def save(
    folder: Path, net: CompiledRNN, language: Language, target: str, method: str, delay: str
) -> None:
    """Write a network to a new folder; `language.json`, last, says how it was compiled."""
    folder = new_folder(folder)
    tables = {name: table.contiguous() for name, table in net.state_dict().items()}
    write_atomic(folder / TABLES, safetensors.torch.save(tables))
    write_json(folder / ABOUT, about(net.dfa, language, target, method, delay))


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


def load(folder: Path) -> CompiledRNN:
    """The network in a folder: compiled anew, with the tables that lie there."""
    data = read_about(folder)
    dfa = DFA.from_json(data["dfa"], f"dfa of {folder / ABOUT}")
    language = dfa if data["group"] is None else group(data["group"])
    net = compile(language, data["target"], data["method"], data["delay"])
    try:
        tables = safetensors.torch.load_file(folder / TABLES)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read {folder / TABLES}: {error}") from None
    own = net.state_dict()
    for name in sorted(own.keys() | tables.keys()):
        if name not in own or name not in tables or own[name].shape != tables[name].shape:
            raise UserError(f"{folder / TABLES} does not belong to {ABOUT}: see tensor {name}")
    floats = [table.dtype for table in tables.values() if table.is_floating_point()]
    net.to(floats[0] if floats else torch.float32).load_state_dict(tables)
    return net


def read_about(folder: Path) -> dict[str, Any]:
    """The content of a folder's language.json, checked."""
    path = Path(folder) / ABOUT
    if not path.is_file():
        raise UserError(f"{folder} holds no compiled language: it has no {ABOUT}")
    data = read_json(path)
    if not isinstance(data, dict) or set(data) != set(KEYS):
        raise UserError(f"{path} must be an object with {', '.join(KEYS)}")
    if data["schema"] is True or data["schema"] != SCHEMA:
        raise UserError(f"{path} has schema {data['schema']!r}; this version reads {SCHEMA}")
    return data
