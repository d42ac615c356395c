"""The packages that the extras declare, and whether the installed versions are among them."""

from __future__ import annotations

import re
from importlib import metadata


def declared(extra: str) -> dict[str, list[str]]:
    """Return the bounds of versions of an extra's packages, such as [">=3.5", "<4"]."""
    try:
        lines = metadata.requires("statetrack") or []
    except metadata.PackageNotFoundError:  # not installed: nothing is declared
        return {}
    found = {}
    for line in lines:
        requirement, _, condition = line.partition(";")
        # a name, perhaps with extras of its own, and bounds: lm-eval[hf]<0.5,>=0.4.13
        name, bounds = re.fullmatch(r"([\w.-]+)(?:\[[^\]]*\])?(.*)", requirement.strip()).groups()  # type: ignore[union-attr]
        if f'extra == "{extra}"' in condition:
            found[name] = sorted(bounds.strip(" ()").split(","), reverse=True)
    return found


def untested_version(distribution: str, bounds: list[str]) -> str | None:
    """Return a message if the installed version is outside the tested bounds, else None.

    None also if the package is not installed under this name, as Triton's build for ROCm, or if its
    installation is damaged and has no version.
    """
    try:
        version: str | None = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
    for kind, limit in re.findall(r"(>=|<)([\d.]+)", ",".join(bounds)) if version else ():
        if (_release(version or "") >= _release(limit)) != (kind == ">="):
            wanted = ",".join(bounds)
            command = f'pip install "{distribution}{wanted}"'
            return f"{distribution} {version} is not tested, {wanted} is: {command}"
    return None


def _release(version: str) -> tuple[int, ...]:
    """The three numbers of a version, without what follows them."""
    numbers = [int(n) for n in re.findall(r"\d+", re.split(r"[^\d.]", version)[0])]
    return tuple([*numbers, 0, 0, 0][:3])
