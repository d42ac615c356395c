"""`python -m benchmarks folders`: a few attacks, and that damage is noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from benchmarks.reliability.folders import Attacks, Outcome
from benchmarks.reliability.kills import Moment, kill_at
from benchmarks.reliability.processes import difference, end, go_on, start
from statetrack.training import Run, loop

Attack = Callable[[Attacks], Iterator[Outcome]]


@pytest.fixture(scope="module")
def attacks(tmp_path_factory: pytest.TempPathFactory) -> Attacks:
    return Attacks(tmp_path_factory.mktemp("attacks"), tries=2)


@pytest.mark.parametrize(
    "attack",
    [Attacks.two_writers, Attacks.two_compilers, Attacks.read_only, Attacks.symlinks],
    ids=lambda attack: attack.__name__,
)
def test_nothing_is_lost_or_doubled(attack: Attack, attacks: Attacks) -> None:
    outcomes = list(attack(attacks))
    assert outcomes
    assert set(outcomes) == {Outcome()}


def test_a_missing_lock_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attacks = Attacks(tmp_path, tries=1)
    monkeypatch.setattr(loop, "sole_writer", lambda _: nullcontext())
    (outcome,) = attacks.two_writers()
    assert outcome.wrong is not None


def test_metrics_that_are_not_rewound_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("undisturbed", "run"):
        assert end(start(lambda name=name: go_on(tmp_path / name))) == 0
    assert difference(tmp_path / "run", tmp_path / "undisturbed") is None
    assert kill_at(Moment("before rename", "step-00000010.json", 1), tmp_path / "killed")
    monkeypatch.setattr(Run, "rewind_metrics", lambda *_, **__: None)
    go_on(tmp_path / "killed")
    problem = difference(tmp_path / "killed", tmp_path / "undisturbed")
    assert problem is not None
    assert "the metrics differ" in problem


def test_a_link_that_is_followed_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attacks = Attacks(tmp_path, tries=1)
    monkeypatch.setattr(Run, "check_link", lambda _: None)
    assert any(outcome.lost == "files behind checkpoints" for outcome in attacks.symlinks())
