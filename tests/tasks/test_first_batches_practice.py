"""Tasks closer to practice and recall controls: committed first batches, and what all share."""

from __future__ import annotations

import json

import numpy as np
import pytest

from statetrack.config import from_dict, to_dict
from statetrack.errors import UserError
from statetrack.tasks import IGNORE, Task, make_task
from statetrack.tasks.statements import fill, fillable
from tests.tasks.streams import digest, stream

VARIANTS: dict[str, Task] = {
    **{name: make_task(name) for name in ("board", "boxes", "programs")},
    **{name: make_task(name) for name in ("mqar", "copying", "induction")},
    "board 3 pieces last": make_task("board", pieces=3, supervision="last"),
    "boxes without swaps": make_task("boxes", swaps=False),
    "programs without if": make_task("programs", conditionals=False),
    "mqar uniform": make_task("mqar", pairs=4, keys=8, values=8, fillers=4, power_a=1.0),
}

# The first training batch of each task, as sha256 of its tokens and targets. A change of one of
# these changes the data of every run, and with it every number that was published: on purpose only.
FIRST_BATCH = {
    "board": "5561b75a24327ece22ddb71c939302c84e2f488fe162b0891c9acc0590048800",
    "boxes": "3e28cb22b256d4ae8d907f9682519c15214aa45ebc36fa756d5a447fe6a0e70e",
    "programs": "dc9185db2c002a1c098344c3ecd199d86d8fe289e3877e3360c6d6e07d77dac1",
    "mqar": "0f3f06459c55e746d9eb77c80d68503e1f57e89ab5c95aa7db74c775a6a2e1ab",
    "copying": "47276824dab16fca90c9b9c5b60d153ea26e7bcf48f510f06c07be954207a5fd",
    "induction": "83608636a566d11b1cc9b5e6e452c4264d25f001975ae03b989d3c00008b987c",
    "board 3 pieces last": "c3b99899f72e391dd7b5dda701bbb2277c8e96b81c98ff229f17cbedffa328cc",
    "boxes without swaps": "9334f79578e6ffee0e999eae4d4e10c0bf903c7fa043ae721c53ca18cc80a640",
    "programs without if": "c454a8c37aaf7f10b3d9e77e9ae36a916b501b025665d8e515ebf340280d35b3",
    "mqar uniform": "18056ee51e23ba90cff1a0ab86fd4757a316b2ab63e03b6475c7c870bb6507ec",
}

each = pytest.mark.parametrize("task", VARIANTS.values(), ids=VARIANTS)


def test_every_variant_has_a_digest() -> None:
    assert VARIANTS.keys() == FIRST_BATCH.keys()


@pytest.mark.parametrize("label", VARIANTS)
def test_the_first_batch(label: str) -> None:
    assert digest(stream(VARIANTS[label]).batch(0)) == FIRST_BATCH[label]


@each
def test_batches_differ_by_seed_split_and_step(task: Task) -> None:
    keys = [(s, split, step) for s in (0, 1) for split in ("train", "test") for step in (0, 1)]
    digests = {digest(stream(task, split, seed).batch(step)) for seed, split, step in keys}
    assert len(digests) == 8
    assert digests == {
        digest(stream(task, split, seed).batch(step)) for seed, split, step in reversed(keys)
    }


@each
def test_mixed_lengths(task: Task) -> None:
    lengths = task.min_length + np.array([0, 9, 2, 33, 1, 12, 33, 5])
    batch = task.sample(np.random.default_rng(0), lengths)
    sizes = np.array([task.input_size(int(length)) for length in lengths])
    assert batch.tokens.shape == batch.targets.shape == (8, sizes.max())
    assert batch.tokens.dtype == batch.targets.dtype == np.int64
    padding = np.arange(sizes.max()) >= sizes[:, None]
    np.testing.assert_array_equal(batch.tokens == task.pad, padding)
    assert (batch.targets[padding] == IGNORE).all()
    assert (batch.targets != IGNORE).any(1).all()
    assert batch.tokens.min() >= 0
    assert max(batch.tokens.max(), batch.targets.max()) < len(task.vocab)
    for row, targets, size in zip(batch.tokens, batch.targets, sizes, strict=True):
        np.testing.assert_array_equal(task.solve(row[None, :size])[0], targets[:size])


@pytest.mark.parametrize("label", [label for label in VARIANTS if "last" not in label])
def test_a_prefix_never_knows_what_follows(label: str) -> None:
    """Targets depend on what was read: cutting the input changes none of those that remain."""
    task = VARIANTS[label]
    batch = task.sample(np.random.default_rng(1), np.full(4, task.min_length + 20))
    for size in range(batch.tokens.shape[1]):
        solved = task.solve(batch.tokens[:, :size])
        np.testing.assert_array_equal(solved, batch.targets[:, :size])


@each
def test_nothing_but_padding(task: Task) -> None:
    assert (task.solve(np.full((3, 40), task.pad)) == IGNORE).all()
    for shape in ((2, 0), (0, 3)):
        assert task.solve(np.empty(shape, dtype=np.int64)).shape == shape


@each
def test_any_ids_will_do(task: Task) -> None:
    """Nonsense has no right answer, but it is no error either, and is left as it is."""
    tokens = np.random.default_rng(0).integers(0, len(task.vocab), (50, 60))
    before = tokens.copy()
    targets = task.solve(tokens)
    np.testing.assert_array_equal(tokens, before)
    assert targets.min() >= IGNORE
    assert (targets[tokens == task.pad] == IGNORE).all()


@each
def test_the_description(task: Task) -> None:
    assert len(set(task.vocab)) == len(task.vocab)
    assert task.vocab[task.pad] == "PAD"
    assert 0 < task.chance <= 1 / 2
    again = from_dict(Task, json.loads(json.dumps(to_dict(task))), "task")
    assert again == task


@each
def test_too_short(task: Task) -> None:
    with pytest.raises(UserError, match=f"the length of {task.name} must be .*at least"):
        stream(task).task.sample(np.random.default_rng(0), np.array([task.min_length - 1]))


@pytest.mark.parametrize("sizes", [(2, 3), (4,), (4, 5, 6, 7), (6, 10, 15), (1,)], ids=str)
@pytest.mark.parametrize("top", [0, 1, 7, 40])
def test_fillable(sizes: tuple[int, ...], top: int) -> None:
    reachable = {0}
    for total in range(1, top + 1):
        if any(total - size in reachable for size in sizes):
            reachable.add(total)
    assert np.flatnonzero(fillable(sizes, top)).tolist() == sorted(reachable)


def test_forms_fill_rows_exactly() -> None:
    forms = [(1, 1), (2, 2, 2), (3, 3, 3, 3, 3)]
    totals = np.array([0, 2, 3, 4, 5, 6, 7, 30, 0])
    rows = fill(np.random.default_rng(0), forms, totals)
    assert rows.shape == (9, 30)
    for row, total in zip(rows.tolist(), totals.tolist(), strict=True):
        assert row[total:] == [0] * (30 - total)
        position = 0
        while position < total:
            form = row[position]
            size = (0, 2, 3, 5)[form]
            assert row[position : position + size] == [form] * size
            position += size
        assert position == total


def test_forms_are_uniform_among_those_that_fit() -> None:
    first = fill(np.random.default_rng(0), [(1, 1), (2, 2, 2), (3, 3)], np.full(9000, 30))[:, 0]
    assert abs(np.bincount(first)[1:] / 3000 - 1).max() < 0.08
    # a rest of 4 is two forms of 2
    short = fill(np.random.default_rng(0), [(1, 1), (2, 2, 2), (3, 3)], np.full(900, 4))
    assert set(short.ravel().tolist()) == {1, 3}
