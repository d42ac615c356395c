"""`benchmarks/harden.py`: a model is trained once, hardened, measured and reported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import harden
from statetrack.training import RunConfig

NAME = "parity, Mamba"


def test_one_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def quick(name: str, seed: int) -> RunConfig:
        wanted = full(name, seed)
        return replace(wanted, training=replace(wanted.training, steps=150, max_length=20))

    full = harden.config
    monkeypatch.setattr(harden, "config", quick)
    monkeypatch.setattr(harden, "RUNS", {NAME: 1})
    monkeypatch.setattr(harden, "SAMPLES", {40: 4, 400: 2})
    log = tmp_path / "harden.jsonl"
    harden.main(seeds=7, log=log)
    (row,) = map(json.loads, log.read_text().splitlines())
    assert (row["name"], row["seed"]) == (NAME, 7)
    assert len(row["before"]) == len(row["after"]) == 2
    table = capsys.readouterr().out
    assert f"## {NAME}" in table
    assert "| seed | loss before | after | 40 before | 40 after | 400 before" in table
    # what is in the log is not measured again
    monkeypatch.setattr(harden, "measure", None)
    harden.main(seeds=7, log=log)
    assert capsys.readouterr().out == table


@pytest.mark.parametrize("name", harden.RUNS)
def test_what_is_trained(name: str) -> None:
    wanted = harden.config(name, 3)
    assert (wanted.training.seed, wanted.training.data_seed) == (3, 3)
    assert wanted.model.mixers[0].allow_neg_eigval
    if name == "parity, DeltaNet":  # none of the measures that make it exact by training
        mixer = wanted.model.mixers[0]
        assert (mixer.beta_stretch, mixer.output_norm_eps) == (0.0, 1e-6)  # type: ignore[attr-defined]
        assert wanted.training.saturation == 0.0
