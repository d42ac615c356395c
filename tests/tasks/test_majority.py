"""The score of always saying the most frequent answer."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statetrack.errors import UserError
from statetrack.tasks import FAMILIES, IGNORE, Batch, PrefixTask, Task, arithmetic, make_task
from statetrack.tasks.arithmetic import ModularArithmetic
from statetrack.tasks.base import Ints
from statetrack.tasks.baseline import (
    STANDARD_ERROR,
    answers,
    constant_right,
    last_answers,
    measured_majority,
    most_frequent,
)

NAMES = [name for family in FAMILIES for name in family.examples]


def rows_of(targets: Ints, task: Task) -> list[list[int]]:
    """The answers of each sequence."""
    scored = task.scored(targets)
    return [row[where].tolist() for row, where in zip(targets, scored, strict=True)]


def by_hand(task: Task, length: int, count: int = 1500) -> float:
    """Learned from some sequences and scored on others, answer by answer in plain Python."""
    rng = np.random.default_rng(99)
    first, second = (
        rows_of(task.sample(rng, np.full(count, length)).targets, task) for _ in range(2)
    )
    if task.metric == "answer":
        first, second = ([row[-1:] for row in rows] for rows in (first, second))
    seen: dict[int, Counter[int]] = {}
    for row in first:
        for n, answer in enumerate(row):
            seen.setdefault(n, Counter())[answer] += 1
    said = {n: counts.most_common(1)[0][0] for n, counts in seen.items()}
    right = [[said.get(n) == answer for n, answer in enumerate(row)] for row in second]
    if task.metric == "sequence":
        return sum(map(all, right)) / count
    return sum(map(sum, right)) / sum(map(len, right))


@pytest.mark.parametrize("name", NAMES)
def test_every_task_has_one(name: str) -> None:
    task = make_task(name)
    length = max(11, task.min_length)
    assert task.majority(length) == pytest.approx(by_hand(task, length), abs=0.06)


@pytest.mark.parametrize(
    ("name", "length", "expected"),
    [
        pytest.param("even_pairs", 40, 1 / 2, id="even pairs"),
        pytest.param("cycle_navigation", 200, 1 / 5, id="cycle navigation"),
        pytest.param("induction", 40, 1 / 16, id="induction"),
        pytest.param("copying", 20, 1 / 16, id="copying"),
        pytest.param("Z2", 1, 1 / 2, id="one element"),
        pytest.param("Z2", 3, 1 / 8, id="three elements, all to be right"),
        pytest.param("S3", 2, 1 / 36, id="two of six"),
        pytest.param("S5", 40, 0, id="many"),
    ],
)
def test_known_values(name: str, length: int, expected: float) -> None:
    task = make_task(name)
    assert task.majority(length) == pytest.approx(expected, abs=3 * STANDARD_ERROR)


def values_of_brackets(size: int, modulus: int = 5) -> list[np.ndarray]:
    """[modulus] each: how often an expression of so many tokens, up to `size`, has each value."""
    numbers = np.arange(modulus)
    applied = [f(numbers[:, None], numbers) % modulus for f in (np.add, np.subtract, np.multiply)]
    shares = [np.full(modulus, 1 / modulus)] * 5  # d, -d, (d) and (-d); of no token there is none
    for n in range(5, size + 1):
        pairs = sum(np.outer(shares[left], shares[n - 3 - left]) for left in range(1, n - 3))
        each = [np.bincount(value.ravel(), np.ravel(pairs), modulus) for value in applied]
        shares.append(sum(each) / (3 * (n - 4)))
    return shares


def test_of_brackets() -> None:
    """Zero is the most frequent value: 0.3052, a scaled accuracy of 0.132, on lengths 40-256."""
    shares = np.mean(values_of_brackets(253)[37:], axis=0)
    assert shares.argmax() == 0
    assert shares.max() == pytest.approx(0.3052, abs=1e-4)
    task = make_task("modular_arithmetic_brackets")
    assert task.majority(40, 256) == pytest.approx(shares.max(), abs=1e-12)
    assert task.majority(3, 40) == pytest.approx(0.2666, abs=0.003)


def test_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For equal tasks and lengths; another option makes another task."""
    drawn: list[int] = []
    sample = ModularArithmetic.sample

    def counted(self: ModularArithmetic, *args: Any) -> Batch:
        drawn.append(self.modulus)
        return sample(self, *args)

    monkeypatch.setattr(ModularArithmetic, "sample", counted)
    of_five = make_task("modular_arithmetic").majority(7, 17)
    count = len(drawn)
    assert set(drawn) == {5}
    assert make_task("modular_arithmetic").majority(7, 17) == of_five
    assert len(drawn) == count
    of_two = make_task("modular_arithmetic", modulus=2).majority(7, 17)
    assert len(drawn) > count
    assert of_two > of_five


@pytest.mark.parametrize("modulus", [2, 5, 7])
@pytest.mark.parametrize("lengths", [(3, 12), (40, 60), (9, 9)])
def test_brackets_are_exact(modulus: int, lengths: tuple[int, int]) -> None:
    """The exact share is near the measured one; without products the answers are uniform."""
    task = make_task("modular_arithmetic_brackets", modulus=modulus)
    measured = measured_majority(task, *lengths, None)
    assert task.majority(*lengths) == pytest.approx(measured, abs=4 * STANDARD_ERROR)
    without = make_task("modular_arithmetic_brackets", modulus=modulus, mult=False)
    assert without.majority(*lengths) == without.chance


def test_brackets_too_long_for_the_exact_baseline_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = make_task("modular_arithmetic_brackets")
    exact = task.majority(20, 40)
    monkeypatch.setattr(arithmetic, "EXACT_MAJORITY", 0)
    assert task.majority(20, 40) == pytest.approx(exact, abs=4 * STANDARD_ERROR)
    assert task.majority(3, 4) >= task.chance


def test_a_changed_file_is_measured_again(tmp_path: Path) -> None:
    """The answers, states or elements, are equally frequent."""
    file = tmp_path / "counter.json"
    for m in (2, 4):
        steps = {f"q{i}": {"a": f"q{(i + 1) % m}", "b": f"q{i}"} for i in range(m)}
        dfa = {"alphabet": ["a", "b"], "start": "q0", "accepting": ["q0"], "transitions": steps}
        file.write_text(json.dumps(dfa))
        got = make_task(f"dfa:{file}").majority(9)
        assert got == pytest.approx(1 / m, abs=3 * STANDARD_ERROR)
    for table in ([[0, 1], [1, 0]], [[0, 1, 2], [1, 2, 0], [2, 0, 1]]):
        file.write_text(json.dumps({"table": table}))
        got = make_task(f"group:{file}").majority(1)
        assert got == pytest.approx(1 / len(table), abs=3 * STANDARD_ERROR)


@dataclass(frozen=True)
class Biased(Task):
    """Answer n of a sequence is 1 three times in four where n is even, else 2."""

    family: ClassVar[str] = "biased"
    metric: ClassVar[Literal["answer", "sequence", "token"]] = "token"
    pad: ClassVar[int] = 0  # type: ignore[assignment]
    chance: ClassVar[float] = 0.5  # type: ignore[assignment]
    vocab: ClassVar[tuple[str, ...]] = ("PAD", "x", "y")  # type: ignore[assignment]

    def input_size(self, length: int) -> int:
        return length

    def sample_tokens(self, rng: np.random.Generator, lengths: Ints, size: int) -> Ints:
        often = 1 + np.arange(size) % 2
        return np.where(rng.random((len(lengths), size)) < 0.75, often, 3 - often)

    def targets(self, tokens: Ints) -> Ints:
        return tokens


class BiasedSequence(Biased):
    metric = "sequence"


class BiasedAnswer(Biased):
    metric = "answer"


@pytest.mark.parametrize(
    ("task", "lengths", "expected"),
    [
        pytest.param(Biased("a"), (6,), 0.75, id="token"),
        pytest.param(BiasedSequence("b"), (1,), 0.75, id="sequence of one"),
        pytest.param(BiasedSequence("b"), (3,), 0.75**3, id="sequence of three"),
        pytest.param(BiasedSequence("b"), (1, 2), (0.75 + 0.75**2) / 2, id="of one or two"),
        pytest.param(BiasedAnswer("c"), (6,), 0.75, id="answer"),
        # odd lengths favour 1, even ones 2
        pytest.param(BiasedAnswer("c"), (1, 2), 0.5, id="answers of two lengths"),
    ],
)
def test_another_constant_at_each_position(
    task: Task, lengths: tuple[int, ...], expected: float
) -> None:
    assert task.majority(*lengths) == pytest.approx(expected, abs=3 * STANDARD_ERROR)


@pytest.mark.parametrize("name", ["mqar", "chomsky/bucket_sort", "S3", "tomita3"])
def test_always_the_same(name: str) -> None:
    length = max(9, make_task(name).min_length)
    assert make_task(name).majority(length) == make_task(name).majority(length, length)
    state = np.random.get_state()[1].tolist()  # type: ignore[index,union-attr]
    make_task(name).majority(length + 1)
    assert np.random.get_state()[1].tolist() == state  # type: ignore[index,union-attr]


def test_impossible_lengths() -> None:
    with pytest.raises(UserError, match=r"the length of parity .*at least 2; got 1"):
        make_task("parity").majority(1)
    with pytest.raises(UserError, match="the greatest length 3 is below the least, 5"):
        make_task("parity").majority(5, 3)


# -- at every length of a prefix task -------------------------------------------------------------


@pytest.mark.parametrize("supervision", ["last", "dense"])
def test_majorities_of_answers(supervision: str) -> None:
    task = make_task("S5_only_swaps", supervision=supervision)
    assert isinstance(task, PrefixTask)
    got = task.answer_majorities(30)
    assert got.shape == (31,)  # BOS, which is always the same, and 30 elements
    assert got[0] == 1
    assert got[1] == pytest.approx(1 / 11, abs=3 * STANDARD_ERROR)  # ten swaps and the identity
    assert got[20:].mean() == pytest.approx(1 / 120, abs=0.004)


def test_majorities_of_long_sequences_are_as_those_of_short_ones() -> None:
    task = make_task("cycle_navigation")
    assert isinstance(task, PrefixTask)
    got = task.answer_majorities(20_000)
    assert got.shape == (19_999,)
    assert got[0] == pytest.approx(1 / 3, abs=0.06)  # of three steps; on 419 sequences
    assert got[100:].mean() == pytest.approx(1 / 5, abs=0.003)


def test_that_of_parity_is_known() -> None:
    """As it would be measured."""
    task = make_task("parity")
    assert isinstance(task, PrefixTask)
    assert task.majority(2, 9) == 1 / 2
    assert Task.majority(task, 2, 9) == pytest.approx(1 / 2, abs=3 * STANDARD_ERROR)
    assert task.answer_majorities(9).tolist() == [1 / 2] * 8
    measured = PrefixTask.answer_majorities(task, 9)
    assert measured == pytest.approx([1 / 2] * 8, abs=4 * STANDARD_ERROR)


@pytest.mark.parametrize(
    ("name", "options"),
    [("tomita5", {}), ("regex:(ab)*", {"predict": "next_symbols"}), ("automaton:Z3", {}),
     ("tomita3", {"predict": "membership"})],
)  # fmt: skip
@pytest.mark.parametrize("lengths", [(1, 1), (3, 9), (5, 5)])
def test_that_of_an_automaton_is_exact(
    name: str, options: dict[str, str], lengths: tuple[int, int]
) -> None:
    task = make_task(name, **options)
    measured = Task.majority(task, *lengths)
    assert task.majority(*lengths) == pytest.approx(measured, abs=4 * STANDARD_ERROR)


# -- what it is made of ---------------------------------------------------------------------------

columns = st.lists(st.lists(st.integers(-1, 3), min_size=3, max_size=3), min_size=2, max_size=12)


@given(columns)
def test_most_frequent(values: list[list[int]]) -> None:
    got = most_frequent(np.array(values))
    for column, said in zip(zip(*values, strict=True), got.tolist(), strict=True):
        counts = Counter(v for v in column if v >= 0)
        if counts:
            assert counts[said] == max(counts.values())
        else:
            assert said == -1


@given(columns)
def test_right_by_the_other_half(values: list[list[int]]) -> None:
    table = np.array(values)
    said = [most_frequent(table[1::2]).tolist(), most_frequent(table[0::2]).tolist()]
    for n, right in enumerate(constant_right(table).tolist()):
        assert right == [a == s >= 0 for a, s in zip(values[n], said[n % 2], strict=True)]


def test_large_tables_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.random.default_rng(0).integers(-1, 4, (9, 50))
    whole = constant_right(table)
    monkeypatch.setattr("statetrack.tasks.baseline.MAX_CELLS", 40)
    np.testing.assert_array_equal(constant_right(table), whole)


def test_answers_in_order() -> None:
    targets = np.array([[IGNORE, 4, 5, IGNORE, 6], [7, IGNORE, IGNORE, IGNORE, IGNORE]])
    scored = targets != IGNORE
    assert answers(targets, scored).tolist() == [[4, 5, 6], [7, -1, -1]]
    assert last_answers(targets, scored).tolist() == [[6], [7]]
