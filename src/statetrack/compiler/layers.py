"""What the layers of compiled networks have in common: states, contexts and how they are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from statetrack.compiler.induction import Ints
from statetrack.compiler.scan import affine_scan
from statetrack.compiler.stages import Stage
from statetrack.layers import Dense, Transition

Array = NDArray[Any]


def rows(table: Tensor, index: Tensor) -> Tensor:
    """table[index], for whole rows."""
    return table.index_select(0, index.flatten()).view(*index.shape, *table.shape[1:])


class Layer(nn.Module, ABC):
    """H_t = A(context_t) H_{t-1} + B(context_t), where H_0 is the codeword of the start.

    The states of a layer are matrices [n, V]; what is read of one tells its number.
    """

    target: ClassVar[str]
    moves: Tensor  # [contexts, S]: the state that each context takes each state to
    out: Tensor  # [contexts, S]: what the next layer is told, by the old state; the last layer
    # tells the state of the DFA, by its new one
    codewords: Tensor  # [S, n, V]
    expected: Tensor  # [S, R]: what is read of each state
    H0: Tensor  # [n, V]
    undo: Tensor | None  # [contexts, S]: if it remembers, the old state by the one that was read

    def __init__(self, moves: Ints, out: Ints, start: int, codewords: Array) -> None:
        super().__init__()
        self.start = start
        self.register_buffer("moves", torch.tensor(np.ascontiguousarray(moves)))
        self.register_buffer("out", torch.tensor(np.ascontiguousarray(out)))
        self.register_buffer("codewords", torch.tensor(codewords, dtype=torch.float32))
        self.register_buffer("H0", self.codewords[start].clone())
        self.register_buffer("undo", None)

    @property
    def remembers(self) -> bool:
        """Whether a state is a pair of the current one and, after a reset, the one before."""
        return self.undo is not None

    def current(self, pairs: Ints) -> Ints:
        """The current states of pairs, as `remembering` counts these; else all is current."""
        return pairs // (self.out.shape[1] + 1) if self.remembers else pairs

    @property
    def contexts(self) -> int:
        """The number of contexts."""
        return len(self.moves)

    @property
    def size(self) -> int:
        """The number of rows of the state."""
        return self.H0.shape[0]

    @property
    def cells(self) -> int:
        """How many numbers a token takes."""
        return sum(table[0].numel() for table in self.tables().values())

    @abstractmethod
    def tables(self) -> dict[str, Tensor]:
        """What the op looks up, by context."""

    @abstractmethod
    def run(self, contexts: Tensor, state: Tensor, backend: str = "auto") -> tuple[Tensor, Tensor]:
        """contexts [B, T], state [B, n, V] -> readings [B, T, R] and the last state."""

    @abstractmethod
    def transition(self, contexts: Tensor) -> Transition:
        """A(context) [B, T, 1, ...], for diagnoses; contexts [B, T]."""

    @abstractmethod
    def seen(self, readings: Tensor) -> Tensor:
        """[..., R] -> [...]: the states that were read."""


class StageLayer(Layer):
    """A layer of zeros and ones, read with whole numbers.

    A query of 1 .. n makes of a column with a single 1 the number of its axis, exactly. A layer
    that remembers is read for its old state: in its second half after a reset, else in its first.
    """

    queries: Tensor  # [contexts, n], or [1, n] if they are the same in every context
    numbers: Tensor  # [readings]: the state, by the readings of all columns

    def __init__(self, stage: Stage, remembers: bool) -> None:
        super().__init__(stage.moves, stage.out, stage.start, stage.codewords)
        n = stage.points.shape[1]
        undo, vectors = None, stage.codewords
        queries = np.arange(1, n + 1)[None]
        if remembers:
            S = stage.out.shape[1]
            half = np.arange(1, n // 2 + 1)
            reset = (stage.writes >= 0)[:, None]
            queries = np.concatenate([np.where(reset, 0, half), np.where(reset, half, 0)], axis=1)
            current = stage.moves[:, :: S + 1] // (S + 1)
            undo = torch.tensor(np.where(reset, np.arange(S), np.argsort(current, axis=1)))
            vectors = stage.codewords[:: S + 1, : n // 2]
        self.register_buffer("queries", torch.tensor(queries, dtype=torch.float32))
        self.undo = undo
        readings = np.einsum("snv,n->sv", vectors, np.arange(1, vectors.shape[1] + 1))
        self.register_buffer("expected", torch.tensor(readings, dtype=torch.float32))
        self.low = readings.min(axis=0).tolist()
        self.high = readings.max(axis=0).tolist()
        spans = readings.max(axis=0) - readings.min(axis=0) + 1
        self.strides = [1, *np.cumprod(spans)[:-1].tolist()]
        numbers = np.zeros(int(np.prod(spans)), dtype=np.int64)
        numbers[(readings - self.low) @ self.strides] = np.arange(len(readings))
        self.register_buffer("numbers", torch.tensor(numbers))

    def seen(self, readings: Tensor) -> Tensor:
        columns = zip(readings.unbind(-1), self.low, self.high, self.strides, strict=True)
        index = self.numbers.new_zeros(readings.shape[:-1])
        for column, low, high, stride in columns:
            # clamped as integers: even what overflowed is the number of some state then
            index += (column.float().round().long().clamp(low, high) - low) * stride
        return rows(self.numbers, index)

    def _queries(self, contexts: Tensor) -> Tensor:
        """[B, T, n]."""
        if len(self.queries) > 1:
            return rows(self.queries, contexts)
        return self.queries.expand(*contexts.shape, -1)


class MatrixLayer(Layer):
    """Matrices as they are given, without writes; a state is told by its direction."""

    target = "dense"
    A: Tensor  # [contexts, n, n]

    def __init__(self, moves: Ints, out: Ints, start: int, codewords: Array, A: Array) -> None:
        super().__init__(moves, out, start, codewords)
        self.register_buffer("A", torch.tensor(A, dtype=torch.float32))
        self.register_buffer("expected", self.codewords.flatten(1))

    @property
    def B(self) -> Tensor:  # noqa: N802
        """[contexts, n, V]."""
        return self.A.new_zeros(self.contexts, *self.H0.shape)

    def run(self, contexts: Tensor, state: Tensor, backend: str = "auto") -> tuple[Tensor, Tensor]:
        states, last = affine_scan(rows(self.A, contexts), rows(self.B, contexts), state)
        return states.flatten(2), last

    def transition(self, contexts: Tensor) -> Dense:
        return Dense(rows(self.A, contexts)[:, :, None])

    def seen(self, readings: Tensor) -> Tensor:
        # codewords are all of one length, until a number type rounds them
        directions = nn.functional.normalize(self.expected.float(), dim=-1)
        return (readings.float() @ directions.mT).argmax(-1)

    def tables(self) -> dict[str, Tensor]:
        return {"A": self.A}
