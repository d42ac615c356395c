"""Files: written whole or not at all, by one process at a time, and read only if regular."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statetrack.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PREFIX = ".statetrack-"  # of files that are being written
LOCK = f"{PREFIX}lock"  # the file that a folder's writer has locked
FIGURES = (".png", ".svg", ".pdf")


class LockedError(UserError):
    """Another process is writing to the folder."""


def leftovers(folder: Path) -> list[Path]:
    """Return the files that a killed process left half-written in a folder."""
    return [file for file in folder.glob(f"{PREFIX}*") if file.name != LOCK]


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Lock a folder, which is made if need be, so that no other process writes to it.

    The operating system drops the lock when the process ends, however it ends. Readers need none.
    A folder that was made for the lock and is still empty at the end is removed.

    Raises:
        LockedError: another process holds the lock; the message names it.
    """
    from filelock import FileLock, Timeout  # slow to load, and most commands write to no folder

    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / LOCK
    lock = FileLock(file, timeout=0, fallback_to_soft=False)
    try:
        try:
            lock.acquire()
        except Timeout:
            holder = _holder(file)
            raise LockedError(f"{holder} is writing to {folder}; wait for its end") from None
        try:
            since = datetime.now().isoformat(" ", "seconds")
            own = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
            file.write_text(json.dumps(own))
            yield
        finally:  # unlinked while locked: whoever has opened it but not locked it tries anew
            file.unlink(missing_ok=True)
            lock.release()
    finally:
        for path in made:
            with suppress(OSError):  # it holds something
                path.rmdir()


def _holder(lock: Path) -> str:
    """The process that holds a lock: it writes its name a moment after it has locked the file.

    Until then the file may name an earlier one, which was killed.
    """
    for _ in range(20):
        time.sleep(0.05)
        told = writer(lock.parent)
        if told is not None:
            return told
    return "another process"


def writer(folder: Path) -> str | None:
    """Return the process that says that it writes to a folder; None if there is none.

    On another host it may have been killed since.
    """
    with suppress(OSError, ValueError, KeyError, TypeError):
        told = parse_json(regular(folder / LOCK).read_text())
        if told["host"] != socket.gethostname() or _is_alive(told["pid"]):
            return f"process {told['pid']} on {told['host']} (since {told['since']})"
    return None


def _is_alive(pid: int) -> bool:
    if os.name != "posix":  # where this would send a signal
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    return True


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write a whole file or nothing: to a temporary name beside it, synced, then renamed."""
    path = Path(path)
    if isinstance(data, str):
        data = data.encode()
    # not tempfile.mkstemp, whose files only their owner may read
    temporary = path.parent / f"{PREFIX}{secrets.token_hex(8)}"
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a full disk does not say for which file
        raise


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, readable for people, atomically."""
    write_atomic(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text; raise a ValueError if it is none."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its lists and objects are nested too deeply") from None


def read_json(path: Path) -> Any:
    """Read a JSON file, or raise a UserError that names it."""
    try:
        return parse_json(regular(Path(path)).read_text())
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: Exception, what: str = "") -> UserError:
    """Return the error that says why a file cannot be read, as `what` it should hold."""
    if isinstance(error, FileNotFoundError):
        return UserError(f"{path} does not exist")
    reason = (isinstance(error, OSError) and error.strerror) or error
    return UserError(f"cannot read {path}{what}: {reason}")


def regular(path: Path) -> Path:
    """Raise an OSError unless a path leads to a regular file: reading a pipe or device may hang."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path


def check_output(path: Path, what: str = "") -> None:
    """Raise a UserError if a file cannot be written."""
    folder = path.absolute().parent
    special = path.exists() and not path.is_file()  # a folder, a device
    if special or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UserError(f"cannot write {what}to {path}: it must be a file in a writable folder")


def check_figure(path: Path) -> None:
    """Raise a UserError if a figure cannot be written, or its ending is not supported."""
    if path.suffix not in FIGURES:
        allowed = ", ".join(FIGURES)
        raise UserError(f"the ending of a figure's file must be one of {allowed}; got {path.name}")
    check_output(path, "a figure ")


def save_figure(path: Path, figure: Figure) -> None:
    """Write a figure in the format of the file's ending."""
    check_figure(path)
    data = io.BytesIO()
    figure.savefig(data, format=path.suffix[1:], dpi=150)
    write_atomic(path, data.getvalue())


def check_new(path: Path) -> None:
    """Raise a UserError if a folder is not empty or cannot be made."""
    if path.exists() and not (path.is_dir() and _holds_nothing(path)):
        raise UserError(f"{path} exists and is not empty; choose another folder")
    check_folder(path)


def check_folder(path: Path) -> None:
    """Raise a UserError if a folder cannot be made, or not be written to."""
    above = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise UserError(f"cannot make {path}: {above} is not a folder that can be written to")


def _holds_nothing(folder: Path) -> bool:
    return all(file.name.startswith(PREFIX) for file in folder.iterdir())


def new_folder(path: Path) -> Path:
    """Make a folder; raise a UserError if it exists and is not empty."""
    path = Path(path)
    check_new(path)
    path.mkdir(parents=True, exist_ok=path.exists())  # of two that make it, one fails
    return path


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Make a folder as `new_folder` does, but remove it again if filling it fails."""
    path = Path(path)
    check_new(path)
    fresh = not path.exists()
    with sole_writer(path):
        check_new(path)  # another process may have filled it before the lock was ours
        try:
            yield path
        except BaseException:
            if fresh:
                shutil.rmtree(path)
            raise


def free_folder(parent: Path, stem: str) -> Path:
    """Return the first of stem-1, stem-2, ... under `parent` that does not exist yet."""
    number = 1
    while (parent / f"{stem}-{number}").exists():
        number += 1
    return parent / f"{stem}-{number}"


def plain_name(text: str) -> str:
    """Replace the characters of a text that do not belong into a file's name."""
    return re.sub(r"[^\w.+-]+", "_", text).strip("_.")[:100] or "unnamed"
