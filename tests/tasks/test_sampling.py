"""What samplers draw: shapes, padding, vocabularies, and that draws are uniform."""

from __future__ import annotations

import numpy as np
import pytest

from statetrack.tasks import IGNORE, Stream, Task, make_task
from tests.tasks.reference import parity_targets, supervised, word_problem_targets
from tests.tasks.variants import PARITY, VARIANTS, WORD_PROBLEMS, each

SWAPS = {0, 1, 2, 5, 6, 14, 21, 24, 54, 80, 105}
LENGTHS = np.array([9, 2, 17, 3, 12, 17, 5])


def lengths_for(task: Task) -> np.ndarray:
    """LENGTHS, as far as the task allows."""
    return np.maximum(LENGTHS, task.min_length)


def chi_square(counts: np.ndarray) -> float:
    """Per degree of freedom, against the uniform distribution: about 1, and seldom above 3."""
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum() / (len(counts) - 1))


@each(VARIANTS)
def test_shapes_and_padding(task: Task) -> None:
    lengths = lengths_for(task)
    batch = task.sample(np.random.default_rng(0), lengths)
    width = task.input_size(int(lengths.max()))
    assert batch.tokens.shape == batch.targets.shape == (7, width)
    assert batch.tokens.dtype == batch.targets.dtype == np.int64
    np.testing.assert_array_equal(batch.lengths, lengths)
    assert batch.tokens.min() >= 0
    assert batch.tokens.max() < len(task.vocab)
    for row, length in zip(batch.tokens, batch.lengths, strict=True):
        expected = np.arange(len(row)) >= task.input_size(int(length))
        np.testing.assert_array_equal(row == task.pad, expected)


@each(VARIANTS)
def test_targets_are_what_solve_says(task: Task) -> None:
    batch = task.sample(np.random.default_rng(0), lengths_for(task))
    np.testing.assert_array_equal(batch.targets, task.solve(batch.tokens))
    np.testing.assert_array_equal((batch.targets != IGNORE).any(1), True)
    if getattr(task, "supervision", "") == "last":
        np.testing.assert_array_equal((batch.targets != IGNORE).sum(1), 1)


@each(PARITY | WORD_PROBLEMS)
def test_targets_are_right(task: Task) -> None:
    batch = task.sample(np.random.default_rng(0), LENGTHS)
    for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        row = [token for token in tokens if token != task.pad]
        if task.name == "parity":
            expected = parity_targets(row)
        else:
            expected = word_problem_targets(
                task.group.name, row, task.bos, task.tokens_per_element, task.filler
            )
        assert targets == supervised(expected, task.supervision, len(tokens))


@each(WORD_PROBLEMS)
def test_layout_of_word_problems(task: Task) -> None:
    n = task.tokens_per_element
    tokens = task.sample(np.random.default_rng(0), np.full(200, 12)).tokens
    np.testing.assert_array_equal(tokens[:, 0], task.bos)
    blocks = tokens[:, 1:].reshape(200, 12 // n, n)
    elements = blocks[..., :1]
    assert set(elements.ravel()) <= set(task.inputs)
    fillers = task.vocab.index("FILL") if n > 1 and task.filler != "repeat" else elements
    np.testing.assert_array_equal(blocks[..., 1:], np.broadcast_to(fillers, blocks[..., 1:].shape))


@each(WORD_PROBLEMS)
def test_a_block_may_be_cut_short(task: Task) -> None:
    batch = task.sample(np.random.default_rng(0), np.array([5, 7]))
    np.testing.assert_array_equal((batch.tokens != task.pad).sum(1), [6, 8])


@pytest.mark.parametrize("length", [2, 3, 40, 256])
def test_the_length_of_parity_counts_the_answer(length: int) -> None:
    task = make_task("parity")
    assert task.input_size(length) == length - 1
    batch = Stream(task, "train", 0, 4, length, length).batch(0)
    assert batch.tokens.shape == (4, length - 1)
    assert (batch.targets[:, -1] != IGNORE).all()


@pytest.mark.parametrize("length", [1, 2, 32, 500])
def test_the_length_of_a_word_problem_counts_no_bos(length: int) -> None:
    task = make_task("S5")
    assert task.input_size(length) == length + 1
    batch = Stream(task, "train", 0, 4, length, length).batch(0)
    assert batch.tokens.shape == (4, length + 1)
    assert (batch.tokens[:, 1:] < 120).all()


@pytest.mark.parametrize("n", [1, 2, 4, 6, 8])
def test_length_1_is_long_enough_for_any_block(n: int) -> None:
    task = make_task("S5", tokens_per_element=n, filler="repeat")
    batch = Stream(task, "train", 0, 4, 1, 1).batch(0)
    answer = batch.tokens[:, 1] if n == 1 else np.zeros(4)
    np.testing.assert_array_equal(batch.targets[:, 1], answer)


@pytest.mark.parametrize("name", ["parity", "S5"])
def test_lengths_are_uniform_with_both_ends(name: str) -> None:
    lengths = Stream(make_task(name), "train", 0, 8000, 3, 12).batch(0).lengths
    counts = np.bincount(lengths, minlength=13)
    assert counts.sum() == counts[3:].sum()
    assert len(counts) == 13
    assert (counts[3:] > 0).all()
    assert chi_square(counts[3:]) < 3


def test_bits_are_balanced_everywhere() -> None:
    tokens = Stream(make_task("parity"), "train", 0, 10_000, 20, 20).batch(0).tokens
    ones = (tokens == 2).mean(0)
    assert abs(ones - 0.5).max() < 0.025  # five standard deviations
    both = (tokens[:, 1:] == tokens[:, :-1]).mean(0)  # neighbours are independent
    assert abs(both - 0.5).max() < 0.025


@pytest.mark.parametrize(
    ("name", "count"),
    [("S5", 120), ("S5_only_swaps", 11), ("S5_up_to_3", 31), ("A5", 60), ("A4_x_Z5", 60)],
    ids=lambda value: str(value),
)
def test_elements_are_uniform(name: str, count: int) -> None:
    task = make_task(name)
    tokens = Stream(task, "train", 0, 2000, 20, 20).batch(0).tokens[:, 1:]
    ids, counts = np.unique(tokens, return_counts=True)
    assert list(ids) == list(task.inputs)
    assert len(ids) == count
    assert chi_square(counts) < 2


def test_swaps() -> None:
    assert set(make_task("S5_only_swaps").inputs) == SWAPS


def test_up_to_3() -> None:
    inputs = make_task("S5_up_to_3").inputs
    assert len(set(inputs)) == 31
    moved = (make_task("S5").group.permutations[inputs] != np.arange(5)).sum(1)
    assert sorted(moved) == [0] + [2] * 10 + [3] * 20
    assert set(inputs) > SWAPS


def test_up_to_all_points_is_everything() -> None:
    np.testing.assert_array_equal(make_task("S5_up_to_5").inputs, np.arange(120))


@pytest.mark.parametrize("name", ["S5", "S5_only_swaps", "S5_up_to_3"])
def test_vocabulary_of_s5(name: str) -> None:
    task = make_task(name)
    assert (len(task.vocab), task.pad, task.bos) == (127, 120, 121)
    assert task.vocab[:120] == tuple(map(str, range(120)))
    assert task.vocab[120:] == ("PAD", "BOS", "UNK", "EOS", "SEP", "CLS", "MASK")


def test_vocabulary_with_a_special_filler() -> None:
    task = make_task("S5", tokens_per_element=4, filler="special")
    assert (len(task.vocab), task.pad, task.bos) == (128, 121, 122)
    assert task.vocab[120:123] == ("FILL", "PAD", "BOS")


@pytest.mark.parametrize(
    "options",
    [{"tokens_per_element": 4, "filler": "repeat"}, {"filler": "special"}],
    ids=["repeated", "one token"],
)
def test_vocabulary_without_a_special_filler(options: dict[str, object]) -> None:
    task = make_task("S5", **options)
    assert (len(task.vocab), task.pad, task.bos) == (127, 120, 121)


def test_vocabulary_of_parity() -> None:
    task = make_task("parity")
    assert (task.vocab, task.pad) == (("PAD", "0", "1"), 0)


@pytest.mark.parametrize(
    ("name", "chance"),
    [("parity", 1 / 2), ("S5_only_swaps", 1 / 120), ("Z60", 1 / 60), ("A4_x_Z5", 1 / 60)],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_chance(name: str, chance: float) -> None:
    assert make_task(name).chance == chance
