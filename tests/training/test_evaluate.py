"""Evaluation, of models of which it is known how good they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from statetrack.errors import UserError
from statetrack.models import SequenceModel
from statetrack.tasks import Task, make_task
from statetrack.training import evaluate, predict
from tests.training.fakes import Constant, Fake, at_once, perfect, right_up_to
from tests.training.small import small_config

LAST = make_task("parity")
DENSE = make_task("parity", supervision="dense")
WORDS = make_task("S3")
WORDS_LAST = make_task("S3", supervision="last")
TASKS = [
    pytest.param(LAST, id="parity"),
    pytest.param(DENSE, id="parity, dense"),
    pytest.param(WORDS, id="S3"),
    pytest.param(WORDS_LAST, id="S3, last"),
    pytest.param(make_task("Z5", tokens_per_element=2), id="Z5, two tokens"),
]


def accuracies(model: Fake, task: Task, *args: Any, **options: Any) -> tuple[float, ...]:
    """score, scaled, token, answer and sequence accuracy."""
    r = evaluate(model, task, *args, **options)  # type: ignore[arg-type]
    return r.score, r.scaled, r.token_accuracy, r.answer_accuracy, r.sequence_accuracy


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("lengths", [7, (2, 9)], ids=["one length", "a range"])
def test_perfect(task: Task, lengths: Any) -> None:
    assert accuracies(perfect(task), task, lengths, samples=50) == (1, 1, 1, 1, 1)


@pytest.mark.parametrize("task", TASKS)
def test_always_wrong(task: Task) -> None:
    model = Fake(task, lambda positions: False)
    worst = -task.chance / (1 - task.chance) if task.metric == "answer" else 0
    got = accuracies(model, task, (2, 9), samples=50)
    assert got == pytest.approx((0, worst, 0, 0, 0))


@pytest.mark.parametrize(
    ("task", "worst"),
    [pytest.param(LAST, -1.0, id="parity"), pytest.param(WORDS, 0.0, id="S3")],
)
def test_below_chance_is_below_0(task: Task, worst: float) -> None:
    model = Fake(task, lambda positions: False)
    assert evaluate(model, task, 5, samples=3).scaled == pytest.approx(worst)  # type: ignore[arg-type]


def test_constant_on_parity() -> None:
    """Right where the answer happens to be that token; the tokens it was given tell where."""
    model = Constant(LAST, 2)
    result = evaluate(model, LAST, (2, 30), samples=200)  # type: ignore[arg-type]
    ones = np.concatenate([(tokens == 2).sum(1) for tokens in model.read])
    share = float((ones % 2).mean())
    assert len(ones) == 200
    assert 0.3 < share < 0.7  # answers are balanced
    assert result.score == result.answer_accuracy == pytest.approx(share)
    assert result.scaled == pytest.approx(2 * share - 1)
    # with the answer as the only target, all three are the same
    assert result.token_accuracy == result.sequence_accuracy == result.score


def test_constant_on_dense_parity() -> None:
    model = Constant(DENSE, 2)
    result = evaluate(model, DENSE, (2, 6), samples=200)  # type: ignore[arg-type]
    (tokens,) = model.read
    odd = [[ones % 2 for ones in np.cumsum(row[row > 0] == 2)] for row in tokens]
    every = [bit for row in odd for bit in row]
    assert result.token_accuracy == pytest.approx(sum(every) / len(every))
    assert result.answer_accuracy == pytest.approx(sum(row[-1] for row in odd) / 200)
    assert result.sequence_accuracy == pytest.approx(sum(all(row) for row in odd) / 200)
    assert len({len(row) for row in odd}) == 5  # all lengths occur
    assert result.score == result.answer_accuracy  # parity is scored on its answer


def test_right_up_to_a_length_at_one_length() -> None:
    """Parity of length 20 has 19 bits; of length 10, 9."""
    model = right_up_to(DENSE, 10)
    assert accuracies(model, DENSE, 20, samples=8) == pytest.approx((0, -1, 9 / 19, 0, 0))
    assert accuracies(model, DENSE, 10, samples=8) == (1, 1, 1, 1, 1)


def test_right_up_to_a_length_on_a_range() -> None:
    model = right_up_to(LAST, 10)
    score = evaluate(model, LAST, (5, 15), samples=300).score  # type: ignore[arg-type]
    lengths = np.concatenate([1 + (tokens > 0).sum(1) for tokens in model.read])
    assert set(lengths) == set(range(5, 16))
    assert score == pytest.approx((lengths <= 10).mean())


def test_word_problems_are_scored_on_the_whole_sequence() -> None:
    """All is right but the third of eight elements; BOS does not count."""
    model = Fake(WORDS, lambda positions: positions != 3)
    got = accuracies(model, WORDS, 8, samples=9)
    assert got == pytest.approx((0, 0, 7 / 8, 1, 0))
    assert evaluate(model, WORDS, 8, samples=9).metric == "sequence"  # type: ignore[arg-type]


def test_only_what_is_asked_for_counts() -> None:
    """The same model, when only the last element is asked for."""
    model = Fake(WORDS_LAST, lambda positions: positions != 3)
    assert accuracies(model, WORDS_LAST, 8, samples=9) == (1, 1, 1, 1, 1)


def test_the_interval_is_that_of_the_score() -> None:
    model = right_up_to(LAST, 10)
    result = evaluate(model, LAST, (5, 15), samples=100)  # type: ignore[arg-type]
    assert 0 < result.low < result.score < result.high < 1
    assert (result.min_length, result.max_length, result.samples) == (5, 15, 100)


def drawn(**options: Any) -> list[list[int]]:
    model = perfect(LAST)
    evaluate(model, LAST, options.pop("lengths", (5, 9)), samples=40, **options)  # type: ignore[arg-type]
    return np.concatenate(model.read).tolist()


def test_the_same_sequences_every_time() -> None:
    assert drawn() == drawn()


@pytest.mark.parametrize(
    "change",
    [{"split": "validation"}, {"split": "train"}, {"data_seed": 1}, {"lengths": (6, 9)}],
    ids=["validation", "train", "data_seed", "lengths"],
)
def test_other_sequences(change: dict[str, Any]) -> None:
    assert drawn() != drawn(**change)


def test_large_samples_are_evaluated_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once(64, monkeypatch)
    model = right_up_to(DENSE, 5)
    result = evaluate(model, DENSE, 9, samples=50)  # type: ignore[arg-type]
    assert [len(tokens) for tokens in model.read] == [8] * 6 + [2]
    assert result.token_accuracy == 0.5
    assert result.samples == 50


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluating"])
def test_the_mode_of_the_model_is_restored(training: bool) -> None:
    model = perfect(LAST).train(training)
    evaluate(model, LAST, 5, samples=3)  # type: ignore[arg-type]
    assert model.training is training
    assert model.calls == [(4, False, False)]  # inside: no training mode, no gradients


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        pytest.param(1, "at least 2", id="too short"),
        pytest.param((9, 5), "greatest length 5 is below the least, 9", id="upside down"),
    ],
)
def test_impossible_lengths(lengths: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        evaluate(perfect(LAST), LAST, lengths)  # type: ignore[arg-type]


def test_a_task_by_its_name() -> None:
    by_name = evaluate(perfect(LAST), "parity", 5, samples=4)  # type: ignore[arg-type]
    assert by_name == evaluate(perfect(LAST), LAST, 5, samples=4)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": np.zeros(3)}, "model must be a SequenceModel; got ndarray"),
        ({"task": 5}, "task must be a Task or the name of one; got int"),
        ({"task": "nope"}, "unknown task 'nope'"),
        ({"lengths": 5.0}, "lengths must be a whole number or a pair of them; got 5.0"),
        ({"lengths": "5"}, "lengths must be a whole number or a pair of them; got '5'"),
        ({"lengths": 10**12}, "length 1,000,000,000,000 needs 64 TB; this machine has"),
        ({"samples": 10**13}, "10,000,000,000,000 sequences needs 640 TB; this machine has"),
        ({"samples": 2.5}, "samples must be a whole number; got float"),
    ],
)
def test_wrong_arguments(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        evaluate(**{"model": perfect(LAST), "task": LAST, "lengths": 5, **changes})


@pytest.mark.parametrize("tokens_held", [1, 12, 40, 1000])
def test_predict_in_segments_of_a_fake(tokens_held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = np.random.default_rng(0).integers(1, 3, (4, 23))
    at_once(tokens_held, monkeypatch)
    model = Fake(DENSE, lambda positions: positions % 3 > 0)
    got = predict(model, tokens)  # type: ignore[arg-type]
    right = np.arange(23) % 3 > 0
    assert ((got == DENSE.solve(tokens)) == right).all()
    sizes = [size for size, _, _ in model.calls]
    assert sum(sizes) == 23
    assert max(sizes) == min(23, max(1, tokens_held // 4))


@pytest.mark.parametrize("mixer", ["delta_net", "mamba", "delta_net,mamba"])
def test_predict_in_segments_equals_in_one_go(mixer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    config = small_config("S3", mixer, allow_neg_eigval=True, model={"initializer_range": 1.0})
    model = SequenceModel(config.model)
    tokens = np.random.default_rng(0).integers(0, 6, (4, 50))
    whole = predict(model, tokens)
    assert len(np.unique(whole)) > 2
    at_once(4 * 7, monkeypatch)
    assert (predict(model, tokens) == whole).all()


def test_padding_is_never_asked_for() -> None:
    """What a model says after a sequence's end does not matter."""

    class AfterTheEnd(Fake):
        def forward(self, tokens: Any, state: Any = None) -> Any:
            logits, state = super().forward(tokens, state)
            logits[tokens == LAST.pad] = torch.tensor([0.0, 0.0, 1.0])
            return logits, state

    for task in (LAST, DENSE):
        model = AfterTheEnd(task, lambda positions: True)
        assert accuracies(model, task, (2, 9), samples=50) == (1, 1, 1, 1, 1)
        assert any((tokens == task.pad).any() for tokens in model.read)
