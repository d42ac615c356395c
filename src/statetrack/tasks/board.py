"""Pieces on a board: the square of the piece that just moved."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from string import ascii_lowercase
from typing import Literal

import numpy as np

from statetrack.automata import DFA, moore_machine
from statetrack.config import option
from statetrack.errors import UserError
from statetrack.tasks.base import Ints, PrefixTask, register

DIRECTIONS = {"N": (0, 1), "E": (1, 0), "S": (0, -1), "W": (-1, 0)}
STAY = len(DIRECTIONS)


@register
@dataclass(frozen=True)
class Board(PrefixTask):
    """Every token moves a piece one square; the answer is the square that the piece is on then.

    Squares are named as in chess: all pieces start on a1, the south-west corner; b1 is to its east,
    a2 to its north. A move over the edge has no effect, and pieces may share a square. A move is
    written N, E, S or W, then the number of the piece if there are several. Moves are uniform, so
    all squares are equally likely in the long run. Length counts moves.
    """

    family = "board"
    examples = ("board",)
    about = "the square of the piece that just moved on a board with edges"
    metric = "sequence"

    supervision: Literal["last", "dense"] = option("dense", "targets at the answer or everywhere")
    width: int = option(4, "columns of the board, at most 26", low=1, high=26)
    height: int = option(4, "rows of the board, at most 26", low=1, high=26)
    pieces: int = option(1, "pieces on the board, at most 1,000", low=1, high=1_000)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width * self.height < 2:
            raise UserError("a board needs at least 2 squares; got 1 x 1")

    @cached_property
    def vocab(self) -> tuple[str, ...]:
        numbers = [""] if self.pieces == 1 else range(1, self.pieces + 1)
        moves = tuple(f"{direction}{number}" for number in numbers for direction in DIRECTIONS)
        rows = range(1, self.height + 1)
        columns = ascii_lowercase[: self.width]
        return ("PAD", *moves, *(f"{column}{row}" for row in rows for column in columns))

    @property
    def chance(self) -> float:
        return 1 / (self.width * self.height)

    def sample_tokens(self, rng: np.random.Generator, lengths: Ints, size: int) -> Ints:
        return rng.integers(1, 1 + 4 * self.pieces, (len(lengths), size))

    @cached_property
    def _after(self) -> Ints:
        """[square * 5 + direction]: the square after a move; direction 4 is to stay."""
        y, x = np.divmod(np.arange(self.width * self.height), self.width)
        after = [
            np.clip(y + dy, 0, self.height - 1) * self.width + np.clip(x + dx, 0, self.width - 1)
            for dx, dy in (*DIRECTIONS.values(), (0, 0))
        ]
        return np.stack(after, axis=1).ravel()

    def automaton(self) -> DFA | None:
        """A state is the answer and the squares of all pieces; None beyond 10,000 states."""
        moves = 4 * self.pieces
        after = self._after.reshape(-1, 5).tolist()

        def step(state: tuple[int, ...], move: int) -> tuple[int, ...]:
            piece, direction = divmod(move, 4)
            square = after[state[1 + piece]][direction]
            return (square, *state[1 : 1 + piece], square, *state[2 + piece :])

        squares = self.vocab[1 + moves :]
        start = (0,) * (1 + self.pieces)
        return moore_machine(
            self.vocab[1 : 1 + moves], start, step, lambda state: squares[state[0]], squares[0]
        )

    def dense_targets(self, tokens: Ints) -> Ints:
        moves = 4 * self.pieces
        pieces = np.zeros(len(self.vocab), dtype=np.int64)  # by token; no move: stay
        directions = np.full(len(self.vocab), STAY)
        pieces[1 : 1 + moves], directions[1 : 1 + moves] = np.divmod(np.arange(moves), 4)
        square = np.zeros(len(tokens) * self.pieces, dtype=np.int64)  # of each piece
        row = self.pieces * np.arange(len(tokens))
        columns = np.ascontiguousarray(tokens.T)  # [T, B]: contiguous reads
        squares = np.empty_like(columns)
        for t, token in enumerate(columns):
            piece = row + pieces.take(token)
            squares[t] = self._after.take(square.take(piece) * 5 + directions.take(token))
            square[piece] = squares[t]
        return 1 + moves + np.ascontiguousarray(squares.T)
