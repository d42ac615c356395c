"""Kill training runs, resume them, and compare them with an undisturbed one, bit for bit.

    python -m benchmarks kills --count 200

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
from statetrack.terminal import check_json, write_result
from statetrack.training import Run

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
                os.truncate(args[0], os.path.getsize(args[0]) // 2)
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
    log = Run.log

    def watched_log(run: Run, row: dict[str, Any]) -> None:
        if visit("half-written line", run.metrics_file.name):
            with run.metrics_file.open("a") as file:
                file.write(json.dumps(row)[:30])
            die()
        log(run, row)

    Run.log = watched_log  # type: ignore[method-assign]


def die() -> None:
    """End this process as the system does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def record(folder: Path, told: Path) -> None:
    """Train a run in this process and write down all its moments."""
    seen: Counter[tuple[str, str]] = Counter()
    moments: list[Moment] = []

    def visit(kind: str, file: str) -> bool:
        seen[kind, file] += 1
        moments.append(Moment(kind, file, seen[kind, file]))
        return False

    watch(visit)
    go_on(folder)
    told.write_text(json.dumps(moments))


def until(moment: Moment, folder: Path) -> None:
    """Train or resume a run until a moment."""
    left = moment.nth

    def visit(kind: str, file: str) -> bool:
        nonlocal left
        left -= (kind, file) == moment[:2]
        return left == 0 and (kind, file) == moment[:2]

    watch(visit)
    go_on(folder)


def kill_at(moment: Moment, folder: Path) -> bool:
    """Train or resume until a moment; whether it came."""
    return end(start(lambda: until(moment, folder))) == -signal.SIGKILL


def kill_after(seconds: float, folder: Path) -> bool:
    """Train or resume for some time; whether that was too short to finish."""
    child = start(lambda: go_on(folder))
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return end(child) == -signal.SIGKILL


class Kills:
    """Runs that are killed and resumed, in a folder."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.folder = folder
        self.rng = random.Random(seed)
        self.undisturbed = folder / "undisturbed"
        prepare()
        began = time.perf_counter()
        told = folder / "moments.json"
        assert end(start(lambda: record(self.undisturbed, told))) == 0
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
            while not kill_after(seconds, folder):  # it was done before
                folder.rename(folder.with_name(f"{folder.name}-done-in-{seconds}"))
                seconds /= 2
        else:
            moment = self.moments[number // 2 % len(self.moments)]
            kind = moment.kind
            assert kill_at(moment, folder), moment
        if number % 4 == 3:
            again = self.rng.choice([moment for moment in self.moments if moment.nth == 1])
            if kill_at(again, folder):  # else the moment had passed, and the run is finished
                kind = AGAIN
        if end(start(lambda: go_on(folder))):
            return kind, "it could not be resumed"
        return kind, difference(folder, self.undisturbed)


def main(*, count: int = 200, seed: int = 0, json: str | None = None) -> None:
    """Kill, resume, compare and print.

    Args:
        count: how many runs are killed.
        seed: of the random times.
    """
    check_json(json)
    tried: Counter[str] = Counter()
    failed: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        kills = Kills(Path(folder), seed)
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
