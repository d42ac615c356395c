"""Pieces moved on a named board: where is the piece that just moved?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from string import ascii_lowercase
from typing import ClassVar, Literal

import numpy as np

from statetrack.automata import DFA, moore_machine
from statetrack.config import option, within
from statetrack.errors import UserError
from statetrack.tasks.base import Ints, PrefixTask, register

DIRECTIONS = {"N": (0, 1), "E": (1, 0), "S": (0, -1), "W": (-1, 0)}
STAY = len(DIRECTIONS)
MAX_PIECES = 1_000


@register
@dataclass(frozen=True)
class Board(PrefixTask):
    """Every token moves a piece one square; the answer is the square on which that piece stands.

    Squares are named as in chess: a1 is the south-west corner, where all pieces start, b1 lies to
    its east and a2 to its north. A move over the edge leaves the piece where it is, and pieces may
    share a square. A move is written N, E, S or W, with the number of the piece behind it if there
    are several. Moves are uniform, so that in the long run all squares are equally likely. Length
    counts moves.
    """

    family: ClassVar[str] = "board"
    examples: ClassVar[tuple[str, ...]] = ("board",)
    about: ClassVar[str] = "the square of the piece that just moved on a board with edges"
    metric: ClassVar[Literal["answer", "sequence", "token"]] = "sequence"

    name: str = option("board", "which task of its family")
    supervision: Literal["last", "dense"] = option("dense", "targets at the answer or everywhere")
    width: int = option(4, "columns of the board, at most 26")
    height: int = option(4, "rows of the board, at most 26")
    pieces: int = option(1, "pieces on the board, at most 1,000")

    def __post_init__(self) -> None:
        super().__post_init__()
        for what, value in (("width", self.width), ("height", self.height)):
            within(what, value, 1, 26)
        if self.width * self.height < 2:
            raise UserError("a board needs at least 2 squares; got 1 x 1")
        within("pieces", self.pieces, 1, MAX_PIECES)

    @cached_property
    def vocab(self) -> tuple[str, ...]:
        numbers = [""] if self.pieces == 1 else range(1, self.pieces + 1)
        moves = tuple(f"{direction}{number}" for number in numbers for direction in DIRECTIONS)
        rows = range(1, self.height + 1)
        columns = ascii_lowercase[: self.width]
        return ("PAD", *moves, *(f"{column}{row}" for row in rows for column in columns))

    @property
    def pad(self) -> int:
        return 0

    @property
    def chance(self) -> float:
        return 1 / (self.width * self.height)

    def input_size(self, length: int) -> int:
        return length

    def sample_tokens(self, rng: np.random.Generator, lengths: Ints, size: int) -> Ints:
        return rng.integers(1, 1 + 4 * self.pieces, (len(lengths), size))

    @cached_property
    def _after(self) -> Ints:
        """[square * 5 + direction]: the square after a move; the fifth direction is to stay."""
        y, x = np.divmod(np.arange(self.width * self.height), self.width)
        after = [
            np.clip(y + dy, 0, self.height - 1) * self.width + np.clip(x + dx, 0, self.width - 1)
            for dx, dy in (*DIRECTIONS.values(), (0, 0))
        ]
        return np.stack(after, axis=1).ravel()

    def automaton(self) -> DFA | None:
        """The squares of all pieces and of the last to move; None beyond 10,000 of such states."""
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
        pieces = np.zeros(len(self.vocab), dtype=np.int64)  # by token; what is no move is to stay
        directions = np.full(len(self.vocab), STAY)
        pieces[1 : 1 + moves], directions[1 : 1 + moves] = np.divmod(np.arange(moves), 4)
        standing = np.zeros(len(tokens) * self.pieces, dtype=np.int64)  # each piece's square
        row = self.pieces * np.arange(len(tokens))
        columns = np.ascontiguousarray(tokens.T)  # a row per time step: contiguous reads
        squares = np.empty_like(columns)
        for t, token in enumerate(columns):
            piece = row + pieces.take(token)
            squares[t] = self._after.take(standing.take(piece) * 5 + directions.take(token))
            standing[piece] = squares[t]
        return 1 + moves + np.ascontiguousarray(squares.T)
