"""Make command-line options of typed functions and of configurations, with argparse."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, Union, get_args, get_origin, get_type_hints

from statetrack.config import DEVICE_HELP, hints, one_of, unknown
from statetrack.errors import UserError

# options of (almost) every command
HELP = {
    "json": "write the result as JSON to a file; - for standard output",
    "device": DEVICE_HELP,
}
METAVARS = {"json": "FILE|-", "device": "{auto,cpu,cuda,mps}"}
KINDS: dict[Any, tuple[str, str]] = {  # the type's placeholder in --help, and its name in messages
    int: ("INT", "a whole number"),
    float: ("NUMBER", "a number"),
    bool: ("{True,False}", "True or False"),
    str: ("TEXT", ""),
    Path: ("PATH", ""),
}

MAX_RANGE = 10_000  # numbers of a range


class Option(NamedTuple):
    """A flag, or a positional argument. Without a default it is required."""

    name: str
    type: Any
    help: str = ""
    default: Any = dataclasses.MISSING
    positional: bool = False
    several: bool = False  # values separated by commas, which `several_values` reads

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is dataclasses.MISSING

    @property
    def shown(self) -> str:
        """Its name in help and messages."""
        return self.name.upper() if self.positional else _flag(self.name)


def function_options(function: Callable[..., Any]) -> list[Option]:
    """Read a function's options: positional parameters become arguments, keyword-only ones flags.

    The help texts come from the section `Args` of its docstring; `**kwargs` are left out.
    """
    types_, texts = get_type_hints(function), _help_texts(function)
    found = []
    for p in inspect.signature(function).parameters.values():
        if p.kind is not p.VAR_KEYWORD:
            text = texts.get(p.name, HELP.get(p.name, ""))
            default = dataclasses.MISSING if p.default is p.empty else p.default
            positional = p.kind is p.POSITIONAL_OR_KEYWORD
            found.append(Option(p.name, types_[p.name], text, default, positional))
    return found


def config_options(config: Any) -> Iterator[Option]:
    """List the fields of a configuration but for its name, with its values as defaults."""
    types_ = hints(type(config))
    for field in dataclasses.fields(config):
        if field.name != "name" and field.init:
            value = getattr(config, field.name)
            yield Option(field.name, types_[field.name], field.metadata["help"], value)


def summary(function: Callable[..., Any]) -> str:
    """Return the first line of a command's docstring."""
    return (function.__doc__ or "").partition("\n")[0]


def _help_texts(function: Callable[..., Any]) -> dict[str, str]:
    section = (inspect.getdoc(function) or "").partition("\nArgs:\n")[2]
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", section, flags=re.MULTILINE)
    return {name: " ".join(text.split()).rstrip(".") for name, text in found}


class Parser(argparse.ArgumentParser):
    """Parse a command's arguments; every mistake is a UserError.

    Only what was given is returned: the called function has the defaults.
    """

    def __init__(self, prog: str, function: Callable[..., Any]) -> None:
        about = (inspect.getdoc(function) or "").partition("\nArgs:\n")[0]
        super().__init__(prog, "%(prog)s [options]", about, allow_abbrev=False, add_help=False)
        # every flag has two dashes: a word with one, such as -inf, is a value
        self._negative_number_matcher = re.compile(r"-[^-]")
        self.options: dict[str, Option] = {}
        self.flags = {"--help"}
        self.add(function_options(function))

    def add(self, options: Iterable[Option]) -> None:
        """Make flags, or positional arguments, of these options, besides those added before."""
        for option in options:
            self.options[option.name] = option
            self._add(option)
            if not option.positional:
                self.flags.add(option.shown)

    def _add(self, option: Option) -> None:
        kind, _ = _plain(option.type)
        many = get_origin(kind) is tuple
        item = get_args(kind)[0] if many else kind
        given: dict[str, Any] = {"default": argparse.SUPPRESS, "help": _shown(option)}
        if get_origin(item) is Literal:
            given["metavar"] = "{" + ",".join(get_args(item)) + "}"
        else:
            given["metavar"] = METAVARS.get(option.name, KINDS[item][0])
        if many:
            given["nargs"] = "*" if Ellipsis in get_args(kind) else len(get_args(kind))
        if option.positional:
            given["metavar"] = option.shown
            shown = option.shown + (" ..." if many else "")
            self.usage = f"{self.usage} {shown if option.required else f'[{shown}]'}"
            self.add_argument(option.name, **{"nargs": "?", **given})
            return
        if option.several:
            given["metavar"] += ",..."
        if option.several and kind is bool:
            negated = _flag(f"no_{option.name}")
            self.add_argument(
                negated, dest=option.name, action="store_const", const="False",
                default=argparse.SUPPRESS, help=argparse.SUPPRESS,
            )  # fmt: skip
            given |= {"nargs": "?", "const": "True"}
        elif option.type is bool:
            given["action"] = argparse.BooleanOptionalAction
            del given["metavar"]
        self.add_argument(option.shown, dest=option.name, **given)

    def add_plugins(self) -> None:
        """Add --plugin, which may be repeated."""
        text = "import a module that registers layers or tasks; may be repeated"
        self.add_argument("--plugin", action="append", metavar="MODULE", help=text, default=[])
        self.flags.add("--plugin")

    def first(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Return the values of the options that are known so far; none if one lacks its value."""
        try:
            known = [word for word in arguments if word not in ("--help", "-h")]
            return self._values(self.parse_known_intermixed_args(self._spelled(known))[0])
        except UserError:  # `parse` will raise it
            return {"plugin": []}

    def check_first(self, arguments: Sequence[str], first: dict[str, Any]) -> None:
        """Raise if `first` took the value of an unknown flag for a positional argument."""
        for flag, word in pairwise(arguments):
            taken = any(o.positional and first.get(o.name) == word for o in self.options.values())
            if taken and flag.startswith("--") and "=" not in flag and flag not in self.flags:
                raise UserError(f"unknown option {flag}; options of a task come after its name")

    def parse(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Return the values of the options in `arguments`, by name."""
        self.add_argument("-h", "--help", action="help", help="show this and exit")
        found, rest = self.parse_known_intermixed_args(self._spelled(arguments))
        for word in rest:
            flag = word.partition("=")[0]
            if flag.startswith("--"):
                raise unknown("option", flag, self.flags)
        if rest:
            raise UserError(f"unexpected argument {rest[0]!r}; see {self.prog} --help")
        for option in self.options.values():
            if option.required and not hasattr(found, option.name):
                raise UserError(f"{option.shown} is missing: {option.help}")
        return self._values(found)

    def _values(self, found: argparse.Namespace) -> dict[str, Any]:
        return {
            name: _value(self.options[name], value) if name in self.options else value
            for name, value in vars(found).items()
        }

    def _spelled(self, arguments: Sequence[str]) -> list[str]:
        """Return the arguments with dashes in known flags that have underscores."""
        out = []
        for word in arguments:
            flag, equals, value = word.partition("=")
            if equals and value == "--" and flag.startswith("--"):  # argparse drops it
                raise UserError(f"{flag} cannot be '--'")
            dashed = flag.replace("_", "-")
            known = dashed.replace("--no-", "--", 1) in self.flags or dashed in self.flags
            out.append(f"{dashed}{equals}{value}" if known else word)
        return out

    def error(self, message: str) -> NoReturn:
        raise UserError(message.removeprefix("argument "))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _shown(option: Option) -> str:
    """Return the help text with the default."""
    text, value = option.help, option.default
    if isinstance(value, tuple):
        value = " ".join(map(str, value)) or None
    if value not in (dataclasses.MISSING, None) and value is not False:
        text += f" (default: {value})"
    return text.replace("%", "%%")


def _plain(kind: Any) -> tuple[Any, bool]:
    """Return the type without None, and whether it had None."""
    if get_origin(kind) in (Union, types.UnionType):
        (one,) = (a for a in get_args(kind) if a is not type(None))
        return one, True
    return kind, False


def _value(option: Option, given: Any) -> Any:
    """Convert what argparse found: a text, a list of texts, or the value of a switch."""
    kind, optional = _plain(option.type)
    if isinstance(given, bool) or option.several:
        return given
    if optional and given in ("None", ["None"]):
        return None
    if isinstance(given, list):
        return tuple(_scalar(get_args(kind)[0], text, option.shown) for text in given)
    return _scalar(kind, given, option.shown)


def several(option: Option) -> Option:
    """Let an option take several values, unless its value is a list of its own."""
    kind, _ = _plain(option.type)
    return option._replace(several=get_origin(kind) is not tuple)


def several_values(option: Option, text: str) -> tuple[Any, ...]:
    """Read values separated by commas; whole numbers may be ranges such as 0-4."""
    one = option._replace(several=False)
    kind, _ = _plain(option.type)
    found: list[Any] = []
    for item in text.split(","):
        match = re.fullmatch(r"([0-9]{1,15})-([0-9]{1,15})", item)
        if kind is int and match:
            low, high = int(match[1]), int(match[2])
            if not 0 <= high - low < MAX_RANGE:
                raise UserError(f"{option.shown}: a range has 1 to {MAX_RANGE:,} numbers: {item}")
            found += range(low, high + 1)
        elif kind is bool and item == "both":
            found += [False, True]
        else:
            found.append(_value(one, item))
    return tuple(dict.fromkeys(found))


def _scalar(kind: Any, text: str, where: str) -> Any:
    if get_origin(kind) is Literal:
        one_of(where, text, get_args(kind))
        return text
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        raise UserError(f"{where} must be {KINDS[kind][1]}; got {text!r}") from None
