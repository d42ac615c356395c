"""Stages to a network of tables: one layer for each stage, on the op of the target."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from statetrack.compiler.cascade_to_stages import with_old_state
from statetrack.compiler.factor import partial_injection
from statetrack.compiler.proof import Ints
from statetrack.compiler.stage import Stage
from statetrack.compiler.table_layers import Layer, StageLayer, affine_scan, rows
from statetrack.errors import UserError
from statetrack.layers import Dense, Diagonal, HouseholderProduct
from statetrack.ops import delta_product, gated_linear_attention


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


class DenseLayer(StageLayer):
    """Any matrices, through a blocked scan."""

    target = "dense"
    table_names = ("A", "B")

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
        return (self.queries_of(rules)[..., None, :] @ states)[..., 0, :], last

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

    @property
    def A(self) -> Tensor:  # type: ignore[override]  # noqa: N802
        """[rules, n, n]."""
        A = self.gates[:, None, None] * torch.eye(self.size).to(self.keys)
        for k, beta in zip(self.keys.unbind(1), self.betas.unbind(1), strict=True):
            A = A - beta[:, None, None] * k[:, :, None] * (k[:, None, :] @ A)
        return A

    @property
    def B(self) -> Tensor:  # type: ignore[override]  # noqa: N802
        """[rules, n, V]."""
        B = self.keys.new_zeros(self.rules, *self.H0.shape)
        steps = zip(self.keys.unbind(1), self.betas.unbind(1), self.values.unbind(1), strict=True)
        for k, beta, v in steps:
            B = B + k[:, :, None] * (beta[:, None, None] * (v[:, None] - k[:, None] @ B))
        return B

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

    @property
    def A(self) -> Tensor:  # type: ignore[override]  # noqa: N802
        """[rules, n, n]."""
        return self.gates[:, None, None] * torch.eye(self.size).to(self.gates)

    @property
    def B(self) -> Tensor:  # type: ignore[override]  # noqa: N802
        """[rules, n, V]."""
        return self.keys[:, :, None] * self.values[:, None, :]

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


LAYERS = {layer.target: layer for layer in (DenseLayer, HouseholderLayer, DiagonalLayer)}
