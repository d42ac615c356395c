"""The predicted horizon: joined segments are the model's own steps, and predictions hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from statetrack.diagnosis import diagnose
from statetrack.diagnosis.horizon import predict_horizon
from statetrack.diagnosis.retention import StateMeans
from statetrack.diagnosis.segments import Probe, match
from statetrack.diagnosis.subject import counting_word, cycle
from statetrack.errors import UserError
from statetrack.layers import MIXERS, Dense, Diagonal, HouseholderProduct
from statetrack.models import SequenceModel
from statetrack.tasks import make_task
from statetrack.testing.inputs import draw, unit
from statetrack.training import Run, RunConfig, train
from tests.diagnosis.constructed import Constructed, scalar
from tests.training.small import small_config


@pytest.mark.parametrize(
    "transition",
    [
        Diagonal(draw(0)(2, 5, 3, 4), (-1.0, 1.0)),
        HouseholderProduct(None, unit(draw(1)(2, 5, 3, 2, 4)), draw(2)(2, 5, 3, 2), (-1.0, 1.0)),
        Dense(draw(3)(2, 5, 3, 4, 4)),
    ],
    ids=lambda t: type(t).__name__,
)
def test_products(transition: Any) -> None:
    dense, x = transition.dense(), draw(4)(2, 3, 4, 6)
    assert transition.shape == dense.shape[:-1]
    expected = x
    for t in range(5):
        expected = dense[:, t] @ expected
    torch.testing.assert_close(transition.product().apply(x), expected)
    pair = transition[:, 1].after(transition[:, 0])
    torch.testing.assert_close(pair.dense(), dense[:, 1] @ dense[:, 0])


def small(name: str, task: str = "parity", **options: Any) -> tuple[SequenceModel, RunConfig]:
    """A model as it is initialised."""
    config = small_config(task, name, max_length=12, model={"hidden_size": 32}, **options)
    torch.manual_seed(0)
    return SequenceModel(config.model).eval(), config


AFFINE = [
    name
    for name, config in MIXERS.items()
    if config.layer.affine_state and "eigenvalues" not in config.layer.unsupported
]


@torch.no_grad()
@pytest.mark.parametrize("name", AFFINE)
def test_joined_segments_are_what_the_model_does(name: str) -> None:
    """In the first layer exactly, whatever the layer; windows of convolutions aside."""
    model, config = small(name)
    probe = Probe.of(model, config)
    one, two = probe.cuts
    joined = probe.segments.then(probe.segments, np.random.default_rng(1))
    i, j = match(probe.segments.end, probe.segments.start, np.random.default_rng(1))
    tokens = torch.from_numpy(probe.tokens)
    _, state = model(tokens[i, :two])
    fresh = [type(s)(s[0], *(part[j] for part in s[1:])) for s in model(tokens[:, :one])[1]]
    state = tuple(type(s)(s[0], *f[1:]) for s, f in zip(state, fresh, strict=True))
    _, state = model(tokens[j, one:two], state)
    P, C = joined.maps[0]
    memory = P.apply(probe.memory[0][0][i]) + C
    torch.testing.assert_close(
        memory.flatten(), state[0][0].double().flatten(), rtol=1e-4, atol=1e-4
    )
    assert (probe.dfa.delta.shape[0] > joined.action).all()
    assert (np.take_along_axis(joined.action, joined.start[:, None], 1)[:, 0] == joined.end).all()


def test_the_prediction_agrees_with_the_evaluation(trained: Run) -> None:
    """As on the README's run, whose best eigenvalue of one token would last 36,875 tokens."""
    # rounding differs between instruction sets, and with it the horizon: 70 to 1,800 were seen
    found = diagnose(trained, samples=64, max_length=10_000)
    predicted, measured = found.horizon.prediction, found.horizon.measured
    assert predicted is not None
    assert measured is not None
    assert measured.horizon is not None
    assert 40 < measured.horizon < 10_000
    assert measured.horizon / 1.5 <= predicted.horizon <= 1.5 * measured.horizon
    assert predicted.limiting is not None
    assert predicted.limiting.share > 0.9
    lines = " ".join(str(found).split())
    verdict = f"This model tracks parity to about {measured.horizon:,} tokens; it was trained on "
    assert lines.startswith(f"DeltaNet [-1,1] on parity {verdict}lengths up to 40. Predicted hori")
    assert f"Predicted horizon: {predicted.horizon:,.0f}. Measured horizon: " in lines
    assert f"Layer 0, head {predicted.limiting.head} limits it: each token loses " in lines
    assert lines.endswith(
        "Try `statetrack harden RUN`: it makes transitions exact where accuracy allows."
    )


def test_what_is_kept_is_all_if_nothing_is_lost(parity: dict[str, Run]) -> None:
    run = parity["[-1,1]"]
    probe = Probe.of(run.model(), run.config)
    means = StateMeans.of(probe)
    (share,), (kept,) = (
        means.explained(probe),
        means.retained(probe.segments, np.random.default_rng(0)),
    )
    assert share.max() > 0.99
    assert kept[share.argmax()] == pytest.approx(1, abs=1e-3)


def test_what_has_not_learned_its_task() -> None:
    found = predict_horizon(*small("delta_net"))
    assert not found.learned
    assert found.horizon < 12
    assert found.limiting is None


@pytest.mark.parametrize(
    ("name", "task", "says"),
    [
        ("delta_net,attention", "parity", "layer 1 (Attention) has no transitions"),
        ("slstm", "parity", "layer 0 (sLSTM) has no transitions"),
        ("mlstm", "parity", "layer 0 (mLSTM) scales its memory"),
        (
            "delta_net",
            "modular_arithmetic_brackets",
            "modular_arithmetic_brackets has no DFA",
        ),
    ],
)
def test_what_cannot_be_predicted_is_said(name: str, task: str, says: str, tmp_path: Path) -> None:
    run = train(small_config(task, name, min_length=9, max_length=12), tmp_path / "run")
    found = diagnose(run, max_length=12, samples=8)
    assert found.horizon.prediction is None
    assert found.horizon.measured is not None
    assert f"The horizon is not predicted: {says}" in " ".join(str(found).split())


def test_words_come_from_the_task() -> None:
    words = {}
    for name in ("parity", "Z6", "S5_only_swaps", "regex:(abab)*", "regex:(ab)*"):
        dfa = make_task(name).automaton()
        assert dfa is not None
        words[name] = counting_word(dfa)
    assert words == {
        "parity": ["1"],
        "Z6": ["1"],
        "S5_only_swaps": ["1"],
        "regex:(abab)*": ["a", "b"],
        "regex:(ab)*": None,
    }
    symbols = make_task("S5").automaton()
    assert symbols is not None
    assert max(cycle(symbols, [i]) for i in range(120)) == 6
    with pytest.raises(UserError, match="a model without a task has no default word"):
        diagnose(Constructed(scalar(0.5)), vocab=("0", "1"))


def test_pairs_that_match() -> None:
    rng = np.random.default_rng(0)
    i, j = match(np.array([0, 1, 2, 1]), np.array([1, 1, 0]), rng)
    assert len(i) == 4
    assert (np.array([0, 1, 2, 1])[i] == np.array([1, 1, 0])[j]).all()
