"""Stages to an ordinary model: the weights of Gated DeltaProduct layers and SwiGLU MLPs.

Keys and values of these layers are SiLUs, so never negative, and every layer begins with the state
0. So a column of a stage, a single 1 that moves between axes, is encoded differently here: the axis
at the start is the *reference*, whose codeword is 0; axis i has u_i = (1, 1 | 1, 1 in the i-th
place). Then u_i / 2 has length 1 and so has (u_i - u_j) / 2. One step of the delta rule with
k = u_i / 2, beta = 2 and v = 1,

    h -> h - u_i (u_i . h) / 2 + u_i,

swaps the reference with i and keeps all others. Such swaps make up every permutation, and after a
gate of 0 one of them is a reset. All numbers are halves of small integers: exact in any order.

The residual stream holds a constant 1, one-hot update rules and, for every axis but the reference,
whether the state is there. Gates, betas and norms are driven so far that they are exactly 0, 1 or 2
in float32: see `FULL` and `OFF`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from statetrack.automata import DFA
from statetrack.automata.search import reach
from statetrack.compiler import limits
from statetrack.compiler.cascade_to_stages import Stage
from statetrack.compiler.proof import Ints
from statetrack.errors import UserError
from statetrack.layers import GatedDeltaProduct, GatedDeltaProductConfig, MixerConfig
from statetrack.models import ModelConfig, SequenceModel, count_parameters
from statetrack.models.block import GatedMLP

LARGE = 1024.0  # silu(1024) = 1024, and an epsilon vanishes beside its square
FULL = 40.0  # sigmoid(40) = 1
OFF = -120.0  # sigmoid(-120) = 0 = softplus(-120), and exp(-softplus(120)) = 0
ONE = 0  # the place of the constant 1 in the residual stream
SCORE = 32.0  # of the right answer, so that a softmax leaves nothing to the others


@dataclass(frozen=True, eq=False)
class Column:
    """One column of a stage as an automaton: the axes that its 1 can be at, the reference first."""

    axes: list[int]
    swaps: list[list[int]]  # for each rule the places, 1 and up, to swap with the reference in turn
    resets: list[bool]  # for each rule whether a gate of 0 comes first
    place: Ints  # [S]: where the 1 of each state is, 0 for the reference, -1 if it never is there


class Slots(NamedTuple):
    """Where the numbers of a stage are in the residual stream."""

    rules: int  # the first of its one-hot update rules
    state: int  # the first of its axes, column by column, without the references
    old: int  # the same for the state before the token


def stages_to_model(dfa: DFA, first: Ints, stages: list[Stage]) -> SequenceModel:
    """Write the weights of a model that computes stages of permutations and resets.

    A stage is a block; between two of them a block delays the state by one token and its MLP looks
    up the next rule, which follows from the rule and the old state of the stage before.

    Args:
        dfa: what the stages compute; the model's tokens are PAD, its symbols and its states.
        first: [symbols], the first stage's rules.
        stages: what to write.
    """
    columns = [stage_columns(stage) for stage in stages]
    slots, at = [], ONE + 1
    for i, (stage, table) in enumerate(zip(stages, columns, strict=True)):
        state = at + len(stage.axis_map)
        old = state + _axes(table)
        slots.append(Slots(at, state, old))
        at = old + (_axes(table) if i < len(stages) - 1 else 0)
    answers = at  # one-hot, if the answer depends on the last rule
    last = stages[-1]
    by_rule = bool((last.out != last.out[0]).any())
    hidden = at + (dfa.states if by_rule else 0)
    model = _empty_model(dfa, stages, columns, hidden, by_rule)
    symbols = len(dfa.alphabet)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embedding.weight[:, ONE] = 1
        for symbol in range(symbols):
            model.embedding.weight[1 + symbol, slots[0].rules + int(first[symbol])] = 1
        for i, (stage, table) in enumerate(zip(stages, columns, strict=True)):
            block: Any = model.blocks[2 * i]
            _write_automaton(block.mixer, table, slots[i])
            if i < len(stages) - 1:
                shift: Any = model.blocks[2 * i + 1]
                _write_shift(shift.mixer, _axes(table), slots[i])
                where = slots[i].rules, slots[i].old, slots[i + 1].rules
                _write_lookup(shift.mlp, stage.out, table[0].place, *where)
        head: Any = model.head
        scores = head.weight[1 + symbols :]
        if by_rule:
            where = slots[-1].rules, slots[-1].state, answers
            _write_lookup(block.mlp, last.out, columns[-1][0].place, *where)
            scores[:, answers:] = SCORE * torch.eye(dfa.states)
        else:
            _write_scores(scores, last.out[0], columns[-1], slots[-1].state)
    return model.eval()


def fits_model(stage: Stage) -> bool:
    """Whether a stage permutes and resets only, and the head can tell its states by adding scores.

    A sink as the vector 0 takes projectors, which cascades do not need.
    """
    distinct = len(np.unique(stage.out[0])) == stage.out.shape[1]
    return stage.permutes_or_resets() and (stage.codewords.shape[2] == 1 or distinct)


def stage_columns(stage: Stage) -> list[Column]:
    """Write the columns of a stage of permutations and resets as swaps with the reference."""
    return [_column(stage, v) for v in range(stage.codewords.shape[2])]


def _column(stage: Stage, v: int) -> Column:
    at = stage.codewords[:, :, v].argmax(axis=1)

    def moved(axis: int) -> list[int]:
        nearby = [*stage.axis_map[:, axis].tolist(), *stage.writes.tolist()]
        return [target for target in nearby if target >= 0]

    axes = reach(int(at[stage.start]), moved).states
    number = {axis: i for i, axis in enumerate(axes)}
    swaps, resets = [], stage.forgets().tolist()
    for row, written, reset in zip(
        stage.axis_map.tolist(), stage.writes.tolist(), resets, strict=True
    ):
        if reset:
            swaps.append([number[written]] if number[written] else [])
        else:
            swaps.append(reference_swaps([number[row[axis]] for axis in axes]))
    place = np.array([number.get(axis, -1) for axis in at.tolist()])
    return Column(axes, swaps, resets, place)


def reference_swaps(images: list[int]) -> list[int]:
    """Write a permutation, given by the image of each point, as swaps with point 0, in order.

    A cycle of l points takes l - 1 if point 0 is one of them, else l + 1.
    """
    swaps: list[int] = []
    done = {0}
    point = images[0]
    while point != 0:
        swaps.append(point)
        done.add(point)
        point = images[point]
    for first in range(1, len(images)):
        if first not in done and images[first] != first:
            cycle = [first]
            while images[cycle[-1]] != first:
                cycle.append(images[cycle[-1]])
            done.update(cycle)
            swaps += [*cycle, first]
    return swaps


def _axes(columns: list[Column]) -> int:
    """How many numbers tell the state: one for every axis but the references."""
    return sum(len(column.axes) - 1 for column in columns)


def _empty_model(
    dfa: DFA, stages: list[Stage], columns: list[list[Column]], hidden: int, by_rule: bool
) -> SequenceModel:
    mixers: list[MixerConfig] = []
    units = 1
    for i, (stage, table) in enumerate(zip(stages, columns, strict=True)):
        heads = max(1, _axes(table))  # each holds the state and asks whether it is at one axis
        key_size = _power_of_four(2 * max(len(column.axes) for column in table))
        steps = max(1, *(len(swaps) for column in table for swaps in column.swaps))
        mixers.append(_layer_config(hidden, heads, heads * key_size, heads, 0, steps))
        if i < len(stages) - 1:
            mixers.append(_layer_config(hidden, 1, 1, _power_of_four(_axes(table)), 2, 1))
        if i < len(stages) - 1 or by_rule:  # an MLP looks up: a unit for each rule and answer
            units = max(units, sum(len(set(row)) for row in stage.out.tolist()))
    config = ModelConfig(
        vocab_size=1 + len(dfa.alphabet) + dfa.states,
        hidden_size=hidden,
        num_layers=len(mixers),
        mixer=tuple(mixers),
        norm="none",
        mlp="swiglu",
        mlp_size=units,
        final_norm=False,
    )
    weights, most = count_parameters(config), limits.MAX_MODEL_WEIGHTS
    if weights > most:
        raise UserError(
            f"as gated_deltaproduct this language takes a model of {weights:,} weights; at most "
            f"{most:,} are supported: target householder takes fewer"
        )
    return SequenceModel(config)


def _layer_config(
    hidden: int, heads: int, keys: int, values: int, window: int, steps: int
) -> GatedDeltaProductConfig:
    return GatedDeltaProductConfig(
        allow_neg_eigval=True,
        num_heads=heads,
        expand_k=keys / hidden,
        expand_v=values / hidden,
        conv_size=window,
        output_gate=False,
        num_householder=steps,
    )


def _power_of_four(least: int) -> int:
    """The least that is not below: kernels and norms divide by the root, which then is exact."""
    power = 1
    while power < least:
        power *= 4
    return power


def _write_automaton(layer: GatedDeltaProduct, columns: list[Column], slots: Slots) -> None:
    """Set the weights of a layer, all 0 so far, to the swaps and resets of a stage."""
    q, k, v, beta, gate = layer.projections()
    assert gate is not None
    layer.norm.weight.fill_(1)
    v[..., ONE] = LARGE
    beta[..., ONE] = OFF
    gate[:, ONE] = OFF  # the state stays
    head = 0
    for column in columns:
        for place in range(1, len(column.axes)):
            q[head, 2 * place, ONE] = LARGE
            for rule, (swaps, reset) in enumerate(zip(column.swaps, column.resets, strict=True)):
                at = slots.rules + rule
                for step, other in enumerate(swaps):
                    k[step, head, :2, at] = LARGE
                    k[step, head, 2 * other : 2 * other + 2, at] = LARGE
                    beta[step, head, at] = FULL - OFF
                if reset:
                    gate[head, at] = -2 * OFF
            layer.o_proj.weight[slots.state + head, head] = 1
            head += 1


def _write_shift(layer: GatedDeltaProduct, axes: int, slots: Slots) -> None:
    """Set the weights of a layer to S_t = v_{t-1}, where v is a state: its convolution delays."""
    q, k, v, _, gate = layer.projections()
    assert gate is not None
    assert layer.conv is not None
    layer.norm.weight.fill_(1)
    q[..., ONE] = k[..., ONE] = LARGE  # both become 1
    gate[:, ONE] = -OFF  # nothing stays; betas are 1
    layer.conv.weight[:2, 1] = 1
    layer.conv.weight[2:, 0] = 1
    for i in range(axes):
        v[0, 0, i, slots.state + i] = LARGE
        layer.o_proj.weight[slots.old + i, i] = layer.value_size**-0.5  # undoes the norm


def _write_lookup(mlp: GatedMLP, out: Ints, place: Ints, rules: int, state: int, to: int) -> None:
    """Set an MLP to out[rule, state], one-hot: silu(1024 rule) * whether it is such a state.

    out: [rules, S]; place: [S], that of each state, 0 for the reference; then where in the residual
    stream rules, state and answer begin.
    """
    gate, up = mlp.gate_up.weight.chunk(2)
    axes = int(place.max()) + 1
    unit = 0
    for rule, row in enumerate(out.tolist()):
        reached = [(int(p), answer) for p, answer in zip(place, row, strict=True) if p >= 0]
        for answer in dict.fromkeys(answer for _, answer in reached):
            gate[unit, rules + rule] = LARGE
            places = [p for p, other in reached if other == answer]
            up[unit] += _indicator(places, axes, state, up.shape[1])
            mlp.down.weight[to + answer, unit] = 1 / LARGE
            unit += 1


def _write_scores(scores: Tensor, answers: Ints, columns: list[Column], state: int) -> None:
    """Score each state of the DFA by the number of columns that are as they are in that state."""
    for column in columns:
        axes = len(column.axes)
        places: dict[int, set[int]] = {}
        for answer, place in zip(answers.tolist(), column.place.tolist(), strict=True):
            places.setdefault(answer, set()).add(place)
        for answer, found in places.items():
            reached = sorted(found - {-1})
            scores[answer] += SCORE * _indicator(reached, axes, state, scores.shape[1])
        state += axes - 1


def _indicator(places: list[int], axes: int, state: int, hidden: int) -> Tensor:
    """[hidden]: the linear form that is 1 if the state is at one of some places, else 0."""
    form = torch.zeros(hidden)
    if 0 in places:  # the reference is where nothing else is
        form[ONE] = 1
        form[state : state + axes - 1] = -1
    for place in places:
        if place:
            form[state + place - 1] += 1
    return form
