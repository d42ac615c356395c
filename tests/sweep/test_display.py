"""What is shown while jobs run."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest

from statetrack.recipes.demo import plan
from statetrack.sweep.display import Display, SweepDisplay
from statetrack.sweep.engine import SweepEvent
from statetrack.sweep.pool import Event
from statetrack.terminal import PlainConsole
from statetrack.training import Progress
from tests.sweep.small import small_job

TITLES = ["parity Mamba [0,1], seed 0", "parity Mamba [-1,1], seed 0"]


def progress(step: int) -> Progress:
    return Progress(step, 8, loss=0.5, accuracy=0.75, seconds=float(step), seconds_left=8.0 - step)


EVENTS = [
    Event(0, "start", None),
    *(Event(0, "progress", progress(step)) for step in range(1, 9)),
    Event(0, "done", {"score": 0.875}),
]


def shown(*, terminal: bool) -> str:
    out = StringIO()
    with Display(TITLES, PlainConsole(file=out, width=120, force_terminal=terminal)) as display:
        for event in EVENTS:
            display.show(event)
    return out.getvalue()


def test_without_a_terminal_a_line_for_every_quarter_and_the_score() -> None:
    lines = shown(terminal=False).splitlines()
    assert all(TITLES[0] in line for line in lines)
    assert lines[0].endswith("training")
    steps = [line.partition("step ")[2].partition(",")[0] for line in lines[1:-1]]
    assert steps == ["2/8", "4/8", "6/8", "8/8"]
    assert "loss 0.5000, accuracy 0.750, 6 s left" in lines[1]
    assert lines[-1].endswith("score 0.875")


def test_in_a_terminal_a_table_of_all_jobs() -> None:
    text = shown(terminal=True)
    for part in (*TITLES, "waiting", "measuring", "score 0.875", "3/8", "0.5000", "1 of 2 done"):
        assert part in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor comes back


def test_a_standard_terminal_holds_it_all() -> None:
    """80 columns and 24 lines: every model of the demo on a line of its own."""
    titles = [
        f"{job.experiment} {job.title} s{job.config.training.seed}" for job in plan(9, Path())
    ]
    out = StringIO()
    console = PlainConsole(file=out, width=80, height=24, force_terminal=False)
    display = Display(titles, console)
    for job in range(len(titles)):
        display.latest[job] = Progress(100, 400, 0.5, 0.75, 10.0, 100.0)
        display.status[job] = "score -0.123"
    console.print(display._table())
    lines = out.getvalue().rstrip().splitlines()
    assert len(lines) <= 23
    for title in titles:
        assert any(title in line and "0.7500" not in line and "100 s" in line for line in lines)


def test_the_terminal_is_restored_after_an_error() -> None:
    out = StringIO()
    bad = Event(0, "done", None)  # which has no score
    with (
        pytest.raises(TypeError),
        Display(TITLES, PlainConsole(file=out, width=120, force_terminal=True)) as display,
    ):
        display.show(bad)
    assert out.getvalue().count("\x1b[?25l") == out.getvalue().count("\x1b[?25h") == 1


def result(**facts: object) -> dict[str, object]:
    evaluations = {"40-256": {"score": 0.98765}}
    plain = {"status": "done", "error": None, "harden": None, "stopped": None, "cpu_seconds": 120.0}
    return {**plain, "trained": {"evaluations": evaluations}, "hardened": None, **facts}


def sweep_text(*, terminal: bool) -> str:
    jobs = [small_job(name, seed=i) for i, name in enumerate(("one", "two", "three", "four"))]
    one, two, three, four = jobs
    out = StringIO()
    console = PlainConsole(file=out, width=120, height=24, force_terminal=terminal)
    with SweepDisplay(console, workers=2) as display:
        for job in jobs:
            display(SweepEvent("listed", job))
        display(SweepEvent("done", four, result()))  # before this sweep began
        display(SweepEvent("start", one))
        display(SweepEvent("progress", one, progress(3)))
        display(SweepEvent("start", two))
        display(SweepEvent("busy", two))
        display(SweepEvent("died", one, None, "exit code -9"))
        harden = {"harden": {"changed": False}, "stopped": "score"}
        display(SweepEvent("done", one, result(**harden)))
        display(SweepEvent("start", three))
        display(SweepEvent("failed", three, result(status="failed", error="trace\nnot finite")))
        # expected were 60 s each; two jobs took 120 s, and one is left for 2 workers
        assert display.seconds_left() == 60
    return out.getvalue()


def test_of_a_sweep_a_line_for_every_end() -> None:
    lines = [line.partition("] ")[2] for line in sweep_text(terminal=False).splitlines()]
    assert lines == [
        "two: another process does it",
        "one: exit code -9; it is tried again",
        "one: 0.988 at 40-256, not hardened, stopped: score",
        "three: failed: not finite",
    ]


def test_of_a_sweep_a_live_table() -> None:
    text = sweep_text(terminal=True)
    for part in ("3/8", "0.5000", "starting", "1/4] done", "about 60 s left", "failed: not finite"):
        assert part in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor comes back
