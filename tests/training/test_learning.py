"""The point of it all: with eigenvalues in [-1,1] parity is learned, with [0,1] it is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from statetrack.recipes.presets import demo_parity
from statetrack.training import Evaluation, evaluate, train


def trained_on_parity(folder: Path, *, allow_neg_eigval: bool, samples: int) -> Evaluation:
    """The demo's recipe in half its steps, on lengths up to 40; scored on lengths up to 256."""
    config = demo_parity("delta_net", allow_neg_eigval=allow_neg_eigval, seed=0)
    config = replace(config, training=replace(config.training, steps=150))
    model = train(config, folder).model()
    return evaluate(model, config.task, (40, 256), samples=samples)


def test_negative_eigenvalues_learn_parity(tmp_path: Path) -> None:
    result = trained_on_parity(tmp_path / "run", allow_neg_eigval=True, samples=512)
    assert result.scaled >= 0.99


def test_positive_eigenvalues_do_not(tmp_path: Path) -> None:
    """Guessing scores 0 +- 0.02 on so many sequences."""
    result = trained_on_parity(tmp_path / "run", allow_neg_eigval=False, samples=2048)
    assert result.scaled < 0.1
