"""Writing files so that a crash, a full disk or a second process never leaves half of one."""

from __future__ import annotations

import io
import json
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statetrack.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PREFIX = ".statetrack-"  # of files that are being written
FIGURES = (".png", ".svg", ".pdf")


def leftovers(folder: Path) -> list[Path]:
    """What a killed process left half-written in a folder."""
    return list(folder.glob(f"{PREFIX}*"))


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write a whole file or nothing: to a temporary name beside it, synced, then renamed."""
    path = Path(path)
    if isinstance(data, str):
        data = data.encode()
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=PREFIX)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException as error:
        os.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a full disk does not say for which file
        raise


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, readable for people, atomically."""
    write_atomic(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def parse_json(text: str | bytes) -> Any:
    """The value that a JSON text stands for; whatever is wrong with it is a ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its lists and objects are nested too deeply") from None


def read_json(path: Path) -> Any:
    """Read a JSON file, or raise a UserError that names it."""
    try:
        return parse_json(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from None


def check_figure(path: Path) -> None:
    """Refuse a figure that could not be written, before any work is done."""
    if path.suffix not in FIGURES:
        allowed = ", ".join(FIGURES)
        raise UserError(f"the ending of a figure's file must be one of {allowed}; got {path.name}")
    if not path.absolute().parent.is_dir():
        raise UserError(f"cannot write {path}: its folder does not exist")


def save_figure(path: Path, figure: Figure) -> None:
    """Write a figure in the format that the file's ending says."""
    check_figure(path)
    data = io.BytesIO()
    figure.savefig(data, format=path.suffix[1:], dpi=150)
    write_atomic(path, data.getvalue())


def check_new(path: Path) -> None:
    """Refuse a folder that holds something already, before any work is done."""
    if path.exists() and (not path.is_dir() or set(path.iterdir()) - set(leftovers(path))):
        raise UserError(f"{path} exists and is not empty; choose another folder")


def new_folder(path: Path) -> Path:
    """Make a folder that must not hold anything yet."""
    path = Path(path)
    check_new(path)
    path.mkdir(parents=True, exist_ok=True)
    return path


def free_folder(parent: Path, stem: str) -> Path:
    """The first of stem-1, stem-2, ... under `parent` that does not exist yet."""
    number = 1
    while (parent / f"{stem}-{number}").exists():
        number += 1
    return parent / f"{stem}-{number}"


def plain_name(text: str) -> str:
    """A text as part of a file's name: a task's may hold slashes and stars."""
    return re.sub(r"[^\w.+-]", "_", text)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
