"""Streams: a batch depends on the data seed, the split and the step, and on nothing else."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest
import torch

from statetrack.tasks import Batch, Stream, Task, generator, make_task
from tests.tasks.variants import EXAMPLES, VARIANTS, each

# The first training batch of each task, as sha256 of its tokens and targets. A change of one of
# these changes the data of every run, and with it every number that was published: on purpose only.
FIRST_BATCH = {
    "parity": "744d0e26648685fb696a1783626d33b947c54c3a4cba1fa61741d00c5950f069",
    "S5": "751b2a0e0f1391c1b7f4d4fb40bf5f60a23c9856f503fc7267e7e8d82a24c18f",
    "S5_only_swaps": "b79a5adee04ca93d7a2460eac2a8921acc8bd61f3a6053d12ccb4a98e1c140bd",
    "S5_up_to_3": "bbe0b6870db0106283e941a794cb34d0635f72428c4d2f27bf365ed35a2e7a60",
    "A5": "923182aead7efcdebe785e46926c6025b48cdc89c31b6374b238aea17d194a3d",
    "Z60": "3229ca62ee896fba9b06bff4d6253e362356b78e7325e0120d07fe53ee6c2e54",
    "A4_x_Z5": "208f95d3b918476ae78c6e60d10ba595022ea6666d4a2138370652b33dab9c69",
    "S5 4 tokens special": "e988a1fe71ef15ec13e1c1c181a29deff1c06423de7b65c385a85053ca72eaa2",
    "S5 4 tokens repeat": "0e133c8807827b045ab2ba28223c525476df491bf4ac85abc3e476b9ffdfcb8e",
}


def stream(task: Task, split: str = "train", data_seed: int = 0) -> Stream:
    return Stream(task, split, data_seed, 8, 3, 40)


def same(a: Batch, b: Batch) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def digest(batch: Batch) -> str:
    content = batch.tokens.astype("<i8").tobytes() + batch.targets.astype("<i8").tobytes()
    return hashlib.sha256(content).hexdigest()


def test_every_example_has_a_digest() -> None:
    assert {*EXAMPLES, "S5 4 tokens special"} <= FIRST_BATCH.keys()


@pytest.mark.parametrize("label", FIRST_BATCH)
def test_the_first_batch(label: str) -> None:
    assert digest(stream(VARIANTS[label]).batch(0)) == FIRST_BATCH[label]


@each(VARIANTS)
def test_a_batch_can_be_had_again(task: Task) -> None:
    assert same(stream(task, "test", 5).batch(7), stream(task, "test", 5).batch(7))


@each(VARIANTS)
def test_the_order_of_calls_does_not_matter(task: Task) -> None:
    forwards, backwards = stream(task), stream(task)
    first = [forwards.batch(step) for step in range(4)]
    second = [backwards.batch(step) for step in (3, 1, 1, 2, 0)]
    for step, other in zip((3, 1, 1, 2, 0), second, strict=True):
        assert same(first[step], other)


@pytest.mark.parametrize("name", ["parity", "S5"])
def test_seeds_splits_and_steps_all_differ(name: str) -> None:
    digests = {
        digest(stream(make_task(name), split, data_seed).batch(step))
        for data_seed in (0, 1, 2, 2**32 - 1)
        for split in ("train", "validation", "test")
        for step in (0, 1, 2, 2**32)
    }
    assert len(digests) == 4 * 3 * 4


@each(VARIANTS)
def test_global_generators_are_neither_used_nor_changed(task: Task) -> None:
    batches = []
    for seed in (1, 2):
        np.random.seed(seed)
        torch.manual_seed(seed)
        random.seed(seed)
        before = np.random.get_state()[1].copy(), torch.get_rng_state(), random.getstate()
        batches.append(stream(task).batch(0))
        after = np.random.get_state()[1], torch.get_rng_state(), random.getstate()
        np.testing.assert_array_equal(before[0], after[0])
        assert torch.equal(before[1], after[1])
        assert before[2] == after[2]
    assert same(*batches)


def test_generators_are_independent_of_each_other() -> None:
    draws = [
        generator(data_seed, split, step).integers(0, 2, 4000)
        for data_seed in (0, 1)
        for split in ("train", "validation")
        for step in (0, 1)
    ]
    agreement = np.corrcoef(draws) - np.eye(len(draws))
    assert abs(agreement).max() < 5 / 4000**0.5  # five standard deviations
