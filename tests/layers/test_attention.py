"""Attention against its formula, its cache, its options and its initialisation."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from statetrack.errors import UserError
from statetrack.layers import Attention, AttentionConfig, AttentionState
from statetrack.layers.attention import rotate
from statetrack.testing.inputs import draw
from tests.layers.common import (
    HIDDEN,
    assert_same_state,
    inputs,
    make_layer,
    row,
    step_through,
)
from tests.ops.common import assert_close


def turned(x: Tensor, t: int, base: float | None, fraction: float = 1.0) -> Tensor:
    """One head x [D] at position t: its pairs as complex numbers, each turned by its own angle."""
    if base is None:
        return x
    x, rest = x.tensor_split([int(len(x) * fraction)])
    half = len(x) // 2
    pairs = torch.complex(x[:half], x[half:])
    angles = torch.tensor([t / base ** (i / half) for i in range(half)], dtype=torch.float64)
    pairs = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([pairs.real, pairs.imag, rest])


def reference(layer: Attention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x [T, hidden_size]: y, and the keys and values [T, H, D], token by token."""
    c = layer.config
    heads, kv_heads = c.num_heads, c.num_kv_heads or c.num_heads
    D = c.head_dim or HIDDEN // heads
    rope = c.rope_base, c.rope_fraction
    W_q, W_k, W_v = layer.qkv_proj.weight.split([heads * D, kv_heads * D, kv_heads * D])
    outputs, keys, values = [], [], []

    def norm(y: Tensor, part: str) -> Tensor:
        if c.qk_norm_eps is None:
            return y
        y = y.reshape(-1, D) if c.qk_norm_by_head else y
        size = (y.square().mean(-1, keepdim=True) + c.qk_norm_eps).sqrt()
        return (y / size * getattr(layer, part).weight).flatten()

    for t in range(len(x)):
        k = norm(W_k @ x[t], "k_norm").reshape(kv_heads, D)
        keys.append([turned(k_h, t, *rope) for k_h in k])
        values.append((W_v @ x[t]).reshape(kv_heads, D))
        o = []
        for h in range(heads):
            q = turned(norm(W_q @ x[t], "q_norm")[h * D : (h + 1) * D], t, *rope)
            g = h // (heads // kv_heads)  # the group of heads that shares keys and values
            weights = torch.stack([torch.exp(q @ k[g] / math.sqrt(D)) for k in keys])
            o.append(sum(w * v[g] for w, v in zip(weights, values, strict=True)) / weights.sum())
        gate = 1.0 if layer.g_proj is None else torch.sigmoid(layer.g_proj.weight @ x[t])
        outputs.append(layer.o_proj.weight @ (gate * torch.cat(o)))
    return torch.stack(outputs), torch.stack([torch.stack(k) for k in keys]), torch.stack(values)


@pytest.mark.parametrize(
    "options",
    [{"num_heads": 3}, {"num_heads": 1, "rope_base": 7.0}, {"num_heads": 6, "num_kv_heads": 3},
     {"num_heads": 2, "num_kv_heads": 1}, {"num_heads": 4, "rope_base": None},
     {"num_heads": 6, "num_kv_heads": 2, "qk_norm_eps": 0.1}, {"num_heads": 2, "head_dim": 8},
     {"num_heads": 4, "num_kv_heads": 2, "head_dim": 6, "rope_fraction": 0.7, "qk_norm_eps": 0.1,
      "qk_norm_by_head": True, "output_gate": True}],
    ids=str,
)  # fmt: skip
def test_forward_is_the_formula(options):
    layer = make_layer(AttentionConfig(**options))
    x = inputs(2, 9)
    y, state = layer(x)
    assert isinstance(state, AttentionState)
    assert state.length.tolist() == [9, 9]
    for n in range(2):
        expected, keys, values = reference(layer, x[n])
        assert_close(y[n], expected, 1e-11)
        assert_close(state.k[n], keys, 1e-11)
        assert_close(state.v[n], values, 1e-11)


def test_rows_of_different_lengths_go_on_from_their_own_positions():
    layer = make_layer(AttentionConfig(num_heads=3))
    x, more = inputs(3, 6), inputs(3, 4, seed=4)
    mask = torch.tensor([[0, 0, 1, 1, 0, 1], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]]).bool()
    _, state = layer(x, mask=mask)
    assert state.length.tolist() == [3, 6, 0]
    y, end = layer(more[:, :2], state)
    last, end = step_through(layer, more[:, 2:], end)
    assert end.length.tolist() == [7, 10, 4]
    for n in range(3):
        expected, keys, _ = reference(layer, torch.cat([x[n, mask[n]], more[n]]))
        assert_close(torch.cat([y, last], 1)[n], expected[-4:], 1e-11)
        assert_close(row(end, n).k[0], keys, 1e-11)


def test_a_cache_with_room_left():
    """Beam search may drop the longest row; a row may be masked altogether from the start."""
    layer = make_layer(AttentionConfig(num_heads=3))
    x = inputs(2, 6)
    _, state = layer(x, mask=torch.tensor([[1] * 6, [1] * 2 + [0] * 4]))
    y, end = layer(x[1:, 2:], AttentionState(*(part[1:] for part in state)))
    expected, expected_end = layer(x[1:])
    assert_close(y, expected[:, 2:], 1e-11)
    assert_same_state(end, expected_end)

    _, nothing = layer(x, mask=torch.zeros(2, 6))
    y, end = layer(x, nothing)
    expected, expected_end = layer(x)
    assert_close(y, expected, 1e-11)
    assert_same_state(end, expected_end)


def test_a_mask_tensor_only_where_it_is_needed(monkeypatch):
    used = []

    def spy(q, k, v, attn_mask, **options):
        used.append((None if attn_mask is None else list(attn_mask.shape), options["is_causal"]))
        return attention(q, k, v, attn_mask, **options)

    attention = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    layer = make_layer(AttentionConfig(num_heads=3))
    x = inputs(2, 5)
    _, state = layer(x)
    layer.step(x[:, 0], state)
    layer(x, state)
    _, uneven = layer(x, mask=torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]))
    layer.step(x[:, 0], uneven)
    assert used == [
        (None, True),
        (None, False),
        ([5, 10], False),
        (None, True),
        ([2, 1, 1, 6], False),
    ]


def test_only_the_distance_of_two_positions_counts():
    normal = draw(0)
    q, k = normal(1, 1, 2, 8), normal(1, 1, 2, 8)

    def scores(m: int, n: int) -> Tensor:
        at = [rotate([x], torch.tensor([t]), 100.0, 8)[0] for x, t in ((q, m), (k, n))]
        return (at[0] * at[1]).sum(-1)

    assert_close(scores(40, 33), scores(7, 0), 1e-12)
    assert (scores(40, 33) - scores(40, 34)).abs().max() > 1e-3
    assert_close(rotate([q], torch.tensor([0]), 100.0, 8)[0], q, 1e-15)


def test_the_cache_has_the_type_of_the_weights():
    layer = Attention(8).bfloat16()
    y, state = layer(torch.randn(1, 10, 8).bfloat16())
    assert y.dtype == state.k.dtype == state.v.dtype == torch.bfloat16
    y, state = layer.step(torch.randn(1, 8).bfloat16(), state)
    assert y.dtype == state.k.dtype == torch.bfloat16
    wide = AttentionState(state.k.float(), state.v.float(), state.length)
    assert layer(torch.randn(1, 3, 8).bfloat16(), wide)[1].k.dtype == torch.bfloat16


def test_initialisation():
    torch.manual_seed(0)
    layer = Attention(128)
    for projection in (layer.qkv_proj, layer.o_proj):
        assert float(projection.weight.detach().std()) == pytest.approx(0.02, rel=0.05)
    layer.init_at_depth(1, 8)
    assert float(layer.o_proj.weight.detach().std()) == pytest.approx(0.02 / 4, rel=0.05)


def test_parameters():
    layer = Attention(12, num_heads=6, num_kv_heads=2)
    assert {name: list(p.shape) for name, p in layer.named_parameters()} == {
        "qkv_proj.weight": [12 + 4 + 4, 12],
        "o_proj.weight": [12, 12],
    }
    layer = Attention(12, num_heads=6, num_kv_heads=2, qk_norm_eps=1e-6)
    assert (len(layer.q_norm.weight), len(layer.k_norm.weight)) == (12, 4)


def test_title():
    assert AttentionConfig().title == "Attention"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_heads": 0}, "num_heads must be"),
        ({"num_heads": 5}, "num_heads must divide hidden_size; got 5 heads for 12"),
        ({"num_heads": 4}, "rotary positions rotate pairs of channels; got 3 of 3 channels"),
        ({"num_heads": 3, "rope_fraction": 0.25}, "pairs of channels; got 1 of 4 channels"),
        ({"num_heads": 3, "rope_fraction": 0.1}, "pairs of channels; got 0 of 4 channels"),
        ({"rope_fraction": 0.0}, r"rope_fraction must lie in \(0, 1\]; got 0.0"),
        ({"head_dim": 0}, "head_dim must be"),
        ({"qk_norm_by_head": True}, "qk_norm_by_head needs qk_norm_eps"),
        ({"num_kv_heads": 0}, "num_kv_heads must be"),
        ({"num_heads": 6, "num_kv_heads": 4}, "num_kv_heads must divide num_heads; got 4 for 6"),
        ({"rope_base": 0.5}, "rope_base must be"),
        ({"rope_base": float("inf")}, "rope_base must be"),
        ({"qk_norm_eps": -1.0}, "qk_norm_eps must be"),
        ({"allow_neg_eigval": True}, "Attention has no allow_neg_eigval: it keeps every token"),
    ],
)
def test_bad_values(options, said):
    with pytest.raises(UserError, match=said):
        Attention(HIDDEN, **options)


def test_states_that_do_not_fit():
    layer = make_layer(AttentionConfig(num_heads=3))
    x = inputs(1, 2)
    _, (k, v, length) = layer(x)
    for state in (
        AttentionState(k, v[:, :1], length),
        AttentionState(k[:, :, :2], v[:, :, :2], length),
        AttentionState(k[..., 0], v, length),
        AttentionState(k, v, length[:, None]),
        (k, v, length),
    ):
        with pytest.raises(UserError, match=r"AttentionState with parts of shapes \[\[-1, 3, 4\]"):
            layer(x, state)
