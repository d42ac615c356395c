"""The kernels' argument structures as ctypes types, read from `interface.h`.

The header is the only place where they are declared. What this reader does not understand is an
error, so nothing in the header is passed over.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

_STRUCTURE = re.compile(r"typedef struct \{([^{}]*);\s*\} (\w+);")
_DECLARATION = re.compile(r"\s*(?:const )?(\w+)\b\s*(\*? ?\w+(?:, \*?\w+)*)")
_CONSTANT = re.compile(r"^#define (\w+) (\d+)$", re.M)
_KERNEL = re.compile(r"\bX\((\w+), (\w+)\)")
_OTHERS = re.compile(r"^#(?:pragma once|include <stdint.h>|define KERNELS\(X\))|\\$", re.M)


def read(
    header: str,
) -> tuple[dict[str, type[ctypes.Structure]], dict[str, str], dict[str, int]]:
    """Read the text of a header.

    Returns:
        The structures by name, the name of the structure that each kernel takes, and the constants.

    Raises:
        ValueError: for a declaration of another form.
    """
    text = re.sub(r"[ \t]*//.*", "", header)
    structures: dict[str, type[ctypes.Structure]] = {}
    for body, name in _STRUCTURE.findall(text):
        fields = [field for line in body.split(";") for field in _fields(line, structures)]
        structures[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    kernels = dict(_KERNEL.findall(text))
    constants = {name: int(value) for name, value in _CONSTANT.findall(text)}
    for known in (_STRUCTURE, _KERNEL, _CONSTANT, _OTHERS):
        text = known.sub("", text)
    if unknown := text.split():
        raise ValueError(f"cannot read {' '.join(unknown)!r}")
    return structures, kernels, constants


def _fields(
    declaration: str, structures: Mapping[str, type[ctypes.Structure]]
) -> Iterator[tuple[str, type]]:
    """The names and types of one line, such as `const float *q, *k`."""
    kinds: dict[str, type] = {"int64_t": ctypes.c_int64, "double": ctypes.c_double, **structures}
    match = _DECLARATION.fullmatch(declaration)
    base, names = match.groups() if match else ("", "")
    for name in names.split(","):
        kind = ctypes.c_void_p if "*" in name else kinds.get(base)
        if kind is None:
            raise ValueError(f"cannot read {declaration.strip()!r}")
        yield name.strip("* "), kind


_HEADER = Path(__file__).with_name("interface.h").read_bytes()
HASH = hashlib.sha256(_HEADER).hexdigest()
STRUCTURES, KERNELS, CONSTANTS = read(_HEADER.decode())
