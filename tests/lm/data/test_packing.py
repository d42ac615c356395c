"""Batches of packed windows: a function of the step, shared among processes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from statetrack.errors import UserError
from statetrack.lm.data import PackedBatches, TokenData, write_tokens

SIZES = [3, 0, 17, 1, 1, 40, 8, 2, 25]  # of documents, without EOS


def make_data(folder: Path, sizes: list[int] = SIZES) -> TokenData:
    """Documents of which every token but EOS is different."""
    ends = np.cumsum([1, *sizes]).tolist()
    documents = [range(start, end) for start, end in pairwise(ends)]
    options = {"vocab_size": ends[-1], "eos": 0, "shard_tokens": 7}
    write_tokens(folder / "data", {"train": documents}, **options)
    return TokenData.open(folder / "data")


@pytest.fixture
def data(tmp_path: Path) -> TokenData:
    return make_data(tmp_path)


def windows(batches: PackedBatches, steps: range) -> list[tuple[int, ...]]:
    return [tuple(row) for step in steps for row in batches.batch(step).tokens.tolist()]


@pytest.mark.parametrize("length", [1, 2, 5, 13, 105])
@pytest.mark.parametrize("batch_size", [1, 3, 4])
def test_every_window_once_per_epoch(data: TokenData, length: int, batch_size: int) -> None:
    batches = PackedBatches(data, length, batch_size, seed=3)
    assert batches.num_windows == (data.num_tokens - 1) // length
    flat = data.read(0, data.num_tokens).tolist()
    expected = sorted(
        tuple(flat[i * length : i * length + length + 1]) for i in range(batches.num_windows)
    )
    epochs = 3
    steps = range(-(-epochs * batches.num_windows // batch_size))
    seen = windows(batches, steps)
    for epoch in range(epochs):
        one = seen[epoch * batches.num_windows : (epoch + 1) * batches.num_windows]
        assert sorted(one) == expected
    assert batches.steps_per_epoch == -(-batches.num_windows // batch_size)


def test_a_batch_larger_than_the_data(tmp_path: Path) -> None:
    data = make_data(tmp_path, [6])
    batches = PackedBatches(data, 2, batch_size=10, seed=0)
    seen = windows(batches, range(3))
    assert all(len(set(seen[i : i + 3])) == 3 for i in range(0, 30, 3))


def test_any_step_at_any_time(data: TokenData) -> None:
    """A run that is resumed sees what it would have seen, whatever was asked before."""
    batches = PackedBatches(data, 5, batch_size=4, seed=1)
    in_order = [batches.batch(step).tokens for step in range(30)]
    other = PackedBatches(data, 5, batch_size=4, seed=1)
    for step in (29, 3, 17, 0, 16, 4):
        assert torch.equal(other.batch(step).tokens, in_order[step])


def test_the_order_depends_on_seed_and_epoch(data: TokenData) -> None:
    batches = PackedBatches(data, 5, batch_size=1, seed=1)
    epoch = batches.num_windows
    first, second = windows(batches, range(epoch)), windows(batches, range(epoch, 2 * epoch))
    other = windows(PackedBatches(data, 5, batch_size=1, seed=2), range(epoch))
    assert len({tuple(order) for order in (first, second, other, sorted(first))}) == 4


@pytest.mark.parametrize("world_size", [1, 2, 3, 6])
def test_processes_share_the_global_batch(data: TokenData, world_size: int) -> None:
    batches = PackedBatches(data, 5, batch_size=6, seed=0)
    for step in range(5):
        whole = batches.batch(step).tokens
        for rank in range(world_size):
            own = batches.batch(step, rank, world_size).tokens
            assert torch.equal(own, whole[rank::world_size])


def test_documents_are_kept_apart(data: TokenData) -> None:
    batches = PackedBatches(data, 8, batch_size=4, seed=0, keep_documents_apart=True)
    for step in range(6):
        tokens, bounds = batches.batch(step)
        assert bounds is not None
        assert bounds[0] == 0
        assert bounds[-1] == 4 * 8
        inputs = tokens[:, :-1].reshape(-1)
        # a new sequence starts with each row, and after each EOS
        starts = [i for i in range(32) if i % 8 == 0 or inputs[i - 1] == 0]
        assert bounds[:-1].tolist() == starts
        shared = batches.batch(step, 1, 2)
        assert torch.equal(shared.tokens, tokens[1::2])
        assert shared.cu_seqlens is not None
        assert shared.cu_seqlens[-1] == 2 * 8
    assert PackedBatches(data, 8, 4, seed=0).batch(0).cu_seqlens is None


def test_bounds_are_those_that_layers_take(data: TokenData) -> None:
    from statetrack.layers import DeltaNet

    tokens, bounds = PackedBatches(data, 8, 2, seed=0, keep_documents_apart=True).batch(0)
    torch.manual_seed(0)
    layer = DeltaNet(8, num_heads=2)
    x = torch.randn(1, tokens[:, :-1].numel(), 8)
    y, _ = layer(x, cu_seqlens=bounds)
    assert y.shape == x.shape


def test_bad_requests(data: TokenData) -> None:
    with pytest.raises(UserError, match="too few for context length 1000"):
        PackedBatches(data, 1000, 1, seed=0)
    for length, batch_size, seed in ((0, 1, 0), (1, 0, 0), (1, 1, -1)):
        with pytest.raises(UserError):
            PackedBatches(data, length, batch_size, seed)
    with pytest.raises(UserError, match="4 processes cannot share a batch of 6"):
        PackedBatches(data, 5, 6, seed=0).batch(0, 0, 4)
