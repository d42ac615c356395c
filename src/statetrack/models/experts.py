"""A sparse mixture of experts in place of a block's MLP, as in Qwen3-Next and Qwen3.5."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statetrack.config import check_types, option
from statetrack.errors import UserError
from statetrack.layers.operations import wide
from statetrack.ops import swiglu


@dataclass(frozen=True)
class ExpertsConfig:
    """Options of a mixture of experts."""

    count: int = option(8, "number of experts; there are none unless an option is given", low=1)
    top_k: int = option(2, "experts that each token chooses", low=1)
    size: int = option(512, "width of each expert", low=1)
    shared_size: int = option(512, "width of the shared expert, which reads every token", low=1)
    normalize: bool = option(True, "divide the weights of the chosen experts by their sum")
    layers: tuple[int, ...] | None = option(
        None, "layers with experts, counted from 0; None: all that have an MLP"
    )

    def __post_init__(self) -> None:
        check_types(self)
        if self.top_k > self.count:
            got = f"{self.top_k} of {self.count}"
            raise UserError(f"top_k of the experts must be at most their count; got {got}")
        layers = self.layers
        if layers is not None and (not layers or len(set(layers)) < len(layers)):
            right = "one or more, each once"
            raise UserError(f"layers of the experts must be {right}; got {list(layers)}")


class Experts(nn.Module):
    """The experts that a router chooses for each token, and a shared expert.

        p = softmax(router x)                                  of all experts
        y = sum_e w_e mlp_e(x) + sigmoid(shared_gate x) mlp_shared(x)
        mlp_e(x) = down_e (silu(gate_e x) * (up_e x))

    The sum is over the `top_k` experts e with the greatest p; w_e is p_e, with `normalize` divided
    by the sum of the chosen ones. `experts_naive` is this definition.
    """

    def __init__(self, hidden_size: int, config: ExpertsConfig) -> None:
        super().__init__()
        self.config = config
        count, size, shared_size = config.count, config.size, config.shared_size
        self.router = nn.Linear(hidden_size, count, bias=False)
        self.gate_up = nn.Parameter(torch.empty(count, 2 * size, hidden_size))
        self.down = nn.Parameter(torch.empty(count, hidden_size, size))
        self.shared_gate_up = nn.Linear(hidden_size, 2 * shared_size, bias=False)
        self.shared_down = nn.Linear(shared_size, hidden_size, bias=False)
        self.shared_gate = nn.Linear(hidden_size, 1, bias=False)
        for weight in (self.gate_up, self.down):  # as those of nn.Linear
            bound = weight.shape[-1] ** -0.5
            nn.init.uniform_(weight, -bound, bound)

    def init_normal_(self, std: float, down_std: float) -> None:
        """Initialise in place: N(0, down_std^2) the matrices of the outputs, N(0, std^2) others."""
        outputs = (self.down, self.shared_down.weight)
        for weight in self.parameters():
            last = any(weight is output for output in outputs)
            nn.init.normal_(weight, std=down_std if last else std)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden_size] -> the same; each expert reads the tokens that chose it at once."""
        tokens, k = x.reshape(-1, x.shape[-1]), self.config.top_k  # [N, D]
        weights, chosen = self.route(tokens)
        by_expert = chosen.flatten().argsort(stable=True)  # [N k], the choices of expert 0, 1, ...
        counts = chosen.flatten().bincount(minlength=self.config.count).tolist()
        inner = swiglu(_linears(tokens[by_expert // k], self.gate_up, counts))
        y = _linears(inner, self.down, counts)
        y = y[by_expert.argsort()].unflatten(0, (-1, k))  # [N, k, D], in the order of `chosen`
        shared = self.shared_down(swiglu(self.shared_gate_up(tokens)))
        gated = torch.sigmoid(self.shared_gate(tokens)) * shared
        return ((weights[..., None] * y).sum(1) + gated).to(shared.dtype).view(x.shape)

    def route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Choose experts for tokens [N, D].

        Returns:
            Their weights [N, top_k], in float32 or wider, and their numbers [N, top_k].
        """
        weights, chosen = wide(self.router(tokens)).softmax(-1).topk(self.config.top_k)
        if self.config.normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights, chosen


def _linears(x: Tensor, weight: Tensor, counts: Sequence[int]) -> Tensor:
    """Multiply counts[0] rows of x [R, in] by weight[0] [out, in], and so on: [R, out]."""
    parts = zip(x.split(list(counts)), weight.unbind(), strict=True)
    return torch.cat([F.linear(part, matrix) for part, matrix in parts if len(part)])


def experts_naive(experts: Experts, x: Tensor) -> Tensor:
    """The definition of `Experts`, token by token."""
    config, out = experts.config, []
    for x_t in x.reshape(-1, x.shape[-1]).unbind():
        p = torch.softmax(experts.router.weight @ x_t, 0)
        weights, chosen = p.topk(config.top_k)
        if config.normalize:
            weights = weights / weights.sum()
        gate = torch.sigmoid(experts.shared_gate.weight @ x_t)
        y = gate * _mlp(x_t, experts.shared_gate_up.weight, experts.shared_down.weight)
        for w, e in zip(weights, chosen.tolist(), strict=True):
            y = y + w * _mlp(x_t, experts.gate_up[e], experts.down[e])
        out.append(y)
    return torch.stack(out).view(x.shape)


def _mlp(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = (gate_up @ x).chunk(2)
    return down @ (F.silu(gate) * up)
