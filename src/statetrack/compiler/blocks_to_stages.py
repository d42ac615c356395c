"""A group with several tokens per element to stages with one Householder factor per token.

Each element begins a block of n tokens and is followed by n - 1 fillers (the task of
`tasks/word_problem.py`). A permutation of k + 1 points is a product of k swaps: if n tokens are at
least that many, each token of the block applies one of them (Grazzi et al., 2025, Section 3.3). The
token has to know which: the stages before the last one compute the element of the block and its
place in it.

- The number of fillers since the last element, in binary: a stage for each bit. An element resets
  them; a filler swaps the two states of a bit if all lower bits were 1.
- The last element: an element resets the state to itself, a filler keeps it.
- The product. A filler in place of an element, or the reverse, sets the state to 0 for good.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from statetrack.automata import DFA, Group
from statetrack.compiler.cascade import Level
from statetrack.compiler.cascade_to_stages import Stage, check_size, level_to_stage
from statetrack.compiler.dfa_to_stage import group_to_stage
from statetrack.compiler.factor import swaps
from statetrack.compiler.proof import Ints
from statetrack.compiler.wording import counted
from statetrack.errors import UserError
from statetrack.tasks.word_problem import MAX_BLOCK_TRANSITIONS, block_automaton

SINK = 0  # the state of the last stage after a token that is out of place: the vector 0


class Blocks(NamedTuple):
    """The stages before the product, and what the product's stage has to compute.

    Rule x n + j of the last stage is for the j-th token of a block of element x; rule E n is for a
    token that is out of place.
    """

    dfa: DFA
    first: Ints  # [symbols]: the first stage's rules
    stages: list[Stage]
    moves: Ints  # [E n + 1, S]: of the last stage
    out: Ints  # [E n + 1, S]: the DFA's state by the new state
    tree: list[Ints]  # of all stages, as in `Cascade`


def group_to_blocks(group: Group, tokens: int) -> tuple[Blocks, Stage]:
    """Return the stages of a group's word problem with `tokens` tokens per element.

    Raises:
        UserError: an element is a product of more swaps than an element has tokens.
    """
    whole = group_to_stage(group)
    products = [swaps(row)[::-1] for row in whole.axis_map.tolist()]  # the first acting first
    needed = max(map(len, products))
    if needed > tokens:
        points = counted(whole.axis_map.shape[1], "point")
        raise UserError(
            f"{group.name} acts on {points}, and some element is a product of {needed} swaps: "
            f"with one per token it takes at least {needed} tokens per element; got {tokens}"
        )
    points, V = whole.axis_map.shape[1], whole.codewords.shape[2]
    axes = np.tile(np.arange(points), (group.order, tokens, 1))  # [x, j]: the axis of each axis
    for x, pairs in enumerate(products):
        for j, pair in enumerate(pairs):
            axes[x, j, list(pair)] = pair[::-1]
    # a state is the axis of the 1 in each column; inside of a block, any that swaps lead to
    found = [whole.codewords.argmax(axis=1)]  # [order, V]
    for x in range(group.order):
        at = found[0]
        for row in axes[x]:
            at = row[at]
            found.append(at)
    codes = points ** np.arange(V)
    _, kept = np.unique(np.concatenate(found) @ codes, return_index=True)
    at = np.concatenate(found)[kept]  # [S - 1, V]
    check_size(group.order * tokens + 1, points, 1 + len(at))
    number = np.full(points**V, SINK)
    number[at @ codes] = 1 + np.arange(len(at))
    moves = np.full((*axes.shape[:2], 1 + len(at)), SINK)  # also where a step does not occur
    moves[..., 1:] = number[axes[:, :, at] @ codes]
    states = number[found[0] @ codes]
    blocks = make_blocks(group, tokens, moves, states[np.argsort(whole.out[0])])
    codewords = np.zeros((1 + len(at), points, V), dtype=np.int64)
    codewords[1:] = np.eye(points, dtype=np.int64)[at].swapaxes(1, 2)
    axis_map = np.concatenate([axes.reshape(-1, points), np.full((1, points), -1)])
    start, writes = int(states[whole.start]), np.full(len(axis_map), -1)
    return blocks, Stage(blocks.moves, blocks.out, start, codewords, axis_map, writes)


def make_blocks(group: Group, tokens: int, moves: Ints, states: Ints) -> Blocks:
    """Return the stages that find the rule, given what the rules of the last stage do.

    Args:
        group: the group, of order E.
        tokens: n, the tokens per element.
        moves: [E, n, S]: the state of the last stage after the j-th token of a block of x.
        states: [E]: the state of the last stage that stands for each product.
    """
    dfa = block_automaton(group, np.arange(group.order), tokens)
    if dfa is None:
        raise UserError(
            f"the automaton of {group.name} with {tokens} tokens per element has more than "
            f"{MAX_BLOCK_TRANSITIONS:,} transitions, the most that is supported"
        )
    E, n, S = moves.shape
    fill, wrong = E, E * n
    bits = (n - 1).bit_length()
    stages, tree = [], []
    for bit in range(bits):
        symbol, low = np.divmod(np.arange((E + 1) << bit), 1 << bit)  # of each rule
        carries = (symbol == fill) & (low == (1 << bit) - 1)
        flipped = np.where(carries[:, None], [1, 0], [0, 1])
        new = np.where((symbol == fill)[:, None], flipped, 0)
        count = low[:, None] + np.array([0, 1 << bit])  # the fillers so far, by the old state
        out = (symbol[:, None] << (bit + 1)) + count
        if bit == bits - 1:  # rules of the next stage: 2 x, 2 x + 1 if out of place, 2 E + count
            out = np.where(
                symbol[:, None] == fill, 2 * E + count, 2 * symbol[:, None] + (count != n - 1)
            )
        stages.append(level_to_stage(Level(new, out, (n - 1) >> bit & 1, ())))
        tree.append(np.arange(1 << bit)[:, None] + np.array([0, 1 << bit]))
    x, old = np.arange(E), np.tile(np.arange(E), (1 << bits, 1))
    count = np.arange(1 << bits)[:, None]
    element = np.stack([x * n, np.full(E, wrong)], 1).reshape(-1, 1)  # in place, out of place
    filler = np.where(count < n - 1, old * n + count + 1, wrong)
    stages.append(
        level_to_stage(
            Level(
                np.concatenate([np.repeat(x, 2)[:, None].repeat(E, 1), old]),
                np.concatenate([element.repeat(E, 1), filler]),
                0,
                (),
            )
        )
    )
    tree.append(count * E + x)
    out = _answers(dfa, moves, states)
    unused = np.full(((1 << bits) - n, E, S), -1)
    unused[..., SINK] = out[wrong, SINK]
    places = out[:wrong].reshape(E, n, S).swapaxes(0, 1)
    tree.append(np.concatenate([places, unused]).reshape(-1, S))
    rules = np.concatenate([moves.reshape(wrong, S), np.full((1, S), SINK)])
    return Blocks(dfa, np.arange(E + 1), stages, rules, out, tree)


def _answers(dfa: DFA, moves: Ints, states: Ints) -> Ints:
    """[E n + 1, S]: the DFA's state by rule and new state of the last stage."""
    E, n, S = moves.shape
    fill = np.full((E * E, n - 1), E)
    before, x = np.divmod(np.arange(E * E), E)
    words = np.column_stack([before, fill, x, fill])  # a product, then a block
    visited = dfa.run(words)[:, n:].reshape(E, E, n)  # [product before, element, place]
    sink = dfa.delta[dfa.start, E]  # a word that begins with a filler
    out = np.full((E * n + 1, S), sink)
    for element in range(E):
        now = states
        for j in range(n):
            now = moves[element, j, now]
            out[element * n + j, now] = visited[:, element, j]
    return out
