"""The layers that languages are compiled to, one for each op that they can run on."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from statetrack.compiler.factor import partial_injection
from statetrack.compiler.induction import Ints
from statetrack.compiler.layers import StageLayer, rows
from statetrack.compiler.scan import affine_scan
from statetrack.compiler.stages import Stage
from statetrack.layers import Dense, Diagonal, HouseholderProduct
from statetrack.ops import delta_product, gated_linear_attention


class DenseLayer(StageLayer):
    """Any matrices, through a blocked scan."""

    target = "dense"
    A: Tensor  # [contexts, n, n]
    B: Tensor  # [contexts, n, V]

    def __init__(self, stage: Stage, remembers: bool) -> None:
        super().__init__(stage, remembers)
        contexts, n = stage.points.shape
        A = torch.zeros(contexts, n, n)
        context, axis = np.nonzero(stage.points >= 0)
        A[context, stage.points[context, axis], axis] = 1
        B = torch.zeros(contexts, n, stage.codewords.shape[2])
        written = np.flatnonzero(stage.writes >= 0)
        B[written, stage.writes[written]] = 1
        self.register_buffer("A", A)
        self.register_buffer("B", B)

    def run(self, contexts: Tensor, state: Tensor, backend: str = "auto") -> tuple[Tensor, Tensor]:
        states, last = affine_scan(rows(self.A, contexts), rows(self.B, contexts), state)
        return (self._queries(contexts)[..., None, :] @ states)[..., 0, :], last

    def transition(self, contexts: Tensor) -> Dense:
        return Dense(rows(self.A, contexts)[:, :, None])

    def tables(self) -> dict[str, Tensor]:
        return {"A": self.A, "B": self.B}


class HouseholderLayer(StageLayer):
    """Products of swaps and projectors, after a gate that is 0 for what forgets everything."""

    target = "householder"
    keys: Tensor  # [contexts, factors, n], the first acting first
    betas: Tensor  # [contexts, factors]
    gates: Tensor  # [contexts]
    values: Tensor  # [contexts, factors, V]

    def __init__(self, stage: Stage, remembers: bool) -> None:
        super().__init__(stage, remembers)
        contexts, n = stage.points.shape
        gates = (stage.points >= 0).any(axis=1)
        matrices = [*map(tuple, stage.points.tolist())]
        products = {points: _factors(points) for points in set(matrices)}  # few, for many contexts
        lists = [products[points] for points in matrices]
        most = max(1, *(len(v) + (axis >= 0) for v, axis in zip(lists, stage.writes, strict=True)))
        keys = np.zeros((contexts, most, n), dtype=np.float32)
        betas = np.zeros((contexts, most), dtype=np.float32)
        values = np.zeros((contexts, most, stage.codewords.shape[2]), dtype=np.float32)
        for c, (vectors, axis) in enumerate(zip(lists, stage.writes.tolist(), strict=True)):
            count = len(vectors)
            keys[c, :count], betas[c, :count] = vectors, 1
            if axis >= 0:
                keys[c, count, axis], betas[c, count], values[c, count] = 1, 1, 1
        self.register_buffer("keys", torch.from_numpy(keys))
        self.register_buffer("betas", torch.from_numpy(betas))
        self.register_buffer("values", torch.from_numpy(values))
        self.register_buffer("gates", torch.tensor(gates, dtype=torch.float32))

    @property
    def A(self) -> Tensor:  # noqa: N802
        """[contexts, n, n]."""
        A = self.gates[:, None, None] * torch.eye(self.size).to(self.keys)
        for k, beta in zip(self.keys.unbind(1), self.betas.unbind(1), strict=True):
            A = A - beta[:, None, None] * k[:, :, None] * (k[:, None, :] @ A)
        return A

    @property
    def B(self) -> Tensor:  # noqa: N802
        """[contexts, n, V]."""
        B = self.keys.new_zeros(self.contexts, *self.H0.shape)
        steps = zip(self.keys.unbind(1), self.betas.unbind(1), self.values.unbind(1), strict=True)
        for k, beta, v in steps:
            B = B + k[:, :, None] * (beta[:, None, None] * (v[:, None] - k[:, None] @ B))
        return B

    def run(self, contexts: Tensor, state: Tensor, backend: str = "auto") -> tuple[Tensor, Tensor]:
        o, last = delta_product(
            self._queries(contexts)[:, :, None],
            rows(self.keys, contexts).flatten(1, 2)[:, :, None],
            rows(self.values, contexts).flatten(1, 2)[:, :, None],
            rows(self.betas, contexts).flatten(1, 2)[:, :, None],
            num_householder=self.keys.shape[1],
            decay=rows(self.gates, contexts)[:, :, None],
            scale=1.0,
            initial_state=state[:, None],
            output_final_state=True,
            backend=backend,
        )
        assert last is not None
        return o[:, :, 0], last[:, 0]

    def transition(self, contexts: Tensor) -> HouseholderProduct:
        gates, keys, betas = (
            rows(table, contexts)[:, :, None] for table in (self.gates, self.keys, self.betas)
        )
        return HouseholderProduct(gates, keys, betas, (-1.0, 1.0))

    def tables(self) -> dict[str, Tensor]:
        names = ("keys", "betas", "gates", "values")
        return {name: self.get_buffer(name) for name in names}


def _factors(points: tuple[int, ...]) -> Ints:
    """[factors, n]: the vectors of a matrix's factors, the first acting first; a 0 has a gate."""
    found = [] if max(points) < 0 else partial_injection(points)[::-1]
    return np.array([factor.v for factor in found], dtype=np.int64).reshape(-1, len(points))


class DiagonalLayer(StageLayer):
    """A gate of 0 or 1 for the whole state, and a write: enough for resets, but not to permute."""

    target = "diagonal"
    keys: Tensor  # [contexts, n]
    gates: Tensor  # [contexts]
    values: Tensor  # [contexts, V]

    def __init__(self, stage: Stage, remembers: bool) -> None:
        super().__init__(stage, remembers)
        contexts, n = stage.points.shape
        writes = torch.tensor(stage.writes)
        self.register_buffer("gates", torch.tensor((stage.points[:, 0] >= 0), dtype=torch.float32))
        written = (writes >= 0).float()[:, None]
        self.register_buffer("keys", torch.eye(n)[writes.clamp(min=0)] * written)
        self.register_buffer("values", written.expand(contexts, stage.codewords.shape[2]).clone())

    @property
    def A(self) -> Tensor:  # noqa: N802
        """[contexts, n, n]."""
        return self.gates[:, None, None] * torch.eye(self.size).to(self.gates)

    @property
    def B(self) -> Tensor:  # noqa: N802
        """[contexts, n, V]."""
        return self.keys[:, :, None] * self.values[:, None, :]

    def run(self, contexts: Tensor, state: Tensor, backend: str = "auto") -> tuple[Tensor, Tensor]:
        o, last = gated_linear_attention(
            self._queries(contexts)[:, :, None],
            rows(self.keys, contexts)[:, :, None],
            rows(self.values, contexts)[:, :, None],
            decay=rows(self.gates, contexts)[:, :, None],
            scale=1.0,
            initial_state=state[:, None],
            output_final_state=True,
            backend=backend,
        )
        assert last is not None
        return o[:, :, 0], last[:, 0]

    def transition(self, contexts: Tensor) -> Diagonal:
        gates = rows(self.gates, contexts)[:, :, None, None]
        return Diagonal(gates.expand(-1, -1, 1, self.size), (0.0, 1.0))

    def tables(self) -> dict[str, Tensor]:
        return {name: self.get_buffer(name) for name in ("keys", "gates", "values")}


LAYERS = {layer.target: layer for layer in (DenseLayer, HouseholderLayer, DiagonalLayer)}
