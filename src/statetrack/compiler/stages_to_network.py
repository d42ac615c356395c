"""Stages to a network of tables: linear recurrences whose inputs are looked up by update rule."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from statetrack.compiler.cascade_to_stages import Stage, with_old_state
from statetrack.compiler.factor import partial_injection
from statetrack.compiler.proof import Bools, Ints
from statetrack.compiler.wording import counted
from statetrack.errors import UserError
from statetrack.layers import Dense, Diagonal, HouseholderProduct, Transition
from statetrack.ops import delta_product, gated_linear_attention

Array = NDArray[Any]
N = TypeVar("N", Ints, Tensor)

CELLS_AT_ONCE = 1 << 22  # numbers that a layer lays out over tokens, or over its states


def stages_to_layers(stages: Sequence[Stage], target: str, delay: str) -> list[Layer]:
    """Make the layers of a network; with delay "state" all but the last keep their old state."""
    layers: list[Layer] = []
    for i, stage in enumerate(stages, 1):
        doubled = delay == "state" and i < len(stages)
        if doubled and target == "diagonal":
            raise UserError(
                "delay 'state' moves a layer's state from one half to the other, which target "
                "'diagonal' cannot; delay 'shift' can do without"
            )
        layers.append(LAYERS[target](with_old_state(stage) if doubled else stage, doubled))
    return layers


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

    def current(self, pairs: N) -> N:
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

    @torch.no_grad()
    def matrices(self) -> tuple[Tensor, Tensor]:
        """Return A [rules, n, n] and B [rules, n, V]."""
        rules = torch.arange(self.rules, device=self.H0.device)[:, None]
        nothing = torch.zeros_like(self.H0).expand(self.rules, -1, -1)
        return self.transition(rules).dense()[:, 0, 0], self.run(rules, nothing, "naive")[1]

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
    def read(self, rules: Tensor, states: Tensor) -> Tensor:
        """rules [B, T], states [B, T, n, V] after each token -> readings [B, T, R]."""

    @abstractmethod
    def identify(self, readings: Tensor) -> Tensor:
        """[..., R] -> [...]: the states that were read."""

    @torch.no_grad()
    def exact_steps(self, backend: str) -> Bools:
        """[rules, S]: whether one token through the op gives exactly the next codeword."""
        rules, S = self.moves.shape
        right = []
        every = torch.arange(rules * S, device=self.H0.device)
        for part in every.split(max(1, CELLS_AT_ONCE // self.cells)):
            rule, state = part // S, part % S
            readings, last = self.run(rule[:, None], self.codewords[state], backend)
            moved = self.moves.view(-1)[part]
            read = self.identify(readings[:, 0])
            exact = (readings[:, 0] == self.expected[read]).all(1)
            exact &= (last == self.codewords[moved]).flatten(1).all(1)
            if self.undo is None:
                right.append(exact & (read == moved))
            else:  # the old state is what is read
                current = self.current(state)
                right.append(exact & (self.undo[rule, read] == current))
        return torch.cat(right).view(rules, S).cpu().numpy()

    def __str__(self) -> str:
        size = f"{self.target}, state [{self.size}, {self.H0.shape[1]}]"
        factors = f", {counted(self.factors, 'Householder factor')}" if self.factors else ""
        old = ", doubled to keep its old state" if self.has_old_state else ""
        return f"{size}, {counted(self.rules, 'update rule')}{factors}{old}"


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

    def read(self, rules: Tensor, states: Tensor) -> Tensor:
        return (self.queries_of(rules)[..., None, :] @ states)[..., 0, :]

    def queries_of(self, rules: Tensor) -> Tensor:
        """[B, T, n]."""
        if len(self.queries) > 1:
            return rows(self.queries, rules)
        return self.queries.expand(*rules.shape, -1)


class DenseLayer(StageLayer):
    """Any matrices, through a blocked scan."""

    target = "dense"
    table_names = ("A", "B")
    A: Tensor  # [rules, n, n]
    B: Tensor  # [rules, n, V]

    def __init__(self, stage: Stage, doubled: bool) -> None:
        super().__init__(stage, doubled)
        rules, n = stage.axis_map.shape
        A = torch.zeros(rules, n, n)
        rule, axis = np.nonzero(stage.axis_map >= 0)
        A[rule, stage.axis_map[rule, axis], axis] = 1
        B = torch.zeros(rules, n, stage.codewords.shape[2])
        written = np.flatnonzero(stage.writes >= 0)
        B[written, stage.writes[written]] = 1
        self.register_buffer("A", A)
        self.register_buffer("B", B)

    def run(self, rules: Tensor, state: Tensor, backend: str = "auto") -> tuple[Tensor, Tensor]:
        states, last = affine_scan(rows(self.A, rules), rows(self.B, rules), state)
        return self.read(rules, states), last

    def transition(self, rules: Tensor) -> Dense:
        return Dense(rows(self.A, rules)[:, :, None])


class HouseholderLayer(StageLayer):
    """Products of swaps and projectors, after a gate that is 0 for rules that forget everything."""

    target = "householder"
    table_names = ("keys", "betas", "gates", "values")
    keys: Tensor  # [rules, factors, n], the first acting first
    betas: Tensor  # [rules, factors]
    gates: Tensor  # [rules]
    values: Tensor  # [rules, factors, V]

    def __init__(self, stage: Stage, doubled: bool) -> None:
        super().__init__(stage, doubled)
        rules, n = stage.axis_map.shape
        maps = [*map(tuple, stage.axis_map.tolist())]
        products = {axes: _factor_vectors(axes) for axes in set(maps)}  # few, for many rules
        lists = [products[axes] for axes in maps]
        most = max(1, *(len(v) + (axis >= 0) for v, axis in zip(lists, stage.writes, strict=True)))
        keys = np.zeros((rules, most, n), dtype=np.float32)
        betas = np.zeros((rules, most), dtype=np.float32)
        values = np.zeros((rules, most, stage.codewords.shape[2]), dtype=np.float32)
        for r, (vectors, axis) in enumerate(zip(lists, stage.writes.tolist(), strict=True)):
            count = len(vectors)
            keys[r, :count], betas[r, :count] = vectors, 1
            if axis >= 0:
                keys[r, count, axis], betas[r, count], values[r, count] = 1, 1, 1
        self.register_buffer("keys", torch.from_numpy(keys))
        self.register_buffer("betas", torch.from_numpy(betas))
        self.register_buffer("values", torch.from_numpy(values))
        self.register_buffer("gates", torch.tensor(~stage.forgets(), dtype=torch.float32))

    @property
    def factors(self) -> int:
        return self.keys.shape[1]

    def factor_norm(self) -> float:
        return float((1 - self.betas * self.keys.square().sum(-1)).abs().max())

    def run(self, rules: Tensor, state: Tensor, backend: str = "auto") -> tuple[Tensor, Tensor]:
        o, last = delta_product(
            self.queries_of(rules)[:, :, None],
            rows(self.keys, rules).flatten(1, 2)[:, :, None],
            rows(self.values, rules).flatten(1, 2)[:, :, None],
            rows(self.betas, rules).flatten(1, 2)[:, :, None],
            num_householder=self.factors,
            decay=rows(self.gates, rules)[:, :, None],
            scale=1.0,
            initial_state=state[:, None],
            output_final_state=True,
            backend=backend,
        )
        assert last is not None
        return o[:, :, 0], last[:, 0]

    def transition(self, rules: Tensor) -> HouseholderProduct:
        gates, keys, betas = (
            rows(table, rules)[:, :, None] for table in (self.gates, self.keys, self.betas)
        )
        return HouseholderProduct(gates, keys, betas, (-1.0, 1.0))


def _factor_vectors(axes: tuple[int, ...]) -> Ints:
    """[factors, n]: the vectors of a matrix's factors, the first acting first; none for A = 0."""
    found = [] if max(axes) < 0 else partial_injection(axes)[::-1]
    return np.array([factor.v for factor in found], dtype=np.int64).reshape(-1, len(axes))


class DiagonalLayer(StageLayer):
    """A gate of 0 or 1 for the whole state, and a write: enough for resets, but not to permute."""

    target = "diagonal"
    table_names = ("keys", "gates", "values")
    keys: Tensor  # [rules, n]
    gates: Tensor  # [rules]
    values: Tensor  # [rules, V]

    def __init__(self, stage: Stage, doubled: bool) -> None:
        super().__init__(stage, doubled)
        rules, n = stage.axis_map.shape
        writes = torch.tensor(stage.writes)
        self.register_buffer("gates", torch.tensor(~stage.forgets(), dtype=torch.float32))
        written = (writes >= 0).float()[:, None]
        self.register_buffer("keys", torch.eye(n)[writes.clamp(min=0)] * written)
        self.register_buffer("values", written.expand(rules, stage.codewords.shape[2]).clone())

    def run(self, rules: Tensor, state: Tensor, backend: str = "auto") -> tuple[Tensor, Tensor]:
        o, last = gated_linear_attention(
            self.queries_of(rules)[:, :, None],
            rows(self.keys, rules)[:, :, None],
            rows(self.values, rules)[:, :, None],
            decay=rows(self.gates, rules)[:, :, None],
            scale=1.0,
            initial_state=state[:, None],
            output_final_state=True,
            backend=backend,
        )
        assert last is not None
        return o[:, :, 0], last[:, 0]

    def transition(self, rules: Tensor) -> Diagonal:
        gates = rows(self.gates, rules)[:, :, None, None]
        return Diagonal(gates.expand(-1, -1, 1, self.size), (0.0, 1.0))


def affine_scan(A: Tensor, b: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """h_t = A_t h_{t-1} + b_t: A [B, T, n, n], b [B, T, n, V], h [B, n, V] -> all h_t, the last.

    Within blocks of about sqrt(T) tokens the maps from a block's beginning are multiplied, for all
    blocks at once; then only the blocks' ends run one after the other.
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


LAYERS = {layer.target: layer for layer in (DenseLayer, HouseholderLayer, DiagonalLayer)}
