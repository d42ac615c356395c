"""Tasks by name: what the registry offers, the round trip through JSON, and every mistake."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from statetrack.config import from_dict, hints, to_dict
from statetrack.errors import UserError
from statetrack.tasks import FAMILIES, Stream, Task, generator, make_task
from statetrack.tasks.dataset import Dataset
from statetrack.tasks.parity import Parity
from tests.tasks.variants import EXAMPLES, VARIANTS, each


def test_families() -> None:
    assert {"parity", "word problem"} <= {family.family for family in FAMILIES}
    assert len({family.family for family in FAMILIES}) == len(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.family)
def test_examples_belong_to_their_family(family: type[Task]) -> None:
    assert family.examples or family is Dataset
    for example in family.examples:
        task = make_task(example)
        assert type(task) is family
        assert task.name == example


@pytest.mark.parametrize("name", EXAMPLES)
def test_only_one_family_claims_a_name(name: str) -> None:
    assert sum(family.matches(name) for family in FAMILIES) == 1


@each(VARIANTS)
def test_vocabularies(task: Task) -> None:
    assert len(set(task.vocab)) == len(task.vocab)
    assert task.vocab[task.pad] == "PAD"


@each(VARIANTS)
def test_round_trip(task: Task) -> None:
    data = json.loads(json.dumps(to_dict(task)))
    assert next(iter(data)) == "name"
    again = from_dict(Task, data, "task")
    assert type(again) is type(task)
    assert again == task
    assert make_task(**data) == task


NUMBERS = [
    pytest.param(family.examples[0], option, id=f"{family.examples[0]} {option}")
    for family in FAMILIES
    for option, kind in hints(family).items()
    if kind is int
]


@pytest.mark.parametrize("number", [0, 10**9], ids=["none", "more than memory holds"])
@pytest.mark.parametrize(("name", "option"), NUMBERS)
def test_numbers_have_limits(name: str, option: str, number: int) -> None:
    with pytest.raises(UserError, match=rf"^{option} must lie in [12]\.\.[0-9,]+; got {number}$"):
        make_task(name, **{option: number})


def test_numbers_that_have_limits() -> None:
    options = {param.values[1] for param in NUMBERS}
    assert {"modulus", "cycle_size", "keys", "symbols", "pieces", "tokens_per_element"} <= options


def test_default_supervision() -> None:
    assert make_task("parity").supervision == "last"
    assert make_task("S5").supervision == "dense"


@pytest.mark.parametrize("name", ["nonsense", "", "Parity", "parity ", "s5", "S", "5S"])
def test_an_unknown_task_lists_the_nearest(name: str) -> None:
    said = f"unknown task {name!r}; nearest of {len(EXAMPLES)} known: "
    with pytest.raises(UserError, match=re.escape(said)) as error:
        make_task(name)
    listed = str(error.value).removeprefix(said).split(", ")
    assert len(set(listed)) == 4
    assert set(listed) <= set(EXAMPLES)
    meant = {"Parity": "parity", "parity ": "parity", "s5": "S5", "5S": "S5", "S": "S5"}
    assert name not in meant or meant[name] in listed


@pytest.mark.parametrize(
    "name",
    ["Q9", "S5_x_", "S5_", "S0", "S5_swaps", "S5_up_to_", "S5_up_to_x", "S5_up_to_\u0663", "S5\n"],
    ids=ascii,
)
def test_an_unknown_group(name: str) -> None:
    with pytest.raises(UserError, match=re.escape(repr(name))):
        make_task(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("S8", "group S8 has 40,320 elements"),
        ("S8_only_swaps", "group S8 has 40,320 elements"),
        ("Z1", "group Z1: the modulus must be at least 2"),
        ("A2", "A2 is trivial"),
        ("S5_up_to_1", "S5_up_to_1: only the identity"),
        ("S5_up_to_0", "S5_up_to_0: only the identity"),
        ("A5_only_swaps", "A5_only_swaps: only the identity"),
        ("Z60_only_swaps", "Z60 is not given by permutations"),
        ("A4_x_Z5_up_to_3", "A4_x_Z5 is not given by permutations"),
    ],
    ids=lambda value: value if " " not in value else "",
)
def test_a_group_that_will_not_do(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_task(name)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("parity", {"tokens_per_element": 2}, "unknown key 'tokens_per_element' in task"),
        ("S5", {"modulus": 3}, "unknown key 'modulus' in task; known: .*tokens_per_element"),
        ("parity", {"supervision": "all"}, "supervision must be one of last, dense; got 'all'"),
        ("S5", {"supervision": None}, "supervision must be one of last, dense; got None"),
        (
            "S5",
            {"filler": "zero"},
            "filler must be one of special, repeat, special_both; got 'zero'",
        ),
        ("S5", {"tokens_per_element": 0}, "tokens_per_element must lie in 1..*; got 0"),
        ("S5", {"tokens_per_element": -2}, "tokens_per_element must lie in 1..*; got -2"),
        ("S5", {"tokens_per_element": 1.5}, "tokens_per_element must be a whole number; got 1.5"),
        ("S5", {"tokens_per_element": True}, "tokens_per_element must be a whole number; got True"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_options_that_will_not_do(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_task(name, **options)


def test_options_are_checked_without_make_task() -> None:
    with pytest.raises(UserError, match="supervision must be one of last, dense; got 'all'"):
        Parity(supervision="all")  # type: ignore[arg-type]


def stream(name: str, low: int, high: int, **options: Any) -> Stream:
    options = {"split": "train", "data_seed": 0, "size": 4, **options}
    return Stream(make_task(name), min_length=low, max_length=high, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: stream("S5", 0, 3), "the length of S5 must be at least 1; got 0"),
        (lambda: stream("S5", -1, 3), "the length of S5 must be at least 1; got -1"),
        (lambda: stream("parity", 1, 3), "the length of parity must be at least 2; got 1"),
        (lambda: stream("parity", 9, 8), "the greatest length 8 is below the least, 9"),
        (lambda: stream("parity", 3, 8, size=0), "the batch size must be at least 1; got 0"),
        (
            lambda: make_task("parity").sample(np.random.default_rng(0), np.array([5, 1])),
            "the length of parity must be at least 2; got 1",
        ),
    ],
    ids=["length 0", "length -1", "parity length 1", "max below min", "empty batch", "sample"],
)
def test_lengths_that_will_not_do(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_least_length_will_do(name: str) -> None:
    least = make_task(name).min_length
    assert (stream(name, least, least).batch(0).targets >= 0).any(1).all()


@pytest.mark.parametrize(
    ("name", "token", "message"),
    [
        ("parity", 3, r"parity: token ids must lie in 0\.\.2"),
        ("parity", -1, r"parity: token ids must lie in 0\.\.2"),
        ("S5", 127, r"S5: token ids must lie in 0\.\.126"),
        ("S5", -1, r"S5: token ids must lie in 0\.\.126"),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
def test_token_ids_out_of_range(name: str, token: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_task(name).solve(np.array([[1, 1], [1, token]]))


@pytest.mark.parametrize("shape", [(3,), (1, 2, 3)], ids=str)
def test_solve_takes_a_batch(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=re.escape(f"[B, T]; got shape {list(shape)}")):
        make_task("parity").solve(np.ones(shape, dtype=int))


@pytest.mark.parametrize("data_seed", [-1, 2**32])
def test_data_seed_out_of_range(data_seed: int) -> None:
    with pytest.raises(UserError, match=f"data_seed must lie in .*; got {data_seed}"):
        stream("parity", 3, 8, data_seed=data_seed).batch(0)


def test_unknown_split() -> None:
    with pytest.raises(UserError, match="split must be one of train, validation, test; got 'dev'"):
        generator(0, "dev", 0)
    with pytest.raises(UserError, match="split must be one of train, validation, test; got 'dev'"):
        stream("parity", 3, 8, split="dev").batch(0)
