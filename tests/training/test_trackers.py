"""TensorBoard and Weights & Biases: optional, and never the end of a run."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

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
    with pytest.warns(UserWarning, match="Recorder failed, and the run goes on") as caught:
        run = train(small_config(steps=4), tmp_path / "run", callbacks=[tracker])
    assert run.finished
    assert len(caught) == 1
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


def install(monkeypatch: pytest.MonkeyPatch, name: str, **names: Any) -> None:
    """Let a fake module be imported in place of a package."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, name, module)


def test_tensorboard_gets_every_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []

    class SummaryWriter:
        def __init__(self, log_dir: str) -> None:
            calls.append(("open", log_dir))

        def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
            calls.append((tag, scalar_value, global_step))

        def close(self) -> None:
            calls.append(("close",))

    install(monkeypatch, "tensorboard")
    install(monkeypatch, "torch.utils.tensorboard", SummaryWriter=SummaryWriter)
    run = train(small_config(steps=2), tmp_path / "run", callbacks=make_trackers(["tensorboard"]))
    sent = [
        (name, value, row["step"]) for row in run.metrics() for name, value in scalars(row).items()
    ]
    assert [name for name, *_ in sent[:2]] == ["train/loss", "train/accuracy"]
    assert calls == [("open", str(run.folder / "tensorboard")), *sent, ("close",)]


class WeightsAndBiases:
    """A fake of the package wandb: it records the calls, and one of them may fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, broken: str = "") -> None:
        self.broken = broken
        self.calls: list[str] = []
        self.inits: list[dict[str, Any]] = []
        self.rows: list[tuple[int, dict[str, float]]] = []
        install(monkeypatch, "wandb", init=self.init)

    def init(
        self, *, project: str, name: str, id: str, resume: str, dir: str, config: dict[str, Any]
    ) -> WeightsAndBiases:
        self.inits.append(
            {"project": project, "name": name, "id": id, "resume": resume, "config": config}
        )
        self._call("init")
        return self

    def log(self, data: dict[str, float], *, step: int) -> None:
        self.rows.append((step, data))
        self._call(f"log {step}")

    def finish(self) -> None:
        self._call("finish")

    def _call(self, what: str) -> None:
        self.calls.append(what)
        if what == self.broken:
            raise ConnectionError("no network")


def test_wandb_gets_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = WeightsAndBiases(monkeypatch)
    config = small_config(steps=2)
    run = train(config, tmp_path / "run", callbacks=make_trackers(["wandb"]))
    assert fake.calls == ["init", "log 1", "log 2", "finish"]
    assert fake.rows == [(row["step"], scalars(row)) for row in run.metrics()]
    (init,) = fake.inits
    assert (init["project"], init["name"]) == ("statetrack", f"{tmp_path.name}/run")
    assert init["config"] == config.to_json()


def test_a_resumed_run_continues_the_run_of_wandb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = WeightsAndBiases(monkeypatch)
    config = small_config(steps=2)
    run = train(config, tmp_path / "run", callbacks=make_trackers(["wandb"]))
    moved = run.folder.rename(tmp_path / "moved")
    train(config, moved, resume=True, steps=4, callbacks=make_trackers(["wandb"]))
    train(config, tmp_path / "other", callbacks=make_trackers(["wandb"]))
    first, again, other = (init["id"] for init in fake.inits)
    assert first == again != other
    assert {init["resume"] for init in fake.inits} == {"allow"}
    assert [step for step, _ in fake.rows] == [1, 2, 3, 4, 1, 2]


@pytest.mark.parametrize("broken", ["init", "log 2", "finish"])
def test_a_failure_of_wandb_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    fake = WeightsAndBiases(monkeypatch, broken)
    with pytest.warns(UserWarning, match="WandB failed, and the run goes on without it"):
        run = train(small_config(steps=4), tmp_path / "run", callbacks=make_trackers(["wandb"]))
    assert run.finished
    assert fake.calls[-1] == broken  # nothing more is sent
