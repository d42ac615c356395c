"""Fields of configurations as flags of a command."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import tyro

from statetrack.config import hints


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
    fields = [(name, kind, dataclasses.field(default=default)) for name, kind, default in flags]
    given = dataclasses.make_dataclass("Given", fields, kw_only=True)
    return tyro.cli(given, prog=f"statetrack {command}", description=about, args=list(args))
