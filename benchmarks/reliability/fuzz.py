"""`make fuzz`: bad inputs of every kind; none may end in a traceback, hang or harm a file.

Cases run in processes that are forked from one that has loaded everything, each in a folder of
copies. It passes if the command ends with an exit code of its own, or the call returns or
raises a UserError; without a hang; and with every file unchanged that it was not told to write.

A hang is 20 seconds of CPU time of the process, its threads together, or 300 seconds of wall time:
so the verdict on what computes does not depend on what else the machine does. What waits without
computing for less than 300 seconds is not found.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import pkgutil
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import torch
from hypothesis.strategies import SearchStrategy

import statetrack
from benchmarks.reliability.bad_inputs import KINDS, ODD_JSON, Case
from benchmarks.reliability.calls import CALLS, ODD
from statetrack import cli
from statetrack.errors import UserError
from statetrack.kernels import gpu
from statetrack.lm.extra import unusable_packages

SECONDS = 20  # of CPU time
WAITING = 300  # seconds of wall time: many, since other processes slow this one down
BATCH = 25  # cases per process, one after the other
MEMORY = 6 << 30  # bytes of address space
TARGETS = ("--out", "--json", "--figure", "--resume")  # flags that name what may be written
SMALL = ["--hidden-size=8", "--num-layers=1", "--mlp=none", "--steps=2", "--batch-size=4"]
TEMPLATE = [
    ["train", *SMALL, "--allow-neg-eigval", "--conv-size=0", "--out=run"],
    ["train", *SMALL, "--allow-neg-eigval", "--mixer=mamba", "--task=S3", "--out=mamba"],
    ["compile", "(ab)*", "--out=ab"],
    ["compile", "S3", "--target=gated_deltaproduct", "--out=s3"],
    *(["tasks", "export", "S3", "--n=3", "--max-length=50", f"--out=data.{kind}"]
      for kind in ("jsonl", "csv", "parquet")),
]  # fmt: skip


class Verdict(NamedTuple):
    """The verdict on a case."""

    problem: str  # "", "traceback", "hang" or "harm"
    detail: str = ""


def make_template(folder: Path) -> None:
    """The files that cases work on."""
    folder.mkdir()
    os.chdir(folder)
    for args in TEMPLATE:
        if cli.main(args):
            raise RuntimeError(f"statetrack {args} failed")
    shutil.copytree("run", "odd [/] run")
    shutil.copy("run/config.json", "config.json")
    Path("dfa.json").write_text(
        json.dumps(
            {"alphabet": ["a", "b"], "start": "x", "accepting": ["x"],
             "transitions": {"x": {"a": "y", "b": "x"}, "y": {"a": "x", "b": "y"}}}
        )
    )  # fmt: skip
    Path("group.json").write_text('{"generators": ["(1 2)", "(1 2 3)"]}')
    Path("notes.txt").write_text("years of work\n")
    Path("empty").mkdir()
    Path("out").mkdir()


# -- one case ------------------------------------------------------------------------------------


def harm(path: Path, damage: tuple[Any, ...]) -> None:
    """Damage a file as a case says."""
    kind, *how = damage
    if kind in ("folder", "missing"):
        if path.is_dir():
            path.rmdir()
        path.unlink(missing_ok=True)
        if kind == "folder":
            path.mkdir()
        return
    if not path.is_file():
        return
    data = bytearray(path.read_bytes())
    if kind == "bytes":
        data = bytearray(how[0])
    elif kind == "cut":
        del data[how[0] % (len(data) + 1) :]
    elif kind == "insert":
        at = how[0] % (len(data) + 1)
        data[at:at] = how[1]
    elif kind == "flip" and data:
        data[how[0] % len(data)] ^= 1 << how[1]
    elif kind in ("json", "drop", "add"):
        data = bytearray(_changed_json(bytes(data), kind, *how))
    path.write_bytes(data)


def _changed_json(data: bytes, kind: str, at: int, what: Any = None) -> bytes:
    """JSON, or the first line of it, with the value number `at` replaced, dropped or joined."""
    line, end, rest = data.partition(b"\n") if b'"step"' in data[:200] else (data, b"", b"")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):  # no JSON, or none any more
        return data
    places = list(_places(value)) if isinstance(value, dict | list) else []
    if not places:
        return data
    parent, key = places[at % len(places)]
    if kind == "drop":
        del parent[key]
    elif kind == "add" and isinstance(parent, dict):
        parent[what] = parent[key]
    else:
        parent[key] = ODD_JSON[what] if isinstance(what, int) else what
    text = json.dumps(value).replace('"deep"', "[" * 5000 + "]" * 5000)
    return text.encode() + end + rest


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def attempt(case: Case) -> Verdict:
    """Run a case in the current folder."""
    try:
        if case.kind == "call":
            function, given = CALLS[case.call].make()
            with suppress(UserError):
                function(**{**given, **{name: ODD[value]() for name, value in case.wrong}})
        else:
            code = cli.main(list(case.args))
            if code not in (0, 1, 2):
                return Verdict("traceback", f"exit code {code}")
    except SystemExit as end:  # of the parser
        if end.code not in (0, 2):
            return Verdict("traceback", f"exit code {end.code}")
    except BaseException:
        return Verdict("traceback", traceback.format_exc())
    return Verdict("")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def harmed(case: Case, before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    """The files that are not as they were, without those that a case was told to write."""
    words = [word for arg in case.args for word in arg.split("=", 1)]
    told = [b for a, b in itertools.pairwise(words) if a in TARGETS]
    told = ["out", *(os.path.normpath(path) for path in told if path)]
    changed = [name for name, data in before.items() if after.get(name) != data]
    return [n for n in changed if not any(n == t or n.startswith(f"{t}/") for t in told)]


def try_one(case: Case, folder: Path, template: Path) -> Verdict:
    """Run a case in a new folder, within the limits."""
    shutil.copytree(template, folder)
    os.chdir(folder)
    for damage in case.damage:
        harm(Path(case.file), damage)
    before = contents(folder)
    # whichever runs out first ends this process
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.alarm(WAITING)
    verdict = attempt(case)
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.alarm(0)
    lost = harmed(case, before, contents(folder))
    if not verdict.problem and lost:
        verdict = Verdict("harm", ", ".join(lost))
    os.chdir(template)
    shutil.rmtree(folder)
    return verdict


def child(batch: list[tuple[int, Case]], scratch: Path, log: Path) -> None:
    """Run cases in a forked process, logging a line for each; never returns."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    quiet = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(quiet, number)
    with log.open("a") as file:
        for number, case in batch:
            try:
                verdict = try_one(case, scratch / str(number), scratch / "template")
            except BaseException:
                verdict = Verdict("traceback", f"of the harness: {traceback.format_exc()}")
            file.write(json.dumps(verdict) + "\n")
            file.flush()
    os._exit(0)


def preload() -> None:
    """Import what commands import on first use, once for all processes."""
    without = ("statetrack.lm.",) if unusable_packages() else ()
    for module in pkgutil.walk_packages(statetrack.__path__, "statetrack."):
        left_out = module.name.endswith(("__main__", "_native")) or module.name.startswith(without)
        needs_triton = ".ops." in module.name and module.name.rpartition(".")[2].startswith("gpu")
        if not left_out and not (needs_triton and gpu.missing("triton")):
            importlib.import_module(module.name)
    for name in (
        "torch._dynamo",
        "automata.fa.nfa",
        "matplotlib.backends.backend_agg",
        "pyarrow.parquet",
    ):
        importlib.import_module(name)


# -- all of them ---------------------------------------------------------------------------------


def generate(count: int, seed: int) -> list[Case]:
    """Draw distinct cases of every kind; the same seed gives the same cases."""
    found: dict[Case, None] = {}
    for share, strategy in KINDS.values():
        some = list(dict.fromkeys(_examples(strategy, round(1.2 * share * count), seed)))
        found |= dict.fromkeys(some[: round(share * count)])
    chosen = list(found)
    random.Random(seed).shuffle(chosen)  # so that slow ones do not come together
    return chosen


def _examples(strategy: SearchStrategy[Case], count: int, seed: int) -> list[Case]:
    found: list[Case] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategy)
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return found


def run(chosen: dict[int, Case], workers: int, scratch: Path) -> Iterator[tuple[int, Verdict]]:
    """Run cases side by side; yields the number and the verdict of each."""
    if os.fork() == 0:  # torch stays unused in this process, so that it can be forked
        code = 1
        try:
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
            make_template(scratch / "template")
            code = 0
        finally:
            os._exit(code)
    if os.wait()[1]:
        raise RuntimeError("the files that cases work on could not be made")
    items = list(chosen.items())
    waiting = [items[at : at + BATCH] for at in range(0, len(items), BATCH)]
    running: dict[int, list[tuple[int, Case]]] = {}
    while waiting or running:
        while waiting and len(running) < workers:
            batch = waiting.pop(0)
            log = scratch / f"{batch[0][0]}.log"
            process = os.fork()
            if process == 0:
                child(batch, scratch, log)
            running[process] = batch
        process, status = os.wait()
        batch = running.pop(process)
        log = scratch / f"{batch[0][0]}.log"
        verdicts = [Verdict(*json.loads(line)) for line in log.read_text().splitlines()]
        if len(verdicts) < len(batch):
            verdicts.append(_death(status))
        if batch[len(verdicts) :]:
            waiting.insert(0, batch[len(verdicts) :])
        yield from zip([number for number, _ in batch], verdicts, strict=False)


def _death(status: int) -> Verdict:
    """The verdict on a case that ended its process."""
    name = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit {status}"
    limits = {"SIGPROF": f"{SECONDS} s of CPU time", "SIGALRM": f"{WAITING} s of wall time"}
    if name in limits:
        return Verdict("hang", limits[name])
    return Verdict("traceback", f"the process ended by {name}")


def main(
    *,
    cases: int = 10_000,
    seed: int = 0,
    only: tuple[int, ...] = (),
    workers: int = 2,
    json: Path | None = None,
) -> int:
    """Try bad inputs and say which of them the package does not withstand.

    Args:
        cases: how many.
        seed: of their generation.
        only: run just the cases of these numbers, with their tracebacks.
        workers: processes side by side.
        json: a file for the counts and the failures.
    """
    from statetrack.files import write_json

    torch.set_num_threads(1)
    preload()
    os.environ["COLUMNS"] = "200"
    chosen = dict(enumerate(generate(cases, seed)))
    chosen = {n: chosen[n] for n in only} if only else chosen
    counts: Counter[str] = Counter()
    failures = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        for done, (number, verdict) in enumerate(run(chosen, workers, Path(scratch)), 1):
            counts[verdict.problem] += 1
            if verdict.problem:
                told = {"number": number, "case": str(chosen[number]), **verdict._asdict()}
                failures.append(told)
                last = verdict.detail.strip().rpartition("\n")[2]
                again = f"--cases {cases} --seed {seed} --only {number}"
                print(f"{verdict.problem}: {told['case']}\n  {last}\n  again: {again}", flush=True)
                if only:
                    print(verdict.detail)
            if done % max(1, len(chosen) // 20) == 0:
                print(f"{done:,} of {len(chosen):,}, {time.monotonic() - began:.0f} s", flush=True)
    summary = {
        "cases": len(chosen),
        "seed": seed,
        **{f"{name}s": counts[name] for name in ("traceback", "hang")},
        "files harmed": counts["harm"],
    }
    print(", ".join(f"{value:,} {name}" for name, value in summary.items() if name != "seed"))
    if json is not None:
        write_json(json, {**summary, "failures": failures})
    return min(1, len(failures))
