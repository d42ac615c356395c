"""Every row that the reference generators made is reproduced, and none is left out."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from statetrack.tasks import IGNORE, make_task
from tests.golden import read

REPEAT_4 = {"tokens_per_element": 4, "filler": "repeat"}
PLAIN_GROUPS = ["S3", "S5", "A5", "Z60", "A4_x_Z5"]

# group, variant and source of the golden rows -> our name and options
WORD_PROBLEMS: dict[tuple[str, str, str], tuple[str, dict[str, Any]]] = {
    **{(g, "full", "word-problem"): (g, {}) for g in PLAIN_GROUPS},
    **{(g, "full", "deltaproduct"): (g, {}) for g in PLAIN_GROUPS},
    ("S5", "only_swaps", "deltaproduct"): ("S5_only_swaps", {}),
    ("S5", "limit_to_3", "deltaproduct"): ("S5_up_to_3", {}),
    ("S5", "4_tokens", "deltaproduct"): ("S5", REPEAT_4),
    ("S5", "only_swaps_hard", "deltaproduct"): ("S5", REPEAT_4),
    ("Z60", "2_tokens", "deltaproduct"): ("Z60", {"tokens_per_element": 2, "filler": "repeat"}),
    ("S5", "4_tokens_s_token_only_input", "deltaproduct"): (
        "S5",
        {"tokens_per_element": 4, "filler": "special"},
    ),
    ("S5", "4_tokens_s_token", "deltaproduct"): (
        "S5",
        {"tokens_per_element": 4, "filler": "special_both"},
    ),
}


def word_problem_rows(key: tuple[str, str, str]) -> list[dict[str, Any]]:
    rows = read("group_word_problem")
    return [row for row in rows if (row["group"], row["variant"], row["source"]) == key]


def parity_rows() -> list[dict[str, Any]]:
    rows = [row for row in read("xlstm_formal_language") if row["task"] == "parity"]
    assert Counter(row["split"] for row in rows) == {"train": 200, "test": 100}
    return rows


def test_no_kind_of_word_problem_is_left_out() -> None:
    rows = read("group_word_problem")
    counts = Counter((row["group"], row["variant"], row["source"]) for row in rows)
    assert counts == dict.fromkeys(WORD_PROBLEMS, 100)


@pytest.mark.parametrize("key", WORD_PROBLEMS, ids=" ".join)
def test_word_problem(key: tuple[str, str, str]) -> None:
    name, options = WORD_PROBLEMS[key]
    task = make_task(name, **options)
    rows = word_problem_rows(key)
    inputs = np.array([[task.bos, *row["input"]] for row in rows])
    targets = np.array([[task.bos, *row["target"]] for row in rows])
    assert inputs.shape == targets.shape == (100, task.input_size(32))
    np.testing.assert_array_equal(task.solve(inputs), targets)


@pytest.mark.parametrize("variant", ["only_swaps", "limit_to_3"])
def test_restricted_inputs(variant: str) -> None:
    key = ("S5", variant, "deltaproduct")
    used = {token for row in word_problem_rows(key) for token in row["input"]}
    assert used == set(make_task(WORD_PROBLEMS[key][0]).inputs)


def test_parity() -> None:
    task = make_task("parity")
    for row in parity_rows():
        assert row["vocab_size"] == len(task.vocab)
        assert row["pad_id"] == task.pad
        *bits, answer = row["tokens"]
        assert len(bits) == task.input_size(row["unpadded_length"])
        expected = [IGNORE] * (len(bits) - 1) + [answer]
        np.testing.assert_array_equal(task.solve(np.array([bits])), [expected])


def test_parity_padded_to_the_context() -> None:
    rows = parity_rows()
    tokens = np.zeros((300, 255), dtype=np.int64)
    targets = np.full((300, 255), IGNORE)
    for i, row in enumerate(rows):
        answer = row["mask_position"]
        tokens[i, :answer] = row["tokens"][:answer]
        targets[i, answer - 1] = row["target"]
    np.testing.assert_array_equal(make_task("parity").solve(tokens), targets)
