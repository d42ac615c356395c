"""solve() against evaluators that share no code with it, on any input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statetrack.tasks import IGNORE, Task, make_task
from tests.tasks.reference import Row, parity_targets, supervised, word_problem_targets

SUPERVISIONS = st.sampled_from(["last", "dense"])
GROUPS = st.sampled_from(
    ["S2", "S3", "S4", "S5", "A3", "A4", "A5", "Z2", "Z7", "Z60", "A4_x_Z5", "S3_x_Z2_x_Z3"]
)


def pad(rows: list[Row], width: int, filler: int) -> np.ndarray:
    return np.array([row + [filler] * (width - len(row)) for row in rows], dtype=np.int64)


@st.composite
def padded_widths(draw: st.DrawFn, rows: list[Row]) -> int:
    return max(map(len, rows)) + draw(st.integers(0, 3))


@given(st.data(), SUPERVISIONS)
def test_parity(data: st.DataObject, supervision: str) -> None:
    rows = data.draw(st.lists(st.lists(st.integers(1, 2), max_size=20), min_size=1, max_size=5))
    width = data.draw(padded_widths(rows))
    task = make_task("parity", supervision=supervision)
    expected = [supervised(parity_targets(row), supervision, width) for row in rows]
    np.testing.assert_array_equal(task.solve(pad(rows, width, task.pad)), expected)


@given(
    st.data(),
    GROUPS,
    SUPERVISIONS,
    st.integers(1, 8),
    st.sampled_from(["special", "repeat", "special_both"]),
)
def test_word_problem(
    data: st.DataObject, group: str, supervision: str, n: int, filler: str
) -> None:
    task = make_task(group, supervision=supervision, tokens_per_element=n, filler=filler)
    # elements, fillers and specials in any order; padding only at the right
    tokens = st.integers(0, len(task.vocab) - 1).filter(lambda token: token != task.pad)
    bodies = data.draw(st.lists(st.lists(tokens, max_size=20), min_size=1, max_size=4))
    rows = [[task.bos, *body] for body in bodies]
    width = data.draw(padded_widths(rows))
    expected = [
        supervised(word_problem_targets(group, row, task.bos, n, filler), supervision, width)
        for row in rows
    ]
    np.testing.assert_array_equal(task.solve(pad(rows, width, task.pad)), expected)


@pytest.mark.parametrize("supervision", ["last", "dense"])
def test_parity_of_one_bit(supervision: str) -> None:
    task = make_task("parity", supervision=supervision)
    assert task.solve(np.array([[1], [2]])).tolist() == [[1], [2]]


def test_supervision_of_parity() -> None:
    tokens = np.array([[2, 1, 2, 2, 0], [2, 2, 0, 0, 0]])
    last, dense = (make_task("parity", supervision=s) for s in ("last", "dense"))
    assert last.solve(tokens).tolist() == [[-1, -1, -1, 2, -1], [-1, 1, -1, -1, -1]]
    assert dense.solve(tokens).tolist() == [[2, 2, 1, 2, -1], [2, 1, -1, -1, -1]]


def test_supervision_of_a_word_problem() -> None:
    last, dense = (make_task("Z5", supervision=s) for s in ("last", "dense"))
    pad, bos = 5, 6
    tokens = np.array([[bos, 3, 4, 1, pad], [bos, 2, pad, pad, pad]])
    assert dense.solve(tokens).tolist() == [[bos, 3, 2, 3, -1], [bos, 2, -1, -1, -1]]
    assert last.solve(tokens).tolist() == [[-1, -1, -1, 3, -1], [-1, 2, -1, -1, -1]]


def test_the_new_element_multiplies_on_the_right() -> None:
    task = make_task("S3")
    assert task.solve(np.array([[task.bos, 5, 3]])).tolist() == [[task.bos, 5, 2]]  # 321 after 231


def test_the_delay_of_four_tokens() -> None:
    task = make_task("S5", tokens_per_element=4)
    fill, product = 120, int(task.group.table[7, 30])
    tokens = [task.bos, 7, fill, fill, fill, 30, fill, fill, fill]
    assert task.vocab[fill] == "FILL"
    assert task.solve(np.array([tokens])).tolist() == [[task.bos, 0, 0, 0, 7, 7, 7, 7, product]]


@pytest.mark.parametrize("n", [2, 5, 6, 9])
@pytest.mark.parametrize("size", range(8))
def test_rows_shorter_than_the_delay(n: int, size: int) -> None:
    task = make_task("Z5", tokens_per_element=n, filler="repeat")
    tokens = np.full((2, 1 + size), 3)
    tokens[:, 0] = task.bos
    # the answer of block b stands on the last token of the block
    answers = [3 * ((t + 1) // n) % 5 for t in range(size)]
    assert task.solve(tokens).tolist() == [[task.bos, *answers]] * 2


@pytest.mark.parametrize("name", ["parity", "S3", "Z60"])
def test_nothing_is_asked_of_padding(name: str) -> None:
    task = make_task(name)
    assert (task.solve(np.full((3, 4), task.pad)) == IGNORE).all()


@pytest.mark.parametrize("task", [make_task("parity"), make_task("S3")], ids=["parity", "S3"])
@pytest.mark.parametrize("shape", [(2, 0), (0, 3)], ids=str)
def test_empty_batches(task: Task, shape: tuple[int, int]) -> None:
    assert task.solve(np.empty(shape, dtype=np.int64)).shape == shape


def test_solve_leaves_its_input_alone() -> None:
    tokens = np.array([[121, 4, 5, 6, 7]])
    make_task("S5", tokens_per_element=2, filler="repeat").solve(tokens)
    assert tokens.tolist() == [[121, 4, 5, 6, 7]]
