"""Pieces on a board, against a dictionary of coordinates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statetrack.errors import UserError
from statetrack.tasks import IGNORE, Task, make_task

STEPS = {"N": (0, 1), "E": (1, 0), "S": (0, -1), "W": (-1, 0)}


def squares(moves: list[str], width: int, height: int) -> list[str]:
    """The square of the piece that just moved, after every move."""
    at: dict[str, tuple[int, int]] = {}
    out = []
    for move in moves:
        piece = move[1:]
        x, y = at.get(piece, (0, 0))
        dx, dy = STEPS[move[0]]
        if 0 <= x + dx < width and 0 <= y + dy < height:
            x, y = x + dx, y + dy
        at[piece] = x, y
        out.append("abcdefghijklmnopqrstuvwxyz"[x] + str(y + 1))
    return out


def ids(task: Task, texts: list[str]) -> list[int]:
    return [task.vocab.index(text) for text in texts]


@given(st.data(), st.integers(1, 6), st.integers(2, 6), st.integers(1, 3), st.booleans())
def test_solve(data: st.DataObject, width: int, height: int, pieces: int, dense: bool) -> None:
    supervision = "dense" if dense else "last"
    task = make_task("board", width=width, height=height, pieces=pieces, supervision=supervision)
    move = st.sampled_from(task.vocab[1 : 1 + 4 * pieces])
    rows = data.draw(st.lists(st.lists(move, max_size=25), min_size=1, max_size=4))
    columns = max(map(len, rows)) + data.draw(st.integers(0, 2))
    tokens = np.zeros((len(rows), columns), dtype=np.int64)
    expected = np.full((len(rows), columns), IGNORE)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = ids(task, row)
        first = 0 if dense else max(0, len(row) - 1)
        expected[i, first : len(row)] = ids(task, squares(row, width, height))[first:]
    np.testing.assert_array_equal(task.solve(tokens), expected)


@pytest.mark.parametrize(
    "options", [{}, {"pieces": 3}, {"width": 1, "height": 2}, {"width": 26, "height": 26}], ids=str
)
def test_samples(options: dict[str, Any]) -> None:
    task = make_task("board", **options)
    batch = task.sample(np.random.default_rng(0), np.array([1, 2, 60, 33]))
    for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
        moves = [task.vocab[token] for token in tokens if token != task.pad]
        expected = ids(task, squares(moves, task.width, task.height))
        assert targets.tolist() == expected + [IGNORE] * (60 - len(moves))


def test_names() -> None:
    task = make_task("board", width=3, height=2)
    assert task.vocab == ("PAD", *"NESW", "a1", "b1", "c1", "a2", "b2", "c2")
    two = make_task("board", pieces=2)
    assert two.vocab[:9] == ("PAD", "N1", "E1", "S1", "W1", "N2", "E2", "S2", "W2")
    assert two.vocab[-1] == "d4"


def test_the_edge_stops_a_piece() -> None:
    task = make_task("board", width=2, height=2)
    tokens = np.array([ids(task, list("WSEENNWWS"))])
    answers = [task.vocab[target] for target in task.solve(tokens)[0]]
    assert answers == ["a1", "a1", "b1", "b1", "b2", "b2", "a2", "a2", "a1"]


def test_pieces_move_on_their_own() -> None:
    task = make_task("board", pieces=2)
    tokens = np.array([ids(task, ["E1", "E1", "N2", "N1", "W2", "E2"])])
    answers = [task.vocab[target] for target in task.solve(tokens)[0]]
    assert answers == ["b1", "c1", "a2", "c2", "a2", "b2"]


def test_what_is_no_move_does_nothing() -> None:
    task = make_task("board", supervision="last")
    tokens = np.array([ids(task, ["E", "d4", "N"])])
    assert task.vocab[task.solve(tokens)[0, -1]] == "b2"


def test_moves_and_squares_are_uniform() -> None:
    task = make_task("board", width=3, height=3, pieces=2, supervision="last")
    batch = task.sample(np.random.default_rng(0), np.full(5000, 80))
    moves = np.bincount(batch.tokens.ravel(), minlength=9)[1:9]
    assert abs(moves / moves.sum() * 8 - 1).max() < 0.02
    answers = np.bincount(batch.targets[:, -1], minlength=len(task.vocab))[9:]
    assert answers.sum() == 5000
    assert abs(answers / 5000 * 9 - 1).max() < 0.2  # five standard deviations


@pytest.mark.parametrize(("width", "height"), [(4, 4), (1, 2), (8, 3)], ids=str)
def test_chance(width: int, height: int) -> None:
    assert make_task("board", width=width, height=height).chance == 1 / (width * height)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, r"width must lie in 1\.\.26; got 0"),
        ({"width": 27}, r"width must lie in 1\.\.26; got 27"),
        ({"height": -1}, r"height must lie in 1\.\.26; got -1"),
        ({"height": 2.5}, "height must be a whole number; got 2.5"),
        ({"width": 1, "height": 1}, "a board needs at least 2 squares; got 1 x 1"),
        ({"pieces": 0}, "pieces must lie in 1..*; got 0"),
        ({"supervision": "all"}, "supervision must be one of last, dense; got 'all'"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_options_that_will_not_do(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_task("board", **options)
