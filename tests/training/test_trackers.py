"""TensorBoard and Weights & Biases: optional, and never the end of a run."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from statetrack.errors import UserError
from statetrack.training import Run, train
from statetrack.training.trackers import TRACKERS, Tracker, make_trackers, scalars
from tests.training.small import small_config


class Recorder(Tracker):
    def __init__(self, broken: str = "") -> None:
        super().__init__()
        self.broken = broken
        self.calls: list[str] = []

    def start(self, run: Run) -> None:
        self._call("start")

    def send(self, step: int, values: dict[str, float]) -> None:
        self._call(f"send {step} {sorted(values)[0]}")

    def close(self) -> None:
        self._call("close")

    def _call(self, what: str) -> None:
        self.calls.append(what)
        if self.broken and what.startswith(self.broken):
            raise OSError("no network")


def test_a_tracker_gets_every_row(tmp_path: Path) -> None:
    tracker = Recorder()
    train(small_config(steps=2), tmp_path / "run", callbacks=[tracker])
    sent = ["send 1 train/accuracy", "send 2 train/accuracy"]
    assert tracker.calls == ["start", *sent, "close"]


@pytest.mark.parametrize("broken", ["start", "send 2", "close"])
def test_a_failure_is_one_warning(tmp_path: Path, broken: str) -> None:
    tracker = Recorder(broken)
    with pytest.warns(UserWarning, match="Recorder failed, and the run goes on") as told:
        run = train(small_config(steps=4), tmp_path / "run", callbacks=[tracker])
    assert run.finished
    assert len(told) == 1
    assert tracker.calls[-1].startswith(broken)


def test_names_of_scalars() -> None:
    row = {"step": 5, "kind": "validation", "min_length": 40, "max_length": 256, "score": 0.5}
    assert scalars({**row, "metric": "answer"}) == {"validation/40-256/score": 0.5}


@pytest.mark.parametrize("name", TRACKERS)
def test_what_is_not_installed_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statetrack.training.trackers.find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf'pip install "statetrack\[{name}\]"'):
        make_trackers([name])
    with pytest.raises(UserError, match="track must be one of"):
        make_trackers(["mlflow"])


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_writes_events(tmp_path: Path) -> None:
    run = train(small_config(steps=2), tmp_path / "run", callbacks=make_trackers(["tensorboard"]))
    assert list((run.folder / "tensorboard").glob("events*"))
