"""What is left to ask when a finite set has been trained on."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from statetrack.errors import UserError
from statetrack.tasks import FiniteDataset, HeldOut, make_task
from statetrack.tasks.data import sequence_keys

PARITY = make_task("parity")


def trained(size: int, length: int, name: str = "parity") -> FiniteDataset:
    return FiniteDataset(make_task(name), "train", 0, size, length, batch_size=1)


def rows(tokens: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(row) for row in tokens.tolist()]


def drawn(train: FiniteDataset, split: str, count: int = 400) -> list[tuple[int, ...]]:
    held_out = HeldOut(train, split)
    batch = held_out.sample(train.task, np.random.default_rng(5), np.full(count, train.length))
    np.testing.assert_array_equal(batch.targets, train.task.solve(batch.tokens))
    assert batch.lengths.tolist() == [train.length] * count
    return rows(batch.tokens)


@pytest.mark.parametrize(
    ("name", "size", "length"), [("parity", 20, 7), ("S3", 600, 4), ("copying", 100, 2)], ids=str
)
def test_no_sequence_is_in_two_splits(name: str, size: int, length: int) -> None:
    train = trained(size, length, name)
    known = set(rows(train.tokens))
    validation, test = (set(drawn(train, split)) for split in ("validation", "test"))
    assert len(known) == size
    assert len(validation) > 10
    assert len(test) > 10
    assert known.isdisjoint(validation)
    assert known.isdisjoint(test)
    assert validation.isdisjoint(test)


def test_together_the_splits_are_everything() -> None:
    train = trained(20, 7)
    found = [set(drawn(train, split)) for split in ("validation", "test")]
    assert set(rows(train.tokens)).union(*found) == set(product((1, 2), repeat=6))


def test_what_is_left_is_drawn_evenly_and_has_both_answers() -> None:
    """Half of 2^12 strings are trained on: of the others, no more odd than even ones."""
    found = drawn(trained(2048, 13), "test", 2000)
    assert len(set(found)) > 700
    odd = np.mean([row.count(2) % 2 for row in found])
    assert 0.45 < odd < 0.55


@pytest.mark.parametrize("split", ["validation", "test"])
def test_one_sequence_is_enough_or_none_is_left(split: str) -> None:
    """Of 64 strings 63 are trained on: the last one falls to one of the splits."""
    train = trained(63, 7)
    left = np.array(sorted(set(product((1, 2), repeat=6)) - set(rows(train.tokens))))
    (key,) = sequence_keys(left, 0)
    if (int(key) >> 63) == ("validation", "test").index(split):
        assert set(drawn(train, split)) == set(rows(left))
    else:
        said = f"parity has no sequence of length 7 left for {split}: 63 of them are trained on"
        with pytest.raises(UserError, match=said):
            drawn(train, split)


def test_other_lengths_are_drawn_as_ever() -> None:
    train = trained(16, 5)  # all there are
    lengths = np.array([3, 4, 6, 9])
    got = HeldOut(train, "test").sample(PARITY, np.random.default_rng(5), lengths)
    plain = PARITY.sample(np.random.default_rng(5), lengths)
    np.testing.assert_array_equal(got.tokens, plain.tokens)
    np.testing.assert_array_equal(got.targets, plain.targets)


def test_mixed_lengths() -> None:
    train = trained(8, 5)
    lengths = np.repeat([4, 5, 6], 50)
    got = HeldOut(train, "test").sample(PARITY, np.random.default_rng(5), lengths)
    assert got.lengths.tolist() == lengths.tolist()
    assert ((got.tokens != 0).sum(1) == lengths - 1).all()
    here = rows(got.tokens[lengths == 5][:, :4])
    assert set(here).isdisjoint(rows(train.tokens))
    np.testing.assert_array_equal(got.targets, PARITY.solve(got.tokens))


def test_prefixes() -> None:
    """Of longer sequences, read as sequences of every length, the prefix must not be known."""
    train = trained(10, 5)
    lengths, rng = np.full(200, 9), np.random.default_rng(5)
    got = HeldOut(train, "test").sample(PARITY, rng, lengths, prefixes=True)
    assert got.tokens.shape == (200, 8)
    assert set(rows(got.tokens[:, :4])).isdisjoint(rows(train.tokens))
    assert len(set(rows(got.tokens[:, 4:]))) == 16  # what follows is free
    short = HeldOut(train, "test").sample(PARITY, rng, np.full(200, 3), prefixes=True)
    assert len(set(rows(short.tokens))) == 4


def test_training_is_no_split_to_hold_out() -> None:
    with pytest.raises(UserError, match="split must be one of validation, test; got 'train'"):
        HeldOut(trained(8, 5), "train")


def test_keys_are_those_of_sequences() -> None:
    """By the definition, in whole numbers; padding at the right counts for nothing."""
    tokens = np.random.default_rng(0).integers(0, 5, (300, 7))
    weights = np.random.default_rng(0x6B6579).integers(0, 2**64, 7, dtype=np.uint64).tolist()
    wanted = [sum((t - 3) * w for t, w in zip(row, weights, strict=True)) for row in rows(tokens)]
    assert sequence_keys(tokens, 3).tolist() == [key % 2**64 for key in wanted]
    assert sequence_keys(tokens.astype(np.int16), 3).tolist() == [key % 2**64 for key in wanted]
    padded = np.concatenate([tokens, np.full((300, 2), 3)], axis=1)
    assert sequence_keys(padded, 3).tolist() == sequence_keys(tokens, 3).tolist()
