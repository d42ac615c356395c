"""Run folders under attack: two writers, a full disk, no permission, links, killed workers.

    python -m benchmarks folders --tries 20

After each attack the runs are resumed and compared with an undisturbed one, bit for bit.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.reliability.kills import Moment, kill_at
from benchmarks.reliability.processes import (
    CONFIG,
    difference,
    end,
    go_on,
    markdown,
    prepare,
    report,
    snapshot,
    start,
)
from statetrack.compiler import compile, load
from statetrack.errors import UserError
from statetrack.sweep.pool import Report, run_all
from statetrack.terminal import check_json, write_result
from statetrack.training import Progress, Run, train

NOBODY = 65534  # a user without permissions
FILES = 8  # that a run writes: config.json, metrics.jsonl and two for each of its 3 checkpoints


class Outcome(NamedTuple):
    """The outcome of one attack: what was lost, doubled or wrong; None if nothing was."""

    lost: str | None = None
    doubled: str | None = None
    wrong: str | None = None


def compared(folder: Path, undisturbed: Path) -> Outcome:
    """The exit code and output of a run."""
    if not (folder / "config.json").exists():
        return Outcome(lost=f"there is no run in {folder.name}")
    steps = [(row["step"], row["kind"]) for row in Run.open(folder).metrics()]
    if len(set(steps)) < len(steps):
        return Outcome(doubled=f"rows of metrics: {steps}")
    return Outcome(lost=difference(folder, undisturbed))


def full_disk_after(files: int) -> Callable[[int], None]:
    """A stand-in for os.fsync on a disk that is full after so many files."""
    sync, left = os.fsync, files

    def limited(handle: int) -> None:
        nonlocal left
        if left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left -= 1
        sync(handle)

    return limited


# -- the attacks ----------------------------------------------------------------------------------


class Attacks:
    """Attacks on run folders, all in one folder; each yields its outcomes."""

    def __init__(self, folder: Path, tries: int, seed: int = 0) -> None:
        self.folder, self.tries, self.rng = folder, tries, random.Random(seed)
        self.undisturbed = folder / "undisturbed"
        self.unfinished = folder / "unfinished"
        prepare()
        assert end(start(lambda: go_on(self.undisturbed))) == 0
        assert kill_at(Moment("half-written line", "metrics.jsonl", 8), self.unfinished)

    def new(self, name: str, *, unfinished: bool) -> Path:
        """A folder for an attack, with a run that was killed in it or not there yet."""
        folder = self.folder / name
        if unfinished:
            shutil.copytree(self.unfinished, folder)
        return folder

    def two_writers(self) -> Iterator[Outcome]:
        """Two processes start or resume one run: one goes on, the other is told of it."""
        for number in range(self.tries):
            folder = self.new(f"two-writers-{number}", unfinished=number % 2 == 0)
            work = partial(train, CONFIG, folder, resume=folder.exists(), on_progress=pause)
            codes, told = self._at_once(work)
            outcome = compared(folder, self.undisturbed)
            if sorted(codes.values()) != [0, 2]:
                outcome = outcome._replace(wrong=f"exit codes {list(codes.values())}, not 0 and 2")
            else:
                (first,) = (pid for pid, code in codes.items() if code == 0)
                if f"process {first} on " not in told and "is not empty" not in told:
                    outcome = outcome._replace(wrong=f"process {first} is not named: {told}")
            yield outcome

    def two_compilers(self) -> Iterator[Outcome]:
        """Two processes write a compiled network to one folder: it is that of one of them."""
        net = compile("(aa)*")
        for number in range(self.tries):
            folder = self.folder / f"two-compilers-{number}"
            codes, _ = self._at_once(partial(net.save, folder))
            load(folder)
            right = sorted(codes.values()) == [0, 2]
            yield Outcome(wrong=None if right else f"exit codes {list(codes.values())}")

    def _at_once(self, work: Callable[[], Any]) -> tuple[dict[int, int], str]:
        """Do work in two processes at the same time; their exit codes and what they say."""
        said = self.folder / "said.txt"
        said.write_text("")
        ready = time.time() + 0.1

        def wait_and_work() -> None:
            with said.open("a") as file:
                os.dup2(file.fileno(), sys.stderr.fileno())
            time.sleep(max(0.0, ready - time.time()))
            work()

        children = [start(wait_and_work) for _ in range(2)]
        return {child: end(child) for child in children}, said.read_text()

    def full_disk(self) -> Iterator[Outcome]:
        """The disk is full after so many files: exit code 2, and the run can be resumed."""
        for files in range(FILES):
            folder = self.new(f"full-disk-{files}", unfinished=False)
            if (code := end(start(partial(_on_a_full_disk, files, folder)))) != 2:
                yield Outcome(wrong=f"exit code {code} on a full disk")
            end(start(partial(go_on, folder)))
            yield compared(folder, self.undisturbed)

    def read_only(self) -> Iterator[Outcome]:
        """A folder without write permission can be evaluated, not resumed, and stays as it is."""
        with tempfile.TemporaryDirectory() as top:
            Path(top).chmod(0o755)
            folder = Path(top) / "run"
            shutil.copytree(self.unfinished, folder)
            before = snapshot(folder)
            for path in (folder, *folder.rglob("*")):
                path.chmod(0o555 if path.is_dir() else 0o444)
            work = [Run.open(folder).model, partial(go_on, folder)]
            codes = [end(start(partial(_without_permissions, act))) for act in work]
            yield Outcome(wrong=None if codes == [0, 2] else f"exit codes {codes}, not 0 and 2")
            yield Outcome(lost=None if snapshot(folder) == before else "a file has changed")
            for path in (folder, *folder.rglob("*")):
                path.chmod(0o755 if path.is_dir() else 0o644)
            go_on(folder)
            yield compared(folder, self.undisturbed)

    def symlinks(self) -> Iterator[Outcome]:
        """Nothing behind a link is removed or written to; a linked run folder is the run."""
        elsewhere = self.new("elsewhere", unfinished=True)
        before = snapshot(elsewhere)
        for name in ("checkpoints", "metrics.jsonl", "checkpoints/step-00000005.safetensors"):
            folder = self.new(f"links-{name.replace('/', '-')}", unfinished=True)
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            path.symlink_to(elsewhere / name)
            try:
                go_on(folder)
                outcome = compared(folder, self.undisturbed)
            except UserError as error:
                right = name == "checkpoints" and "is a symbolic link" in str(error)
                outcome = Outcome(wrong=None if right else str(error))
            changed = snapshot(elsewhere) != before
            yield Outcome(lost=f"files behind {name}") if changed else outcome
        folder = self.new("linked", unfinished=True)
        (self.folder / "link").symlink_to(folder)
        go_on(self.folder / "link")
        yield compared(folder, self.undisturbed)

    def killed_workers(self) -> Iterator[Outcome]:
        """A worker of the pool is killed: that is reported, and every run can be resumed."""
        for number in range(max(1, self.tries // 5)):
            folders = [self.folder / f"worker-{number}-{i}" for i in range(3)]
            left = self.rng.randrange(1, 24)
            reported = False
            try:
                for event in run_all(train_slowly, folders, workers=2):
                    left -= event.kind == "progress"
                    if left == 0 and event.kind == "progress":
                        os.kill(event.value, signal.SIGKILL)
            except UserError as error:
                reported = "exit code -9" in str(error)
            yield Outcome(wrong=None if reported else "a killed worker was not reported")
            for folder in folders:
                go_on(folder)
                yield compared(folder, self.undisturbed)


def _on_a_full_disk(files: int, folder: Path) -> None:
    """Start a run on a disk that is full after so many files."""
    os.fsync = full_disk_after(files)
    _be_quiet()
    go_on(folder)


def _without_permissions(work: Callable[[], Any]) -> None:
    """Work as a user who may write nowhere."""
    if os.geteuid() == 0:
        os.seteuid(NOBODY)
    _be_quiet()
    work()


def _be_quiet() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def pause(_: Progress) -> None:
    """Make a run last long enough for another process to come."""
    time.sleep(0.05)


def train_slowly(folder: Path, report: Report) -> None:
    """A job of the pool; reports its process at every step."""

    def show(progress: Progress) -> None:
        pause(progress)
        report(os.getpid())

    train(CONFIG, folder, on_progress=show)


def main(*, tries: int = 20, seed: int = 0, json: str | None = None) -> None:
    """Attack, resume, compare and print.

    Args:
        tries: how often two writers meet; a fifth of it is how many pools lose a worker.
        seed: of the moments at which workers are killed.
    """
    check_json(json)
    body: list[list[object]] = []
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        attacks = Attacks(Path(folder), tries, seed)
        for attack in (
            attacks.two_writers,
            attacks.two_compilers,
            attacks.full_disk,
            attacks.read_only,
            attacks.symlinks,
            attacks.killed_workers,
        ):
            counts: Counter[str] = Counter()
            for outcome in attack():
                counts["checked"] += 1
                for kind, problem in outcome._asdict().items():
                    if problem:
                        counts[kind] += 1
                        print(f"{attack.__name__}: {kind}: {problem}", file=sys.stderr)
            columns = ["checked", *Outcome._fields]
            body.append([attack.__name__.replace("_", " "), *(counts[name] for name in columns)])
            total += counts
    body.append(["**all**", *(total[name] for name in columns)])
    report(markdown(["attack", *columns], body), json)
    write_result(json, [dict(zip(["attack", *columns], row, strict=True)) for row in body])
    sys.exit(1 if any(total[name] for name in Outcome._fields) else 0)
