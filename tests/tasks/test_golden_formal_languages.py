"""Every row of the formal languages that the reference generators made, and none left out."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from statetrack.tasks import IGNORE, make_task
from statetrack.tasks.chomsky import ChomskyTask
from tests.golden import read
from tests.tasks.formal_reference import CHOMSKY

# task, mult and vocabulary size of the golden rows -> our name and options
AUTHORS: dict[tuple[str, bool | None, int], tuple[str, dict[str, Any]]] = {
    ("modular_arithmetic", None, 10): ("modular_arithmetic", {}),
    ("modular_arithmetic_with_brackets", True, 12): ("modular_arithmetic_brackets", {}),
    ("modular_arithmetic_with_brackets", False, 12): (
        "modular_arithmetic_brackets",
        {"mult": False},
    ),
    ("cycle_navigation", None, 9): ("cycle_navigation", {}),
    ("cycle_navigation", None, 10): ("cycle_navigation", {"cycle_size": 6}),
    ("even_pairs", None, 3): ("even_pairs", {}),
}
ELSEWHERE = {("parity", None, 3)}  # in test_golden


def key(row: dict[str, Any]) -> tuple[str, bool | None, int]:
    return row["task"], row["mult"], row["vocab_size"]


def test_no_kind_of_the_authors_is_left_out() -> None:
    rows = read("xlstm_formal_language")
    counts = Counter((*key(row), row["split"]) for row in rows)
    kinds = AUTHORS.keys() | ELSEWHERE
    expected = {(*kind, split): n for kind in kinds for split, n in [("train", 200), ("test", 100)]}
    assert counts == expected


@pytest.mark.parametrize("kind", AUTHORS, ids=str)
def test_authors(kind: tuple[str, bool | None, int]) -> None:
    name, options = AUTHORS[kind]
    task = make_task(name, **options)
    rows = [row for row in read("xlstm_formal_language") if key(row) == kind]
    assert len(rows) == 300
    tokens = np.full((300, 255), task.pad)
    targets = np.full((300, 255), IGNORE)
    for i, row in enumerate(rows):
        assert (row["vocab_size"], row["pad_id"]) == (len(task.vocab), task.pad)
        answer = row["mask_position"]
        assert row["tokens"][answer] == row["target"]
        # the length that was drawn counts the answer; with brackets, one PAD more
        length = row["unpadded_length"] + ("brackets" in name)
        assert answer == task.input_size(length)
        tokens[i, :answer] = row["tokens"][:answer]
        targets[i, answer - 1] = row["target"]
    np.testing.assert_array_equal(task.solve(tokens), targets)


def tape(task: ChomskyTask, row: dict[str, Any]) -> list[int]:
    return row["input"] + [task.out] * row["output_length"]


def test_no_task_of_the_suite_is_left_out() -> None:
    rows = read("chomsky_tasks")
    assert Counter(row["task"] for row in rows) == dict.fromkeys(CHOMSKY, 144)


@pytest.mark.parametrize("name", CHOMSKY)
def test_chomsky(name: str) -> None:
    task = make_task(f"chomsky/{name}")
    rows = [row for row in read("chomsky_tasks") if row["task"] == name]
    tokens = np.full((144, task.input_size(64)), task.pad)
    targets = np.full_like(tokens, IGNORE)
    scored = np.zeros_like(tokens)
    for i, row in enumerate(rows):
        line, inputs = tape(task, row), len(row["input"])
        assert (row["input_size"], row["output_size"]) == (task.out, task.classes)
        assert len(line) == task.input_size(row["length"])
        tokens[i, : len(line)] = line
        targets[i, inputs : len(line)] = row["output"]
        scored[i, inputs : len(line)] = row["accuracy_mask"]
        alone = task.solve(np.array([line]))[0]
        assert alone.tolist() == targets[i, : len(line)].tolist()
        assert CHOMSKY[name](row["input"]) == row["output"]  # the tests' own evaluator
    np.testing.assert_array_equal(task.solve(tokens), targets)
    np.testing.assert_array_equal(task.scored(targets), scored)


def test_chomsky_tapes() -> None:
    rows = [
        row
        for row in read("chomsky_tapes")
        if (row["mode"], row["computation_steps_mult"]) == ("empty_targets", 0)
    ]
    assert Counter(row["task"] for row in rows) == dict.fromkeys(CHOMSKY, 3)
    for row in rows:
        task = make_task(f"chomsky/{row['task']}")
        assert row["tape_vocab"] == task.pad  # ours has PAD besides
        assert len(row["tape"]) == task.input_size(row["length"])
        targets = np.full(len(row["tape"]), IGNORE)
        targets[row["read_positions"]] = row["target"]
        np.testing.assert_array_equal(task.solve(np.array([row["tape"]])), [targets])


def test_chomsky_sizes() -> None:
    rows = read("chomsky_meta")
    assert {row["task"] for row in rows} == CHOMSKY.keys()
    for row in rows:
        task = make_task(f"chomsky/{row['task']}")
        assert f" {row['level']}: " in task.family
        assert task.chance == pytest.approx(row["chance_per_token"])
        assert task.terminated == row["masks_after_terminator"]
        for length, outputs in row["output_length"].items():
            sizes = task.output_sizes(task.input_sizes(np.array([int(length)])))
            assert sizes.tolist() == [outputs]
            assert task.metric == "token" or outputs == 1
