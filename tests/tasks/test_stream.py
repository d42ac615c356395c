"""Streams: a batch depends on the data seed, the split and the step, and on nothing else."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from statetrack.tasks import Batch, Task, generator, make_task
from tests.tasks.streams import digest, stream
from tests.tasks.test_first_batches_practice import FIRST_BATCH as PRACTICE
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
    "modular_arithmetic": "326b6794da1270ad3f3fe2cd445251f4fc7ce0435696bfd086bf7c87bd35007b",
    "modular_arithmetic_brackets": (
        "55ea77e7a2af07377b926f5325c341ef122ce2856d5a6d44866af21c45c036e8"
    ),
    "cycle_navigation": "4437d72b3c8b0e2d536a9a6bba9bffd09bd210e5a29ac89e74d46038fc4a2794",
    "even_pairs": "12a9efbc53b5eeac2fbefa180f02b1e1650caa469c437df09ce9cec7b85de093",
    "chomsky/odds_first": "b4d923484eb3aa9e1730f7a9a9ea63429eb7a1b65d478c933953ab04f457543e",
    "chomsky/duplicate_string": "24029502b0cff2dcec0980c18608618004684ac73f769c3fc81c737e84071342",
    "chomsky/missing_duplicate_string": (
        "1efcc9a44f08e0e7924bd9812efdb502d64a7322c852dda53e7d77e977b5d0d4"
    ),
    "chomsky/bucket_sort": "9d29dd63b76c3c32fce2bba75b2b94bd7654cd2b33c631a9c7bb602f6f247c82",
    "chomsky/compute_sqrt": "911c5f13d34bfdb5f27ad6bd201bb114d3496cdcd9f2f5a096c8dad7a0e46f67",
    "chomsky/binary_addition": "f477edb8cf4b8f6982febe976534fe1f5aaebbfa1ea5fdbe4c89bb045ae50f78",
    "chomsky/binary_multiplication": (
        "1d22ebd93a320c3e5e9a7fee75dddb4c96e2e1a0547bdcfb1f04f313bf6e06e7"
    ),
    "chomsky/reverse_string": "f1a68188b76651b8c337f8254214ceb2c0dc11e7302551685706a33b32f4a4a8",
    "chomsky/stack_manipulation": (
        "c460c4963f02fb9a4a8d51542867f400ca88dc69bf8886557daab6cf5ff49200"
    ),
    "chomsky/modular_arithmetic_brackets": (
        "13d4441604fbc3a56744fdc484ea70b31548234118629404862028a2cdfb4de4"
    ),
    "chomsky/modular_arithmetic_brackets_nomult": (
        "e06343b8004038c3db395c3b4b28d2c4401f183b815873ce35e116aedb305c76"
    ),
    "chomsky/solve_equation": "5d882d0fbe4f0fdb8d10139504688902a07b18844c2cbdf796fa7ce6c92b4970",
    "chomsky/even_pairs": "e751e0932a8220c8f5ab521e9d4c0239e110cd0bcda10d4efec01a45941e26b6",
    "chomsky/parity_check": "609981a02d73bff534a4f7e22ee9a4ab73e94e81253ff7d333231749f16ff8a4",
    "chomsky/cycle_navigation": "5b6ee12208b152ce12db14b5641e84bf46d1e7db9153dd7ace027e378360753b",
    "chomsky/modular_arithmetic": (
        "5cff762c8209bc90b5bec642d10160c96fa8df6f9f49edcda3c410ff9c93934f"
    ),
    "modular_arithmetic dense": "4b24d154338d6f6f19f032514e53bb26f5455729f6a129c207a6a4fc7ee57dee",
    "modular_arithmetic_brackets no mult": (
        "a44fa2a53f692e73c824e44c0a176cfbd064285a21e42a40963234d6e7bcbf26"
    ),
    "cycle_navigation of 6": "9d84cd353a3d26e380f49625c168d27409cff4097a19214097ab41944c36de35",
    "regex:(ab)*": "05defc824cf10a470799eff56f645729953751717d30fc87d32949800769f55a",
    "tomita1": "ec745724ecbb014f316c387cb1e9007d641270549d38cf2cc3f8829af79532dd",
    "tomita2": "8bc8a0e7b0eaa15ce6861eff1ebe1b8a8b8a165fbca1a0a857fbcdbd9a901b02",
    "tomita3": "aba35191262cd6493ad948e0ba00fe7dac216df977adce3527f4ea5d73fa7dbc",
    "tomita4": "8efbf64393f88f57dcfb0136b9ee374180817d254097fe5805840067641ffb10",
    "tomita5": "8a704cede594f7bc0c2c71b81844e7cbe8f1ec63b8689f0a551ffdc59843ca69",
    "tomita6": "457f71900af7fb8ed6eccbf7d1c2e445047b979bc86d38a93684bb018a9073e3",
    "tomita7": "2377dbb0c8a130f8efbcb077e8b57c8ea29c47e9fa5bb8e4f2e026d189cc24da",
    "flip_flop": "66a017ad5a5596d6f9fac7ba95e0116db05c43e96a71a36c29a75f0c74d35408",
    "dyck1_depth3": "7d9c55d8eebdd568d167b3c4bfab2c71d8ccd3d5e0b0cd16c672a3b5ae68bc8a",
    "gridworld5": "7511bccc06682f7fbdaee2aa5ff0767e22bf00f1285c4bdfac17918d33b53cd4",
    "random_dfa8_seed0": "c31266c0bf9c449937b75501b7e4d7f9b8b0fb25c6e4535966f4ec900203d2e6",
    "tomita5 dense": "56ab037d00b1205555d87fa76a38bb74fef93b05519cffd0a9324a82eafb81b6",
    "tomita4 membership": "5a6e6d93e61faa0d2dcdb009b88fb8bdf81f374e23002d040b4e041df4d865ad",
    "dyck1_depth3 next symbols": "129968a3674855819a2afbb8bac34e26ac79dd3629d9abe2a58f32042f2123d9",
}


def same(a: Batch, b: Batch) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_every_example_has_a_digest() -> None:
    assert {*EXAMPLES, "S5 4 tokens special"} <= FIRST_BATCH.keys() | PRACTICE.keys()
    assert not FIRST_BATCH.keys() & PRACTICE.keys()


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
