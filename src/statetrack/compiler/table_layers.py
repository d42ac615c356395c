"""The layers of compiled networks: linear recurrences whose inputs are looked up in tables."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from statetrack.compiler.proof import Bools, Ints
from statetrack.compiler.stage import Stage
from statetrack.layers import Dense, Transition

Array = NDArray[Any]

CELLS_AT_ONCE = 1 << 22  # numbers that a layer lays out over tokens, or over its states


def rows(table: Tensor, index: Tensor) -> Tensor:
    """table[index], for whole rows."""
    return table.index_select(0, index.flatten()).view(*index.shape, *table.shape[1:])


class Layer(nn.Module, ABC):
    """H_t = A(rule_t) H_{t-1} + B(rule_t), where H_0 is the codeword of the start.

    The states of a layer are matrices [n, V]; the readings of one identify its number.
    """

    target: ClassVar[str]
    table_names: ClassVar[tuple[str, ...]]  # of the buffers that the op looks up by rule
    moves: Tensor  # [rules, S]: the state to which each rule takes each state
    out: Tensor  # [rules, S]: the next layer's rule by the old state; in the last layer the state
    # of the DFA by the new one
    codewords: Tensor  # [S, n, V]
    expected: Tensor  # [S, R]: the readings of each state
    H0: Tensor  # [n, V]
    undo: Tensor | None  # [rules, S]: with a doubled state, the old state by the one that was read
    A: Tensor  # [rules, n, n]
    B: Tensor  # [rules, n, V]

    def __init__(self, moves: Ints, out: Ints, start: int, codewords: Array) -> None:
        super().__init__()
        self.start = start
        self.register_buffer("moves", torch.tensor(np.ascontiguousarray(moves)))
        self.register_buffer("out", torch.tensor(np.ascontiguousarray(out)))
        self.register_buffer("codewords", torch.tensor(codewords, dtype=torch.float32))
        self.register_buffer("H0", self.codewords[start].clone())
        self.register_buffer("undo", None)

    @property
    def has_old_state(self) -> bool:
        """Whether a state is a pair of the current one and, after a reset, the one before."""
        return self.undo is not None

    def current(self, pairs: Ints) -> Ints:
        """Return the current states of pairs, as `with_old_state` numbers these."""
        return pairs // (self.out.shape[1] + 1) if self.has_old_state else pairs

    @property
    def rules(self) -> int:
        """The number of update rules."""
        return len(self.moves)

    @property
    def size(self) -> int:
        """The number of rows of the state."""
        return self.H0.shape[0]

    @property
    def cells(self) -> int:
        """The number of table entries that one token looks up."""
        return sum(table[0].numel() for table in self.tables().values())

    @property
    def factors(self) -> int:
        """The number of generalised Householder factors, 0 without any."""
        return 0

    def tables(self) -> dict[str, Tensor]:
        """Return the tables that the op looks up by rule."""
        return {name: self.get_buffer(name) for name in self.table_names}

    def factor_norm(self) -> float:
        """Return the largest norm of a single factor of A."""
        return 0.0

    @abstractmethod
    def run(self, rules: Tensor, state: Tensor, backend: str = "auto") -> tuple[Tensor, Tensor]:
        """rules [B, T], state [B, n, V] -> readings [B, T, R] and the last state."""

    @abstractmethod
    def transition(self, rules: Tensor) -> Transition:
        """Return A(rule) [B, T, 1, ...], for diagnoses; rules [B, T]."""

    @abstractmethod
    def identify(self, readings: Tensor) -> Tensor:
        """[..., R] -> [...]: the states that were read."""

    def next_rules(self, rules: Tensor, read: Tensor, before: Tensor, last: bool) -> Tensor:
        """[B, T]: the next layer's rules, or the states of the DFA if this layer is the last.

        read: [B, T], the states that were read; before: [B], the one before the first token.
        """
        width = self.out.shape[1]
        if self.undo is not None:
            read = rows(self.undo.view(-1), rules * width + read)
        elif not last:
            read = torch.cat([before[:, None], read[:, :-1]], 1)
        return rows(self.out.view(-1), rules * width + read)

    def deviation(self, readings: Tensor, read: Tensor, state: Tensor) -> float:
        """Return how far readings are from those of codewords, and last states from codewords."""
        wrong = (readings - self.expected[read]).abs().max()
        left = (state[:, None] - self.codewords).abs().amax((2, 3)).amin(1).max()
        found = torch.maximum(wrong.float(), left.float())
        return float("inf") if found.isnan() else float(found)  # overflow

    @torch.no_grad()
    def exact_steps(self, backend: str) -> Bools:
        """[rules, S]: whether one token through the op gives exactly the next codeword."""
        rules, S = self.moves.shape
        right = []
        for part in torch.arange(rules * S).split(max(1, CELLS_AT_ONCE // self.cells)):
            rule, state = part // S, part % S
            readings, last = self.run(rule[:, None], self.codewords[state], backend)
            moved = self.moves.view(-1)[part]
            read = self.identify(readings[:, 0])
            exact = (readings[:, 0] == self.expected[read]).all(1)
            exact &= (last == self.codewords[moved]).flatten(1).all(1)
            if self.undo is None:
                right.append(exact & (read == moved))
            else:  # the old state is what is read
                current = torch.from_numpy(self.current(state.numpy()))
                right.append(exact & (self.undo[rule, read] == current))
        return torch.cat(right).view(rules, S).numpy()

    def __str__(self) -> str:
        factors = f", {self.factors} Householder factor{'s' * (self.factors != 1)}"
        return (
            f"{self.target}, state [{self.size}, {self.H0.shape[1]}], "
            f"{self.rules:,} update rule{'s' * (self.rules != 1)}"
            + factors * bool(self.factors)
            + ", doubled to keep its old state" * self.has_old_state
        )


class StageLayer(Layer):
    """A layer of zeros and ones, read with whole numbers.

    The query (1, ..., n) turns a column with a single 1 into the number of its axis, exactly. A
    layer with a doubled state is read for its old state: in its second half after a reset, else in
    its first.
    """

    queries: Tensor  # [rules, n], or [1, n] if they are the same for every rule
    numbers: Tensor  # [readings]: the state, by the readings of all columns

    def __init__(self, stage: Stage, doubled: bool) -> None:
        super().__init__(stage.moves, stage.out, stage.start, stage.codewords)
        n = stage.axis_map.shape[1]
        undo, vectors = None, stage.codewords
        queries = np.arange(1, n + 1)[None]
        if doubled:
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

    def identify(self, readings: Tensor) -> Tensor:
        columns = zip(readings.unbind(-1), self.low, self.high, self.strides, strict=True)
        index = self.numbers.new_zeros(readings.shape[:-1])
        for column, low, high, stride in columns:
            # clamped as integers: even after an overflow it is the number of some state
            index += (column.float().round().long().clamp(low, high) - low) * stride
        return rows(self.numbers, index)

    def queries_of(self, rules: Tensor) -> Tensor:
        """[B, T, n]."""
        if len(self.queries) > 1:
            return rows(self.queries, rules)
        return self.queries.expand(*rules.shape, -1)


class MatrixLayer(Layer):
    """Any given matrices, without writes; the state is the codeword nearest in direction."""

    target = "dense"
    table_names = ("A",)

    def __init__(self, moves: Ints, out: Ints, start: int, codewords: Array, A: Array) -> None:
        super().__init__(moves, out, start, codewords)
        self.register_buffer("A", torch.tensor(A, dtype=torch.float32))
        self.register_buffer("expected", self.codewords.flatten(1))

    @property
    def B(self) -> Tensor:  # type: ignore[override]  # noqa: N802
        """[rules, n, V]."""
        return self.A.new_zeros(self.rules, *self.H0.shape)

    def run(self, rules: Tensor, state: Tensor, backend: str = "auto") -> tuple[Tensor, Tensor]:
        states, last = affine_scan(rows(self.A, rules), rows(self.B, rules), state)
        return states.flatten(2), last

    def transition(self, rules: Tensor) -> Dense:
        return Dense(rows(self.A, rules)[:, :, None])

    def identify(self, readings: Tensor) -> Tensor:
        # codewords are all of one length, until a number type rounds them
        directions = nn.functional.normalize(self.expected.float(), dim=-1)
        return (readings.float() @ directions.mT).argmax(-1)


def affine_scan(A: Tensor, b: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Compute h_t = A_t h_{t-1} + b_t in blocks.

    Within blocks of about sqrt(T) tokens the maps from a block's beginning are multiplied, for all
    blocks at once; then only the blocks' ends run one after the other.

    Args:
        A: [B, T, n, n].
        b: [B, T, n, V].
        h: [B, n, V], the state before the first token.

    Returns:
        All h_t [B, T, n, V] and the last one.
    """
    batch, length, n, _ = A.shape
    columns = b.shape[-1]
    size = max(1, math.isqrt(length))
    blocks = math.ceil(length / size)
    padding = blocks * size - length
    eye = torch.eye(n, dtype=A.dtype, device=A.device)
    if padding:
        A = torch.cat([A, eye.expand(batch, padding, n, n)], 1)
        b = torch.cat([b, b.new_zeros(batch, padding, n, columns)], 1)
    A, b = A.view(batch, blocks, size, n, n), b.view(batch, blocks, size, n, columns)
    both = torch.cat([eye.expand(batch, blocks, n, n), b.new_zeros(batch, blocks, n, columns)], -1)
    maps = []  # [n, n + V] from the beginning of a block: h -> P h + c
    zeros = A.new_zeros(batch, blocks, n, n)
    for A_t, b_t in zip(A.unbind(2), b.unbind(2), strict=True):
        both = A_t @ both + torch.cat([zeros, b_t], -1)
        maps.append(both)
    starts = []
    for end in both.unbind(1):
        starts.append(h)
        h = end[..., :n] @ h + end[..., n:]
    start = torch.stack(starts, 1)[:, :, None]  # [B, blocks, 1, n, V]
    stacked = torch.stack(maps, 2)
    states = stacked[..., :n] @ start + stacked[..., n:]
    return states.flatten(1, 2)[:, :length], h
