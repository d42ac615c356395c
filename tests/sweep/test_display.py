"""What is shown while jobs run."""

from __future__ import annotations

from io import StringIO

from statetrack.sweep.display import SweepDisplay
from statetrack.sweep.engine import SweepEvent
from statetrack.sweep.status import result_text
from statetrack.terminal import PlainConsole
from statetrack.training import Progress
from tests.sweep.small import small_job


def progress(step: int) -> Progress:
    return Progress(step, 8, loss=0.5, accuracy=0.75, seconds=float(step), seconds_left=8.0 - step)


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
    counts, lines = zip(
        *(line.split(" s, ")[1].split("] ") for line in sweep_text(terminal=False).splitlines()),
        strict=True,
    )
    assert counts == ("1/4 done", "1/4 done", "2/4 done", "2/4 done, 1 failed")
    assert list(lines) == [
        "two: running in another process",
        "one: exit code -9; trying again",
        "one: 0.988 at 40-256, not hardened, stopped: score",
        "three: failed: not finite",
    ]


def test_of_a_sweep_a_live_table() -> None:
    text = sweep_text(terminal=True)
    for part in (
        "3/8",
        "0.5000",
        "starting",
        "1/4 done]",
        "2/4 done, 1 failed]",
        "about 60 s left",
        "failed: not finite",
    ):
        assert part in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor comes back


def test_of_many_lengths_the_first_is_shown() -> None:
    evaluations = {length: {"score": 0.5} for length in ("100", "10", "1000", "10000")}
    assert result_text(result(trained={"evaluations": evaluations})) == "0.500 at 100"
