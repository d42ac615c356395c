"""Configuration: frozen dataclasses on one side, strict JSON on the other.

A configuration is a frozen dataclass whose fields are made with `option`, so that the command line
and `statetrack models` show the same help text. Mixers and tasks derive from `Named`: in JSON they
have their `name` first. Unknown keys and wrong types are errors.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
from collections.abc import Callable, Hashable, Iterable
from functools import cache
from numbers import Real
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from statetrack.errors import UserError, check_type

T = TypeVar("T")

MAX_WHOLE = 2**53  # what every reader of JSON can represent
LONG_LIST = 20  # names that fit into a message
DEVICE_HELP = (
    "where to compute: cpu, cuda, cuda:1, ... or mps; auto is cuda if there is a GPU, else cpu "
    "(never mps)"
)


def option(
    default: Any,
    help: str,
    low: float | None = None,
    high: float | None = None,
    *,
    identity: bool = True,
) -> Any:
    """Make a dataclass field.

    Args:
        default: its value if none is given.
        help: one line for people.
        low: the least value; None is not compared with it.
        high: the greatest value, if there is a least one.
        identity: whether it is part of what a configuration describes. The device is not: two
            configurations that differ in it are equal, and in JSON it appears unless it has its
            default.
    """
    metadata = {"help": help, "low": low, "high": high}
    return dataclasses.field(default=default, metadata=metadata, compare=identity)


class Named:
    """Base of configurations that are chosen by name (mixers, tasks)."""

    kind: ClassVar[str]

    if TYPE_CHECKING:

        @property
        def name(self) -> str:
            """The name that chooses it."""

        @classmethod
        def class_for(cls, name: str) -> type[Any]:
            """Return the dataclass called `name`; raise a UserError if there is none."""


def unknown(kind: str, name: object, known: Iterable[str]) -> UserError:
    """Return the error for an unknown name; of a long list it tells the nearest names only."""
    names = sorted(known)
    label, count = "known", len(names)
    if count > LONG_LIST:
        lower = {known_name.lower(): known_name for known_name in names}
        nearest = difflib.get_close_matches(str(name).lower(), lower, n=4, cutoff=0)
        label, names = f"nearest of {count} known", [lower[n] for n in nearest]
    return UserError(f"unknown {kind} {name!r}; {label}: {', '.join(names)}")


def one_of(what: str, value: object, allowed: Iterable[object]) -> None:
    """Raise a UserError unless `value` is one of `allowed`."""
    allowed = list(allowed)
    if not isinstance(value, Hashable) or value not in allowed:  # an array is not
        raise UserError(f"{what} must be one of {', '.join(map(str, allowed))}; got {value!r}")


def at_least(what: str, value: float, low: float) -> None:
    """Raise a UserError unless a number is finite and at least `low`."""
    check_type(what, value, Real, "a number")
    if not value >= low or math.isinf(value):
        finite = "" if isinstance(value, int) else "a finite number, "
        raise UserError(f"{what} must be {finite}at least {low:g}; got {value!r}")


def within(what: str, value: float, low: float, high: float) -> None:
    """Raise a UserError unless a number lies in low..high."""
    check_type(what, value, Real, "a number")
    if not low <= value <= high:
        raise UserError(f"{what} must lie in {low:,}..{high:,}; got {value!r}")


def hints(cls: type) -> dict[str, Any]:
    """Return the types of a configuration's options, by name, in order."""
    return _hints(cls)


@cache
def _hints(cls: type) -> dict[str, Any]:
    types_ = get_type_hints(cls)
    return {f.name: types_[f.name] for f in dataclasses.fields(cls) if f.init}


def check_types(config: Any) -> None:
    """Raise a UserError unless every field of a configuration has its type and is in bounds."""
    for name, kind in hints(type(config)).items():
        _decode(kind, getattr(config, name), name)
    for field in dataclasses.fields(config):
        low, high = field.metadata.get("low"), field.metadata.get("high")
        value = getattr(config, field.name)
        if low is None or value is None:
            continue
        if high is None:
            at_least(field.name, value, low)
        else:
            within(field.name, value, low, high)


def shared_values(new: Any, old: Any) -> Any:
    """Return `new` with the values of `old` that are no defaults, of options that both have."""
    both = (hints(type(new)).keys() & hints(type(old)).keys()) - {"name"}
    if getattr(new, "no_switch", ""):
        both -= {"allow_neg_eigval"}
    fields = dataclasses.fields(old)
    kept = {f.name for f in fields if f.name in both and getattr(old, f.name) != f.default}
    return dataclasses.replace(new, **{name: getattr(old, name) for name in kept})


def to_dict(config: Any) -> dict[str, Any]:
    """Convert a configuration to plain JSON values."""
    out: dict[str, Any] = {"name": config.name} if isinstance(config, Named) else {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.init and (field.compare or value != field.default):
            out[field.name] = _map(value, to_dict)
    return out


def changed(config: Any) -> dict[str, Any]:
    """Convert a configuration to plain JSON values, without the options at their default.

    Options that are no part of what it describes are left out, too: see `option`.
    """
    out: dict[str, Any] = {"name": config.name} if isinstance(config, Named) else {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.init and field.compare and value != field.default:
            out[field.name] = _map(value, changed)
    return out


def _map(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Apply `convert` to the configurations in a value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return convert(value)
    return [_map(v, convert) for v in value] if isinstance(value, tuple) else value


def from_dict(cls: type[T], data: Any, where: str) -> T:
    """Build a configuration from JSON values; `where` names it in errors."""
    if not isinstance(data, dict):
        raise UserError(f"{where} must be an object with keys; got {data!r}")
    data = dict(data)
    if issubclass(cls, Named):
        if "name" not in data:
            raise UserError(f"{where} needs a 'name' that says which {cls.kind} it is")
        if not isinstance(data["name"], str):
            raise UserError(f"{where}.name must be a text; got {data['name']!r}")
        cls = cls.class_for(data["name"])
        if "name" not in hints(cls):
            del data["name"]
    allowed = hints(cls)
    for key in data:
        if key not in allowed:
            raise UserError(f"unknown key {key!r} in {where}; known: {', '.join(allowed)}")
    required = [
        f.name
        for f in dataclasses.fields(cls)  # type: ignore[arg-type]
        if f.init and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    for key in required:
        if key not in data:
            raise UserError(f"{where} lacks the key {key!r}")
    return cls(**{key: _decode(allowed[key], data[key], f"{where}.{key}") for key in data})


def _decode(kind: Any, value: Any, where: str) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        kinds = [a for a in args if a is not type(None)]
        if len(kinds) > 1:  # a scalar or a tuple of them, told apart by JSON's own types
            many = isinstance(value, list | tuple)
            kinds = [a for a in kinds if (get_origin(a) is tuple) == many]
        return _decode(kinds[0], value, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise UserError(f"{where} must be a list; got {value!r}")
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_decode(args[0], v, f"{where}[{i}]") for i, v in enumerate(value))
        if len(value) != len(args):
            raise UserError(f"{where} must be a list of {len(args)} values; got {value!r}")
        return tuple(_decode(a, v, where) for a, v in zip(args, value, strict=True))
    if origin is Literal:
        one_of(where, value, args)
        return value
    if dataclasses.is_dataclass(value) and isinstance(kind, type) and isinstance(value, kind):
        return value
    if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, Named)):
        return from_dict(kind, value, where)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        if abs(value) >= 2**1023:
            raise UserError(f"{where} is too large for a number")
        return float(value)
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise UserError(f"{where} must be {_article(kind.__name__)}; got {value!r}")
    if kind is int and abs(value) > MAX_WHOLE:
        raise UserError(f"{where} must be a whole number of at most 2^53 in size")
    return value


def _article(name: str) -> str:
    names = {"int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false"}
    return names.get(name, name)
