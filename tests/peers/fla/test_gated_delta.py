"""Gated delta rule and products against flash-linear-attention's loops; its layers' weights."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from fla import layers as theirs
from fla.ops.gated_delta_product.naive import naive_recurrent_gated_delta_product
from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
from torch import Tensor

from statetrack.layers import DeltaNet, DeltaProduct, GatedDeltaNet, GatedDeltaProduct, Mixer
from statetrack.models.convert.gated_delta_net import delta_rule_mixer
from statetrack.ops import delta_product, delta_rule
from tests.ops.common import (
    Tensors,
    assert_all_close,
    assert_close,
    delta_product_inputs,
    delta_rule_inputs,
    draw,
    run,
)

BACKENDS = ["naive", "torch", "native"]
SHAPES = [(2, 1, 3, 5, 7), (2, 33, 2, 8, 4), (1, 100, 2, 16, 16)]
WIDTH = 24


def check(ours: Any, reference: Any, drawn: Tensors, backend: str) -> None:
    """Values and all gradients, in float32 on both sides."""
    expected = run(reference, drawn, torch.float32)
    assert_all_close(run(partial(ours, backend=backend), drawn, torch.float32), expected, 1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gated_delta_rule(shape: tuple[int, ...], backend: str) -> None:
    drawn = delta_rule_inputs(*shape, gate="g")
    check(delta_rule, naive_recurrent_gated_delta_rule, drawn, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("gate", [None, "g"], ids=["plain", "gated"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_delta_product(n: int, gate: str | None, shape: tuple[int, ...], backend: str) -> None:
    drawn = delta_product_inputs(*shape, n, gate=gate)

    def reference(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Any = None, **more: Any) -> Any:
        scale = q.shape[-1] ** -0.5
        return naive_recurrent_gated_delta_product(
            q, k, v, g, beta, scale, num_householder=n, **more
        )

    check(partial(delta_product, num_householder=n), reference, drawn, backend)


def forward(layer: Any, x: Tensor, n: int) -> Tensor:
    """What fla's layers compute, from their weights and loops: their own code needs a GPU."""

    def project(name: str, heads: int, size: int) -> Tensor:
        y = x @ getattr(layer, f"{name}_proj").weight.T
        if layer.use_short_conv:
            weight = getattr(layer, f"{name}_conv1d").weight
            width = weight.shape[-1]
            y = F.conv1d(y.mT, weight, padding=width - 1, groups=len(weight))[..., : x.shape[1]].mT
        y = F.silu(y).unflatten(-1, (-1, heads, size))  # one factor after the other
        return y.flatten(1, 2)

    heads = getattr(layer, "num_v_heads", layer.num_heads)
    q, k = (
        F.normalize(project(name, layer.num_heads, layer.head_k_dim), dim=-1).repeat_interleave(
            heads // layer.num_heads, 2
        )
        for name in "qk"
    )
    v = project("v", heads, layer.head_v_dim)
    beta = (1 + layer.allow_neg_eigval) * torch.sigmoid(x @ layer.b_proj.weight.T)
    beta = beta.unflatten(-1, (n, heads)).flatten(1, 2)
    g = None
    if hasattr(layer, "A_log"):
        g = -layer.A_log.exp() * F.softplus(x @ layer.a_proj.weight.T + layer.dt_bias)
    scale = layer.head_k_dim**-0.5
    o, _ = naive_recurrent_gated_delta_product(q, k, v, g, beta, scale, num_householder=n)
    o = F.rms_norm(o, o.shape[-1:], layer.o_norm.weight, layer.o_norm.eps)
    if hasattr(layer, "g_proj"):
        o = o * F.silu(x @ layer.g_proj.weight.T).view_as(o)
    return o.flatten(2) @ layer.o_proj.weight.T


class Case(NamedTuple):
    theirs: Any
    their_options: dict[str, Any]
    ours: type[Mixer]
    options: dict[str, Any]
    n: int = 1


HEADS = {"num_heads": 2, "head_dim": 6}
OUR_HEADS = {"num_heads": 2, "expand_k": 0.5, "expand_v": 1.0}
SWITCH = {"allow_neg_eigval": True}
BARE = {"use_forget_gate": False, "use_output_gate": False, "use_short_conv": False}

CASES = {
    "DeltaNet": Case(
        theirs.DeltaNet, {"num_heads": 2, **SWITCH},
        DeltaNet, {"num_heads": 2, **SWITCH},
    ),
    "DeltaNet-gated-output": Case(
        theirs.DeltaNet, {"num_heads": 3, "use_gate": True},
        DeltaNet, {"num_heads": 3, "output_gate": True},
    ),
    "GatedDeltaNet": Case(
        theirs.GatedDeltaNet, HEADS | SWITCH,
        GatedDeltaNet, OUR_HEADS | SWITCH,
    ),
    "GatedDeltaNet-shared-keys": Case(
        theirs.GatedDeltaNet, HEADS | {"num_v_heads": 4, "use_gate": False},
        GatedDeltaNet, OUR_HEADS | {"num_v_heads": 4, "expand_v": 2.0, "output_gate": False},
    ),
    "GatedDeltaProduct": Case(
        theirs.GatedDeltaProduct, HEADS | {"num_householder": 3},
        GatedDeltaProduct, OUR_HEADS | SWITCH | {"num_householder": 3}, 3,
    ),
    "DeltaProduct-bare": Case(
        theirs.GatedDeltaProduct, HEADS | BARE | {"allow_neg_eigval": False},
        DeltaProduct, OUR_HEADS | {"conv_size": 0}, 2,
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:ShortConvolution is crucial")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_weights_of_whole_layers(case: Case) -> None:
    normal = draw(0)
    layer = case.theirs(hidden_size=WIDTH, **case.their_options).double()
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(0.3 * normal(*p.shape))
    ours = case.ours(WIDTH, head_norm_eps=1e-5, **case.options).double()
    ours.load_state_dict(delta_rule_mixer(layer.state_dict()))
    x = normal(2, 40, WIDTH)
    y, _ = ours(x)
    assert_close(y, forward(layer, x, case.n), 1e-5)  # fla's loop computes in float32
