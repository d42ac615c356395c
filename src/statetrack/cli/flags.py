"""Fields of configurations as flags of a command."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple, get_args

import tyro

from statetrack.config import hints, unknown
from statetrack.errors import UserError

POSITIONAL = get_args(tyro.conf.Positional[int])[1]  # how tyro marks arguments without a flag


class Flag(NamedTuple):
    """A flag, or a positional argument; MISSING as default makes it required."""

    name: str
    type: Any
    default: Any = dataclasses.MISSING


def described(kind: Any, text: str) -> Any:
    """A type with the help text of its flag."""
    return Annotated[kind, tyro.conf.arg(help=text)]


def positional(kind: Any, called: str, text: str) -> Any:
    """The type of an argument without a flag, with what it is called and its help text."""
    marked: Any = tyro.conf.Positional
    return marked[Annotated[kind, tyro.conf.arg(metavar=called, help=text)]]


def config_flags(config: Any) -> Iterator[Flag]:
    """The fields of a configuration, but for its name, with its values as defaults."""
    types = hints(type(config))
    for field in dataclasses.fields(config):
        if field.name != "name" and field.init:
            kind = described(types[field.name], field.metadata["help"])
            yield Flag(field.name, kind, getattr(config, field.name))


def parse(command: str, about: str, flags: Iterable[Flag], args: Sequence[str]) -> Any:
    """The values of the flags, as attributes."""
    flags = list(flags)
    named = [
        flag.name for flag in flags if POSITIONAL not in getattr(flag.type, "__metadata__", ())
    ]
    check_flags(args, named)
    fields = [(name, kind, dataclasses.field(default=default)) for name, kind, default in flags]
    given = dataclasses.make_dataclass("Given", fields, kw_only=True)
    return tyro.cli(given, prog=f"statetrack {command}", description=about, args=list(args))


def first_values(names: Iterable[str], args: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The texts of some flags, and the words that are left, before all flags are known.

    All are None if one has no value: the parser of all flags will say so.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in names:
        first.add_argument(f"--{name.replace('_', '-')}", f"--{name}")
    try:
        known, rest = first.parse_known_args(list(args))
    except argparse.ArgumentError:
        return first.parse_args([]), []
    for name, value in vars(known).items():
        if isinstance(value, list):  # argparse drops the value "--"
            raise UserError(f"--{name} cannot be '--'")
    return known, rest


def check_flags(args: Sequence[str], names: Iterable[str]) -> None:
    """Refuse a flag that no option has; the parser itself names the nearest only sometimes."""
    known = [f"--{name.replace('_', '-')}" for name in ("help", *names)]
    for arg in args:
        flag = arg.partition("=")[0].replace("_", "-")
        if flag == "--":  # what follows are words
            return
        allowed = {flag, flag.replace("--no-", "--", 1)} & set(known)
        if flag.startswith("--") and not flag.startswith("--tyro-") and not allowed:
            raise unknown("option", arg.partition("=")[0], known)


def options_of(command: Callable[..., Any]) -> list[str]:
    """The names of a function's options, without its positional arguments."""
    parameters = inspect.signature(command).parameters.values()
    return [p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY]
