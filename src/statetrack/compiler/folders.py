"""Read what `compile`, `harden` and training wrote to a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from statetrack.automata import DFA, Group, group
from statetrack.compiler.compiled import LANGUAGE_FILE, SCHEMA, Source
from statetrack.compiler.compiling import MODEL, compile
from statetrack.compiler.model import CompiledModel
from statetrack.compiler.network import TABLES_FILE, CompiledRNN
from statetrack.compiler.text_to_dfa import Language
from statetrack.devices import on_cpu, use_device
from statetrack.errors import UserError, check_type
from statetrack.files import read_json, regular
from statetrack.models import SequenceModel
from statetrack.training import Run

KEYS = ("schema", "language", "kind", "group", "dfa", *Source._fields[1:])
HARDENED = "hardened.json"  # what hardening did, in a run that it wrote


def holds_tables(folder: Path) -> bool:
    """Whether a folder holds a network of tables, which is no run."""
    return (folder / TABLES_FILE).is_file()


def is_compiled(folder: Path) -> bool:
    """Whether `compile` has written a folder, rather than training."""
    return (folder / LANGUAGE_FILE).is_file()


def is_hardened(folder: Path) -> bool:
    """Whether `harden` has written a folder, rather than training."""
    return (folder / HARDENED).is_file()


def load(folder: Path | str, *, device: str = "cpu") -> SequenceModel | CompiledRNN | CompiledModel:
    """Load what `train`, `harden` or `compile` has written to a folder.

    Args:
        folder: a run folder, or what `statetrack compile` has written.
        device: where it shall be, as `TrainingConfig.device`.

    Returns:
        The SequenceModel of a run that was trained or hardened, at its last checkpoint, ready to
        evaluate; the CompiledModel or CompiledRNN of a compiled language.

    Raises:
        UserError: if the folder holds neither, or a file in it is damaged.
    """
    check_type("folder", folder, (str, Path), "the path of a folder")
    folder = Path(folder)
    compiled = is_compiled(folder) or holds_tables(folder)
    if compiled:
        return load_compiled(folder, device=device)
    return Run.open(folder).model(device=device)


@on_cpu()
def load_compiled(folder: Path, *, device: str = "cpu") -> CompiledRNN | CompiledModel:
    """Load a run's model, or compile a network anew and take the tables in the folder."""
    place = use_device(device)
    data = read_language_file(folder)
    options = {name: data[name] for name in Source._fields[1:]}
    if data["group"] is None or data["target"] == MODEL:
        dfa = DFA.from_json(data["dfa"], f"dfa of {folder / LANGUAGE_FILE}")
    if data["target"] == MODEL:
        model = Run.open(folder).model(device=device)
        if model.config.vocab_size != 1 + len(dfa.alphabet) + dfa.states:
            raise UserError(f"the model in {folder} does not belong to its {LANGUAGE_FILE}")
        return _with_source(CompiledModel(dfa, model, f"the model in {folder}"), data, dfa)
    language = dfa if data["group"] is None else group(data["group"])
    net = _with_source(compile(language, **options), data, language)
    assert isinstance(net, CompiledRNN)
    try:
        tables = safetensors.torch.load_file(regular(folder / TABLES_FILE))
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read {folder / TABLES_FILE}: {error}") from None
    own = net.state_dict()
    for name in sorted(own.keys() | tables.keys()):
        if name not in own or name not in tables or own[name].shape != tables[name].shape:
            where = f"{folder / TABLES_FILE} does not belong to {LANGUAGE_FILE}"
            raise UserError(f"{where}: see tensor {name}")
        problem = _problem(own[name], tables[name])
        if problem:
            raise UserError(f"{folder / TABLES_FILE}: tensor {name} {problem}")
    floats = {table.dtype for table in tables.values() if table.is_floating_point()}
    if len(floats) != 1:
        names = ", ".join(sorted(map(str, floats)))
        raise UserError(f"{folder / TABLES_FILE} mixes number types: {names}")
    net.to(floats.pop()).load_state_dict(tables)
    return net.to(place)


def _with_source(
    net: CompiledRNN | CompiledModel, data: dict[str, Any], value: DFA | Group
) -> CompiledRNN | CompiledModel:
    language = Language(data["language"], data["kind"], value)
    net.source = Source(language, **{name: data[name] for name in Source._fields[1:]})
    return net


def _problem(own: Tensor, given: Tensor) -> str:
    """Why a table cannot replace one that was just compiled; "" if it can."""
    if own.is_floating_point():
        if not given.is_floating_point():
            return f"must have a floating-point type; got {given.dtype}"
        return "" if bool(given.isfinite().all()) else "must have finite numbers only"
    if given.dtype != own.dtype:
        return f"must have type {own.dtype}; got {given.dtype}"
    if not len(own):
        return ""
    low, high, most = int(given.min()), int(given.max()), int(own.max())
    return "" if low >= 0 and high <= most else f"must lie in 0..{most}; got {low} to {high}"


def read_language_file(folder: Path) -> dict[str, Any]:
    """Read and check a folder's language.json."""
    path = Path(folder) / LANGUAGE_FILE
    if not path.is_file():
        raise UserError(f"{folder} holds no compiled language: it has no {LANGUAGE_FILE}")
    data = read_json(path)
    if isinstance(data, dict):
        data.setdefault("tokens_per_element", 1)  # written before there was this option
    if not isinstance(data, dict) or set(data) != set(KEYS):
        raise UserError(f"{path} must be an object with {', '.join(KEYS)}")
    if not (data["group"] is None or isinstance(data["group"], str)):
        raise UserError(f"{path}: group must be a name or null; got {data['group']!r}")
    if data["schema"] is True or data["schema"] != SCHEMA:
        raise UserError(f"{path} has schema {data['schema']!r}; this version reads {SCHEMA}")
    return data
