"""Find the options in which configurations differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Options = dict[str, Any]  # by dotted name, such as model.mixer.num_heads


def flat(config: Mapping[str, Any], prefix: str = "") -> Options:
    """Flatten a configuration: {"model": {"head": 1}} becomes {"model.head": 1}."""
    found: Options = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def option_text(value: Any) -> str:
    """Format the value of an option."""
    if isinstance(value, list | tuple):
        return " ".join(map(option_text, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {option_text(v)}" for name, v in value.items())
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def varying(options: Sequence[Options]) -> list[str]:
    """Return the names of the options that are not the same everywhere."""
    names = list(dict.fromkeys(name for one in options for name in one))
    return [name for name in names if len({option_text(one.get(name)) for one in options}) > 1]


def distinguishing(options: Sequence[Options]) -> list[str]:
    """Return a small set of the varying options that distinguishes as much as all of them.

    An option is left out if its value follows from those of the options before it, such as a number
    of heads that differs between two architectures only.
    """
    chosen: list[str] = []
    for name in varying(options):
        values: dict[tuple[str, ...], set[str]] = {}
        for one in options:
            key = tuple(option_text(one.get(c)) for c in chosen)
            values.setdefault(key, set()).add(option_text(one.get(name)))
        if any(len(found) > 1 for found in values.values()):
            chosen.append(name)
    return chosen
