"""100,000 tokens: read in segments with the state carried on, in bounded memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
import torch
from torch import Tensor

from statetrack.models import SequenceModel
from statetrack.tasks import generator, make_task
from statetrack.training import curve, evaluate
from tests.training.fakes import at_once
from tests.training.small import small_config

LONG, SHORT, HELD = 100_000, 6_000, 4_096
PARITY = make_task("parity", supervision="dense")


class Watched:
    """A small model, the shapes of what it is given and the logits of the first segments."""

    def __init__(self, mixer: str) -> None:
        torch.manual_seed(0)
        options = {"initializer_range": 1.0}
        config = small_config("parity", mixer, allow_neg_eigval=True, model=options)
        self.model = SequenceModel(config.model)
        self.shapes: list[tuple[int, int]] = []
        self.tokens: list[Tensor] = []
        self.logits: list[Tensor] = []
        self.model.register_forward_hook(self.watch)

    def watch(self, _: Any, args: tuple[Any, ...], out: tuple[Tensor, Any]) -> None:
        self.shapes.append(tuple(args[0].shape))  # type: ignore[arg-type]
        if sum(t.shape[1] for t in self.tokens) < SHORT:
            self.tokens.append(args[0])
            self.logits.append(out[0])


@pytest.fixture(params=["delta_net", "mamba"])
def watched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Watched:
    at_once(HELD, monkeypatch)
    return Watched(request.param)


def check_segments(watched: Watched, length: int) -> None:
    """All is read, little at once, and as in a single pass."""
    assert sum(size for _, size in watched.shapes) == PARITY.input_size(length)
    assert max(rows * size for rows, size in watched.shapes) <= HELD
    tokens = torch.cat(watched.tokens, 1)[:, :SHORT]
    assert tokens.shape == (1, SHORT)
    with torch.no_grad():
        single, _ = watched.model(tokens)
    torch.testing.assert_close(torch.cat(watched.logits, 1)[:, :SHORT], single, atol=1e-5, rtol=0)
    assert len(single.argmax(-1).unique()) > 1  # it says now this, now that


def test_curve(watched: Watched) -> None:
    tracemalloc.start()
    got = curve(watched.model, PARITY, LONG, samples=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert got.lengths.tolist() == list(range(2, LONG + 1))
    assert 0.1 < got.accuracy.mean() < 0.9
    assert got.majority.mean() == pytest.approx(0.5, abs=0.01)
    assert peak < 200 << 20
    check_segments(watched, LONG)


def test_evaluation(watched: Watched) -> None:
    got = evaluate(watched.model, PARITY, LONG, samples=1)
    assert len(got.position_accuracy) == PARITY.input_size(LONG)
    assert got.token_accuracy == pytest.approx(sum(got.position_accuracy) / (LONG - 1))
    assert 0.1 < got.token_accuracy < 0.9
    check_segments(watched, LONG)


def test_more_samples_hold_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drawn before it is counted is bounded as well."""
    drawn: list[int] = []
    sample = type(PARITY).sample

    def counted(self: Any, rng: Any, lengths: Any) -> Any:
        batch = sample(self, rng, lengths)
        drawn.append(batch.tokens.size)
        return batch

    watched = Watched("delta_net")
    monkeypatch.setattr(type(PARITY), "sample", counted)
    at_once(2 * SHORT, monkeypatch, "TOKENS_HELD")
    evaluate(watched.model, PARITY, SHORT, samples=5)
    assert drawn == [2 * (SHORT - 1), 2 * (SHORT - 1), SHORT - 1]


def test_the_same_sequence_is_read(watched: Watched) -> None:
    """The stream of a curve is that of its length, split and seed."""
    curve(watched.model, PARITY, SHORT, samples=1)
    batch = PARITY.sample(generator(0, "test", SHORT), torch.tensor([SHORT]).numpy())
    assert torch.cat(watched.tokens, 1).tolist() == batch.tokens.tolist()
