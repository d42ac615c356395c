"""The weights of ordinary models that compute automata.

The residual stream holds a constant 1, one-hot contexts and, for every point of an automaton but
its hub, whether the state is there. Gates, betas and norms are driven so far that they are exactly
0, 1 or 2 in float32: see `FULL` and `OFF`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from statetrack.compiler.hub import Column
from statetrack.compiler.induction import Ints
from statetrack.layers.gated_delta_product import GatedDeltaProduct, GatedDeltaProductConfig
from statetrack.models.sequence_model import GatedMLP

LARGE = 1024.0  # silu(1024) = 1024, and an epsilon vanishes beside its square
FULL = 40.0  # sigmoid(40) = 1
OFF = -120.0  # sigmoid(-120) = 0 = softplus(-120), and exp(-softplus(120)) = 0
ONE = 0  # the place of the constant 1


def power_of_four(least: int) -> int:
    """The least that is not below: kernels and norms divide by the root, which then is exact."""
    power = 1
    while power < least:
        power *= 4
    return power


class Slots(NamedTuple):
    """Where an automaton's numbers are in the residual stream."""

    contexts: int  # the first of its one-hot contexts
    state: int  # the first of its points, column by column, without the hubs
    old: int  # the same for the state before the token


def points_of(columns: list[Column]) -> int:
    """How many numbers tell the state: one for every point but the hubs."""
    return sum(len(column.points) - 1 for column in columns)


def automaton_config(columns: list[Column], hidden: int) -> GatedDeltaProductConfig:
    """A head for every point but the hubs: each holds the state and asks whether it is there."""
    heads = max(1, points_of(columns))  # the automaton of one state has nothing to ask
    key_size = power_of_four(2 * max(len(column.points) for column in columns))
    steps = max(1, *(len(swaps) for column in columns for swaps in column.swaps))
    return GatedDeltaProductConfig(
        allow_neg_eigval=True,
        num_heads=heads,
        expand_k=heads * key_size / hidden,
        expand_v=heads / hidden,
        conv_size=0,
        output_gate=False,
        num_householder=steps,
    )


def write_automaton(layer: GatedDeltaProduct, columns: list[Column], slots: Slots) -> None:
    """Set the weights of a layer to an automaton."""
    _clear(layer)
    heads, K, n = layer.config.num_heads, layer.key_size, layer.config.num_householder
    q, k, v = torch.split(layer.qkv_proj.weight, layer.sizes)
    q, k, v = q.view(heads, K, -1), k.view(n, heads, K, -1), v.view(n, heads, -1)
    beta = layer.beta.proj.weight.view(n, heads, -1)
    v[..., ONE] = LARGE
    beta[..., ONE] = OFF
    layer.a_proj.weight[:, ONE] = OFF  # the state stays
    head = 0
    for column in columns:
        for place in range(1, len(column.points)):
            q[head, 2 * place, ONE] = LARGE
            for context, (swaps, reset) in enumerate(zip(column.swaps, column.reset, strict=True)):
                at = slots.contexts + context
                for step, other in enumerate(swaps):
                    k[step, head, :2, at] = LARGE
                    k[step, head, 2 * other : 2 * other + 2, at] = LARGE
                    beta[step, head, at] = FULL - OFF
                if reset:
                    layer.a_proj.weight[head, at] = -2 * OFF
            layer.o_proj.weight[slots.state + head, head] = 1
            head += 1


def shift_config(points: int, hidden: int) -> GatedDeltaProductConfig:
    """A layer that tells what was there one token before: its convolution looks back."""
    return GatedDeltaProductConfig(
        allow_neg_eigval=True,
        num_heads=1,
        expand_k=1 / hidden,
        expand_v=power_of_four(points) / hidden,
        conv_size=2,
        output_gate=False,
        num_householder=1,
    )


def write_shift(layer: GatedDeltaProduct, points: int, slots: Slots) -> None:
    """Set the weights of a layer to S_t = v_{t-1}, where v is a state without its hub."""
    _clear(layer)
    layer.qkv_proj.weight[:2, ONE] = LARGE  # q = k = 1
    layer.a_proj.weight[:, ONE] = -OFF  # nothing stays; betas are 1
    assert layer.conv is not None
    layer.conv.weight[:2, 1] = 1
    layer.conv.weight[2:, 0] = 1
    for i in range(points):
        layer.qkv_proj.weight[2 + i, slots.state + i] = LARGE
        layer.o_proj.weight[slots.old + i, i] = layer.value_size**-0.5  # undoes the norm


def lookup_size(out: Ints) -> int:
    """The hidden units of a look-up: one for each context and each thing that it may tell."""
    return sum(len(set(row)) for row in out.tolist())  # at most


def write_lookup(mlp: GatedMLP, out: Ints, place: Ints, contexts: int, state: int, to: int) -> None:
    """Set an MLP to out[context, state], one-hot: silu(1024 context) * whether it is such a state.

    out: [contexts, S]; place: [S], that of each state, 0 for the hub; then where in the residual
    stream contexts, state and answer begin.
    """
    gate, up = mlp.gate_up.weight.chunk(2)
    points = int(place.max()) + 1
    unit = 0
    for context, row in enumerate(out.tolist()):
        reached = [(int(p), told) for p, told in zip(place, row, strict=True) if p >= 0]
        for told in dict.fromkeys(told for _, told in reached):
            gate[unit, contexts + context] = LARGE
            places = [p for p, other in reached if other == told]
            up[unit] += indicator(places, points, state, up.shape[1])
            mlp.down.weight[to + told, unit] = 1 / LARGE
            unit += 1


def indicator(places: list[int], points: int, state: int, hidden: int) -> Tensor:
    """[hidden]: the linear form that is 1 if the state is at one of some places, else 0."""
    form = torch.zeros(hidden)
    if 0 in places:  # the hub is where nothing else is
        form[ONE] = 1
        form[state : state + points - 1] = -1
    for place in places:
        if place:
            form[state + place - 1] += 1
    return form


def _clear(layer: GatedDeltaProduct) -> None:
    """All weights 0, but for the norm's."""
    for name, parameter in layer.named_parameters():
        parameter.fill_(1.0 if name == "norm.weight" else 0.0)
