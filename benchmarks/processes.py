"""Run measurements in separate processes, in the environments of other packages."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import statetrack
from statetrack.errors import UserError
from statetrack.terminal import PlainConsole

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = {"fla": ROOT / ".venv-peers-fla", "hf": ROOT / ".venv-peers-hf"}
PEERS = {"fla": "flash-linear-attention", "hf": "transformers, mambapy and xlstm"}
# the second needs glibc
ALLOCATORS = ("plain", "tuned") if platform.libc_ver()[0] == "glibc" else ("plain",)


def missing_peers() -> list[str]:
    """Return the environments that `make peers` has not installed."""
    # the marker that `make peers` leaves when an environment is complete
    return [name for name, path in ENVIRONMENTS.items() if not (path / "installed").exists()]


def say_missing(missing: Sequence[str], console: PlainConsole) -> None:
    """Print which packages are left out without these environments."""
    if missing:
        names = " and ".join(PEERS[name] for name in missing)
        text = f"Without {names}: run `make peers` to install them in environments of their own."
        console.print(text)


def measured(
    module: str,
    jobs: Sequence[dict[str, Any]],
    label: Callable[[dict[str, Any]], str],
    console: PlainConsole,
) -> list[dict[str, Any]]:
    """Return the results of all jobs, which run one after the other, one process each."""
    results = []
    with console.status("measuring") as status:
        for number, job in enumerate(jobs, 1):
            line = f"{number}/{len(jobs)} {label(job)}"
            if not console.is_terminal:
                console.print(line)
            for message in child(module, job, label(job)):
                if "say" in message:
                    status.update(f"{line}: {message['say']}")
                else:
                    results.append(message["result"])
    return results


def child(module: str, job: dict[str, Any], what: str) -> Iterator[dict[str, Any]]:
    """Run a job by a worker `module` in the job's environment; yield what the worker writes."""
    # this very statetrack, with its native library, also where an older copy is installed
    paths = [str(ROOT), str(Path(statetrack.__file__).parents[1])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    env.pop("STATETRACK_TUNE_ALLOCATOR", None)  # the job says which allocator
    with tempfile.TemporaryFile("w+") as errors, subprocess.Popen(
        [str(python(job["environment"])), "-m", module, json.dumps(job)],
        cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=errors, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            for line in process.stdout:
                message = json.loads(line)
                if "error" in message:
                    raise UserError(f"{what} is not timed: {message['error']}")
                yield message
        except BaseException:
            process.kill()
            raise
        if process.wait():
            errors.seek(0)
            last = errors.read().strip().splitlines()[-1:] or ["it said nothing"]
            ended = f"ended with {process.returncode}: {last[0]}"
            raise UserError(f"the process that measures {what} {ended}")


def python(environment: str | None) -> Path:
    """Return the interpreter of an environment; this one for None."""
    if environment is None:
        return Path(sys.executable)
    return ENVIRONMENTS[environment] / "bin" / "python"


def machine() -> dict[str, Any]:
    """Describe the processor, as far as it is known."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        name = lines[0].split(":", 1)[1].strip() if lines else name
    return {"processor": name, "cores": os.cpu_count(), "platform": platform.platform()}
