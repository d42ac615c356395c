"""A whole training step of DeltaNet: ours, and the same model in plain torch around a peer's op."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.ops.candidates import Call
from benchmarks.timing import Tensors
from statetrack import DeltaNetConfig, ModelConfig, SequenceModel
from statetrack.ops import delta_rule

VOCABULARY, WIDTH, HEADS, LAYERS, CONV = 8, 128, 4, 2, 4


def model() -> SequenceModel:
    """2 layers of DeltaNet [-1,1] with SwiGLU, the same weights every time."""
    torch.manual_seed(0)
    mixer = DeltaNetConfig(num_heads=HEADS, conv_size=CONV, allow_neg_eigval=True)
    return SequenceModel(
        ModelConfig(
            vocab_size=VOCABULARY, hidden_size=WIDTH, num_layers=LAYERS, mixer=mixer, mlp="swiglu"
        )
    )


class PlainModel(nn.Module):
    """The weights of a SequenceModel, run by torch's own functions and a given delta rule.

    delta: (q, k, v, beta), all [B, H, T, ...] -> [B, H, T, V].
    """

    def __init__(self, ours: SequenceModel, delta: Callable[..., Tensor]) -> None:
        super().__init__()
        self.ours = copy.deepcopy(ours)
        self.delta = delta

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [B, T, vocabulary]."""
        x = self.ours.embedding(tokens)
        block: Any
        for block in self.ours.blocks:
            x = x + self.mix(block.mixer, _norm(block.mixer_norm, x))
            gate, up = block.mlp.gate_up(_norm(block.mlp_norm, x)).chunk(2, -1)
            x = x + block.mlp.down(F.silu(gate) * up)
        return self.ours.head(_norm(self.ours.norm, x))

    def mix(self, layer: Any, x: Tensor) -> Tensor:
        """DeltaNet with F.conv1d and the given delta rule."""
        qkv = layer.qkv_proj(x).transpose(1, 2)
        weight = layer.conv.weight[:, None]
        padding = weight.shape[-1] - 1
        conv = F.conv1d(qkv, weight, padding=padding, groups=len(weight))[..., : x.shape[1]]
        heads = F.silu(conv).unflatten(1, (3, HEADS, -1)).transpose(-1, -2)
        q, k, v = heads.unbind(1)  # [B, H, T, K]
        q, k = (y * torch.rsqrt((y * y).sum(-1, keepdim=True) + 1e-6) for y in (q, k))
        beta = 2 * torch.sigmoid(layer.beta.proj(x)).transpose(1, 2)
        o = self.delta(q, k, v, beta).transpose(1, 2)
        return layer.o_proj(_norm(layer.norm, o).flatten(-2))


def _norm(norm: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, norm.weight.shape, norm.weight, norm.eps)


def _step(
    net: nn.Module, logits: Callable[[Tensor], Tensor], inputs: Tensors
) -> Callable[[], Tensors]:
    tokens, targets = inputs["tokens"].long(), inputs["targets"].long()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)

    def call() -> Tensors:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(logits(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        grads = {f"d{name}": p.grad for name, p in net.named_parameters() if p.grad is not None}
        return {"loss": loss.detach(), **{k.replace("ours.", ""): g for k, g in grads.items()}}

    return call


def ours(inputs: Tensors, chunk: int | None) -> Call:
    """The model as the package has it."""
    net = model()
    return _step(net, lambda tokens: net(tokens)[0], inputs)


def plain(delta: Callable[..., Tensor]) -> Callable[[Tensors, int | None], Call]:
    """The same model around another delta rule."""

    def prepare(inputs: Tensors, chunk: int | None) -> Call:
        chosen = {} if chunk is None else {"chunk_size": chunk}
        net = PlainModel(model(), lambda *args: delta(*args, **chosen))
        net.to(inputs["weight"].dtype)
        return _step(net, net, inputs)

    return prepare


def definition(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """The defining loop on [B, H, T, ...]."""
    q, k, v, beta = (x.transpose(1, 2) for x in (q, k, v, beta))
    return delta_rule(q, k, v, beta, backend="naive")[0].transpose(1, 2)


def draw(batch: int, length: int) -> Tensors:
    """Random tokens and targets; `weight` carries the number type to compute in."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randint(VOCABULARY, (batch, length), generator=generator).double()
        for name in ("tokens", "targets")
    } | {"weight": torch.zeros(1, dtype=torch.float64)}


def flops(batch: int, length: int) -> float:
    """6 for every weight of a product and token, and the delta rule and convolution of layers."""
    net = model()
    linear = sum(m.weight.numel() for m in net.modules() if isinstance(m, nn.Linear))
    size = WIDTH // HEADS
    layer = 20 * HEADS * size * size + 6 * CONV * 3 * WIDTH
    return float(batch * length * (6 * linear + LAYERS * layer))
