"""Kill training runs, resume them, and compare them with an undisturbed one, bit for bit.

    python -m benchmarks kills --count 200
    python -m benchmarks kills --count 20 --pretraining

The signal is SIGKILL, which nothing can catch. Half of the runs are killed at a chosen moment: in
a half-written file or line, before or after a file is renamed or removed. The others are killed at
a random time, and every second of these once more, at a moment after it is resumed, if that is
still to come.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.reliability.processes import (
    difference,
    end,
    go_on,
    markdown,
    prepare,
    report,
    start,
)
from statetrack.lm.extra import require_lm
from statetrack.terminal import check_json, write_result
from statetrack.training import Run
from statetrack.training.run_folder import RunFolder

Train = Callable[[Path], None]  # starts the run of a folder, or resumes the one that is there

RANDOM = "random time"
AGAIN = "twice: the second time while it is resumed"


class Moment(NamedTuple):
    """A point in the life of a run: what happens to which file, for the n-th time."""

    kind: str
    file: str
    nth: int


def watch(visit: Callable[[str, str], bool]) -> None:
    """Call visit(kind, file) at every moment of this process; it is killed where that is true."""

    def wrap(operation: str, name: str) -> None:
        act = getattr(os, operation)

        def watched(*args: Any, **options: Any) -> Any:
            file = Path(args[-1]).name
            if operation == "replace" and visit("half-written file", file):
                halve(Path(args[0]))
                die()
            if visit(f"before {name}", file):
                die()
            result = act(*args, **options)
            if visit(f"after {name}", file):
                die()
            return result

        setattr(os, operation, watched)

    wrap("replace", "rename")
    wrap("unlink", "unlink")
    log = RunFolder.log

    def watched_log(run: RunFolder, row: dict[str, Any]) -> None:
        if visit("half-written line", run.metrics_file.name):
            with run.metrics_file.open("a") as file:
                file.write(json.dumps(row)[:30])
            die()
        log(run, row)

    RunFolder.log = watched_log  # type: ignore[method-assign]


def halve(path: Path) -> None:
    """Cut a file, or all files of a folder, to half its size."""
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        os.truncate(file, file.stat().st_size // 2)


def die() -> None:
    """End this process as the system does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def record(folder: Path, told: Path, train: Train) -> None:
    """Train a run in this process and write down all its moments."""
    seen: Counter[tuple[str, str]] = Counter()
    moments: list[Moment] = []

    def visit(kind: str, file: str) -> bool:
        seen[kind, file] += 1
        moments.append(Moment(kind, file, seen[kind, file]))
        return False

    watch(visit)
    train(folder)
    told.write_text(json.dumps(moments))


def until(moment: Moment, folder: Path, train: Train) -> None:
    """Train or resume a run until a moment."""
    left = moment.nth

    def visit(kind: str, file: str) -> bool:
        nonlocal left
        left -= (kind, file) == moment[:2]
        return left == 0 and (kind, file) == moment[:2]

    watch(visit)
    train(folder)


def kill_at(moment: Moment, folder: Path, train: Train = go_on) -> bool:
    """Train or resume until a moment; whether it came."""
    return end(start(lambda: until(moment, folder, train))) == -signal.SIGKILL


def kill_after(seconds: float, folder: Path, train: Train) -> bool:
    """Train or resume for some time; whether that was too short to finish."""
    child = start(lambda: train(folder))
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return end(child) == -signal.SIGKILL


class Kills:
    """Runs that are killed and resumed, in a folder."""

    def __init__(
        self,
        folder: Path,
        seed: int = 0,
        train: Train = go_on,
        open_run: Callable[[Path], RunFolder] = Run.open,
    ) -> None:
        self.folder, self.train, self.open_run = folder, train, open_run
        self.rng = random.Random(seed)
        self.undisturbed = folder / "undisturbed"
        prepare()
        began = time.perf_counter()
        told = folder / "moments.json"
        assert end(start(lambda: record(self.undisturbed, told, train))) == 0
        self.seconds = time.perf_counter() - began
        found = [Moment(*moment) for moment in json.loads(told.read_text())]
        # the first of each kind, the second of each kind, ...
        self.rng.shuffle(found)
        seen: Counter[str] = Counter()
        place = {}
        for moment in found:
            place[moment] = seen[moment.kind]
            seen[moment.kind] += 1
        self.moments = sorted(found, key=place.__getitem__)

    def survive(self, number: int) -> tuple[str, str | None]:
        """Kill run number so and so, and resume it; how it was killed and what differs then."""
        folder = self.folder / f"run-{number}"
        if number % 2:
            kind = RANDOM
            seconds = self.rng.uniform(0, self.seconds)
            while not kill_after(seconds, folder, self.train):  # it was done before
                folder.rename(folder.with_name(f"{folder.name}-done-in-{seconds}"))
                seconds /= 2
        else:
            moment = self.moments[number // 2 % len(self.moments)]
            kind = moment.kind
            assert kill_at(moment, folder, self.train), moment
        if number % 4 == 3:
            again = self.rng.choice([moment for moment in self.moments if moment.nth == 1])
            if kill_at(
                again, folder, self.train
            ):  # else the moment had passed, and the run is finished
                kind = AGAIN
        if end(start(lambda: self.train(folder))):
            return kind, "it could not be resumed"
        return kind, difference(folder, self.undisturbed, self.open_run)


def main(
    *, count: int = 200, seed: int = 0, pretraining: bool = False, json: str | None = None
) -> None:
    """Kill, resume, compare and print.

    Args:
        count: how many runs are killed.
        seed: of the random times.
        pretraining: kill runs of `lm train`; needs the extra lm.
    """
    check_json(json)
    tried: Counter[str] = Counter()
    failed: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        subject: tuple[Any, ...] = ()
        if pretraining:
            require_lm()
            from benchmarks.reliability import pretraining as language

            language.write_data(Path(folder) / "data")
            subject = language.go_on, language.PretrainingRun.open
        kills = Kills(Path(folder), seed, *subject)
        for number in range(count):
            kind, problem = kills.survive(number)
            tried[kind] += 1
            if problem:
                failed.append({"run": number, "kind": kind, "problem": problem})
                print(f"run {number}, {kind}: {problem}", file=sys.stderr)
    bad = Counter(failure["kind"] for failure in failed)
    body = [[kind, n, n - bad[kind]] for kind, n in tried.items()]
    body.append(["**all**", count, count - len(failed)])
    report(markdown(["killed", "runs", "resumed bit for bit"], body), json)
    result = {"count": count, "resumed": count - len(failed), "tried": tried, "failed": failed}
    write_result(json, result)
    sys.exit(1 if failed else 0)
