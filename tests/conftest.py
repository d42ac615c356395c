"""What all tests share."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest
import torch

from statetrack import cli
from statetrack.layers import DeltaNetConfig
from statetrack.recipes.presets import demo_parity
from statetrack.training import Run, train
from tests.training.refusal import Refused, assert_refused
from tests.training.small import small_config

# Two test processes run on two cores; and one thread makes numbers repeatable.
torch.set_num_threads(1)

# A run in the background of a shell ignores Ctrl-C, and so would the processes that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile("suite", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.load_profile("suite")

# `make test-peers` and `make test-gpu` run these, in environments with other packages
collect_ignore = ["peers", "gpu"]

ROOT = Path(__file__).parent.parent


class Result(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Result]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs `statetrack ...` in this process."""
    monkeypatch.setenv("COLUMNS", "200")  # nothing is broken into lines

    def run(*args: str | Path) -> Result:
        try:
            code: Any = cli.main([str(arg) for arg in args])
        except SystemExit as end:
            code = end.code
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture
def refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Refused:
    """Runs `statetrack ...` in an empty folder, which must end with exit code 2."""
    monkeypatch.chdir(tmp_path)
    return partial(assert_refused, capsys)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run of four steps on lengths 3-40, with checkpoints of the second and the last."""
    return train(small_config(max_length=40, checkpoint_every=2), tmp_path / "run").folder


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Parity up to length 40 with a plain DeltaNet, seconds of training."""
    config = demo_parity("delta_net", allow_neg_eigval=True, seed=0)
    mixer = DeltaNetConfig(allow_neg_eigval=True, num_heads=2, conv_size=0)
    model = replace(config.model, mixer=mixer, mlp_size=64)
    training = replace(config.training, saturation=0.0, steps=200, batch_size=32)
    config = replace(config, model=model, training=training)
    return train(config, tmp_path_factory.mktemp("plain") / "run")
