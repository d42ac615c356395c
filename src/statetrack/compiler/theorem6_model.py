"""Theorem 6 as the weights of an ordinary DeltaNet, from which training can start.

`theorems.theorem6` has the same construction as tables. Here every vector that a block adds to the
residual stream has a direction of its own, one of an orthonormal basis: the embedding of each
token, the sign p of the first layer, and one direction for the reading of each head of the second.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from statetrack.devices import on_cpu
from statetrack.errors import UserError
from statetrack.layers import DeltaNet, DeltaNetConfig
from statetrack.models import ModelConfig, SequenceModel
from statetrack.models.block import Block, GatedMLP
from statetrack.tasks import Task
from statetrack.tasks.word_problem import GroupWordProblem

SATURATED = 15.0  # logit at which 2 sigmoid is 2 up to 6e-7, but still has a gradient
BOS_LOGIT = 2.0  # of BOS at BOS, as a multiple of the largest logit of an element


@torch.no_grad()
@on_cpu()
def theorem6_model(config: ModelConfig, task: Task, seed: int = 0) -> SequenceModel:
    """Return a two-layer DeltaNet that adds modulo an odd m, with one reflection per token.

    In every head of the first layer the state is a sign p, which BOS writes and every token flips.
    In every head of the second it is a point on a circle at angle f, in units of 2 pi / m: BOS
    writes f = 0, and the token x reflects it to p x - f, along the key (-tan(pi x / m), p). Then
    p f is the sum of the tokens. The query of head h depends on p and reads on which side of a line
    p f lies; the lines of all heads together separate the m sums.

    It is exact up to rounding. MLPs give 0 and start to learn from there; their first matrices, the
    basis of the residual stream and unused tokens are random.

    Args:
        config: two layers of DeltaNet [-1,1] without convolution; vocab_size, hidden_size and
            num_heads are free, with at least (m + 1) / 2 heads, all else is at its default.
        task: the word problem of Z3, Z5, ...
        seed: of what is random.

    Raises:
        UserError: the model or the task is another one, or the model is too small.

    >>> from statetrack.tasks import make_task
    >>> task = make_task("Z3")
    >>> mixer = DeltaNetConfig(allow_neg_eigval=True, conv_size=0)
    >>> model = theorem6_model(ModelConfig(len(task.vocab), 64, 2, mixer), task)
    >>> logits, _ = model(torch.tensor([[task.bos, 2, 2, 1, 1]]))
    >>> logits.argmax(-1).tolist()[0][1:]
    [2, 1, 2, 0]
    """
    m, bos_token = _check(config, task)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = SequenceModel(config)
        basis = torch.linalg.qr(torch.randn(config.hidden_size, config.hidden_size))[0]
    first, second = (_emptied(block) for block in model.stack())
    heads = first.config.num_heads
    elements, bos, sign, codes, _ = basis.split(
        [m, 1, 1, heads, config.hidden_size - m - 2 - heads]
    )
    bos, sign = bos[0], sign[0]
    scale = config.hidden_size**0.5  # of what is added to the residual stream: entries of size 1
    model.embedding.weight[:m] = scale * elements
    model.embedding.weight[bos_token] = scale * bos
    always = elements.sum(0) + bos  # has the same product with the embedding of every token
    _write_first(first, always, bos, sign)
    unit = torch.pi / m
    normals = unit * (2 * torch.arange(heads) + 0.5) + torch.pi / 2  # of the lines
    _write_second(second, elements, always, bos, sign, normals, codes)
    sides = torch.cos(2 * unit * torch.arange(m)[:, None] - normals).sign()  # [m, heads]
    head = model.head.weight
    assert isinstance(head, Tensor)
    head.zero_()
    head[:m] = sides @ codes
    head[bos_token] = BOS_LOGIT * heads * bos
    return model


def _check(config: ModelConfig, task: Task) -> tuple[int, int]:
    """Check the model and the task; return m and the token BOS."""
    mixer = config.mixer
    heads = mixer.num_heads if isinstance(mixer, DeltaNetConfig) else 1
    wanted = DeltaNetConfig(allow_neg_eigval=True, conv_size=0, num_heads=heads)
    if config != ModelConfig(config.vocab_size, config.hidden_size, 2, wanted):
        raise UserError(
            "Theorem 6 needs two layers of DeltaNet [-1,1] without convolution, with every option "
            f"but vocab_size, hidden_size and num_heads at its default; got {config.num_layers} "
            f"of {config.title}"
        )
    if (
        not isinstance(task, GroupWordProblem)
        or not re.fullmatch("Z[0-9]*[13579]", task.name)
        or task.tokens_per_element > 1
    ):
        raise UserError(f"Theorem 6 needs Z3, Z5, ... with one token per element; got {task.name}")
    m = task.group.order
    size = config.hidden_size // heads
    if 2 * heads < m + 1 or m + 2 + heads > config.hidden_size or size < 2:
        raise UserError(
            f"addition modulo {m} needs at least {(m + 1) // 2} heads of size 2 or more, and a "
            f"hidden size of {m + 2} and one more per head; got {heads} heads of size {size}"
        )
    return m, task.bos


def _emptied(block: Block) -> DeltaNet:
    """Let a block add nothing to the residual stream, and its layer write nothing."""
    assert isinstance(block.mixer, DeltaNet)
    assert isinstance(block.mlp, GatedMLP)
    block.mlp.down.weight.zero_()
    for part in (block.mixer.qkv_proj, block.mixer.beta.proj, block.mixer.o_proj):
        part.weight.zero_()
    return block.mixer


def _write_first(layer: DeltaNet, always: Tensor, bos: Tensor, sign: Tensor) -> None:
    """Keep a sign on the first axis of every head: BOS writes it, each token reflects it."""
    weights, size = layer.projections(), layer.value_size
    weights.k[0, :, 0] = weights.q[:, 0] = always
    weights.v[0, :, 0] = bos
    weights.beta[:] = SATURATED / layer.hidden_size**0.5 * always
    # a head that reads along one axis gives sqrt(size) there, after its norm
    each = (layer.hidden_size / size) ** 0.5 / layer.config.num_heads
    layer.o_proj.weight[:, ::size] = each * sign[:, None]


def _write_second(
    layer: DeltaNet,
    elements: Tensor,
    always: Tensor,
    bos: Tensor,
    sign: Tensor,
    normals: Tensor,
    codes: Tensor,
) -> None:
    """Reflect a point in the plane of the first two axes; read its side of each head's line."""
    weights, size = layer.projections(), layer.value_size
    tangents = torch.tan(torch.pi / len(elements) * torch.arange(len(elements)))
    weights.k[0, :, 0] = bos - tangents @ elements
    weights.k[0, :, 1] = sign - bos  # BOS, where p is 1, has the key (1, 0)
    weights.q[:, 0] = normals.cos()[:, None] * always
    weights.q[:, 1] = normals.sin()[:, None] * sign
    weights.v[0, :, 0] = bos
    weights.beta[:] = SATURATED / (layer.hidden_size / 2) ** 0.5 * always
    layer.o_proj.weight[:, ::size] = (layer.hidden_size / size) ** 0.5 * codes.T
