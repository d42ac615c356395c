"""The full matrix: a learned transition matrix per token, the most general A(x)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from statetrack.config import at_least, option
from statetrack.layers.base import Mixer, MixerConfig, register
from statetrack.layers.operations import TensorOps, masked
from statetrack.layers.transitions import Dense
from statetrack.ops.backends import full_precision
from statetrack.ops.chunks import merge, split

BLOCK = 16  # tokens


@dataclass(frozen=True)
class FullMatrixConfig(MixerConfig):
    """The size of `FullMatrix`, which takes hidden_size * n^2 weights for its matrices."""

    name: ClassVar[str] = "full_matrix"
    label: ClassVar[str] = "Full matrix"
    no_switch: ClassVar[str] = "its matrices are free, so their eigenvalues lie in no interval"
    about: ClassVar[str] = "A(x) any matrix: one for each of x's coordinates, for one-hot tokens"

    size: int = option(32, "n, for matrices n by n")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("size", self.size, 1)

    @classmethod
    def variants(cls) -> list[Self]:
        return [
            cls(size=3),
        ]


class FullMatrixInputs(NamedTuple):
    """What the full matrix multiplies, in float32 or wider."""

    D: Tensor  # [B, T, 1, n, n]: A(x) - I


class FullMatrixState(NamedTuple):
    """The product H of the matrices of all tokens so far."""

    E: Tensor  # [B, n, n]: H - I, so that the state before the first token is 0


@register
class FullMatrix(Mixer):
    """H_t = A(x_t) H_{t-1} from H_0 = I,  y_t = W vec(H_t) / max(1, |H_t|) + b.

    A(x) = I + sum_i x_i (A_i - I): one of the matrices A_i for a unit vector (a token), and the
    identity for 0. The output reads H_t, projected onto the unit ball. The matrices are not
    constrained. Options: see FullMatrixConfig.
    """

    config_class = FullMatrixConfig
    config: FullMatrixConfig
    unsupported: ClassVar[Mapping[str, str]] = {
        "long_sequences": "nothing confines its matrices, so that long products of them overflow"
    }

    def __init__(self, hidden_size: int, config: FullMatrixConfig | None = None, **options: Any):
        super().__init__(hidden_size, config, **options)
        n = self.config.size
        # near the identity, long products neither grow nor vanish, and training is fastest
        self.A = nn.Parameter(torch.eye(n) + 0.02 * torch.randn(hidden_size, n, n))
        self.out_proj = nn.Linear(n * n, hidden_size)

    def init_state(self, batch: int) -> FullMatrixState:
        n = self.config.size
        return FullMatrixState(self.zeros(batch, n, n))

    def op_inputs(self, x: Tensor) -> FullMatrixInputs:
        """Return what the layer multiplies for x [B, T, hidden_size]."""
        self.check_input(x)
        dtype = torch.promote_types(x.dtype, torch.float32)
        with full_precision(x):
            D = self.A.to(dtype) - self._identity(dtype)
            return FullMatrixInputs((x.to(dtype) @ D.flatten(1)).unflatten(-1, (1, *D.shape[1:])))

    def _identity(self, dtype: torch.dtype) -> Tensor:
        return torch.eye(self.config.size, dtype=dtype, device=self.device)

    def mix(
        self, x: Tensor, state: FullMatrixState, ops: TensorOps
    ) -> tuple[Tensor, FullMatrixState]:
        if ops.mask is not None:
            x = masked(x, ops.mask, 0.0)
        # the loop does half the work, and a large batch keeps it busy
        loop = ops.backend == "naive" or len(x) >= BLOCK
        products = products_naive if loop else products_blocked
        (D,) = self.op_inputs(x)
        with full_precision(x):
            E = products(D, state.E.to(D.dtype)[:, None])[:, :, 0]  # [B, T, n, n]
            vec = (E + self._identity(E.dtype)).flatten(-2)
            # the norm of vec / scale cannot overflow
            scale = vec.detach().abs().amax(-1, keepdim=True).clamp(min=1.0)
            vec = vec / scale
            vec = vec / torch.maximum(vec.norm(dim=-1, keepdim=True), 1 / scale)
        y = self.out_proj(vec.to(self.out_proj.weight.dtype))
        return y, FullMatrixState(E[:, -1])

    def transitions(self, x: Tensor) -> Dense:
        (D,) = self.op_inputs(x)
        return Dense(D + self._identity(D.dtype))


def products_naive(D: Tensor, E: Tensor) -> Tensor:
    """E_t with I + E_t = (I + D_t) ... (I + D_1) (I + E), by definition: the oracle.

    D: [B, T, 1, n, n]; E: [B, 1, n, n]; returns [B, T, 1, n, n].
    """
    return torch.stack(_running(D.unbind(1), E), 1)


def products_blocked(D: Tensor, E: Tensor) -> Tensor:
    """`products_naive`, token by token in all blocks at once and then block by block."""
    first, *rest = split(D, BLOCK).unbind(3)  # [B, N, 1, n, n] each; filled up with D = 0
    inside = torch.stack([first, *_running(rest, first)], 3)  # [B, N, 1, C, n, n]
    *ends, _ = inside[:, :, :, -1].unbind(1)
    starts = torch.stack([E, *_running(ends, E)], 1)  # [B, N, 1, n, n]
    tall = inside.flatten(3, 4) @ starts  # one product for all of a block: [B, N, 1, C n, n]
    return merge(inside + starts[:, :, :, None] + tall.view_as(inside), D.shape[1])


def _running(D: Sequence[Tensor], E: Tensor) -> list[Tensor]:
    """(I + D_t)(I + E_{t-1}) - I for each t; where D_t = 0, exactly E_{t-1}."""
    products = []
    for D_t in D:
        E = D_t + E + D_t @ E
        products.append(E)
    return products
