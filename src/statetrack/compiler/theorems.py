"""The constructions in the proofs of Grazzi et al. (2025), each as a compiled network.

Most rotations and reflections of the plane have entries (cos, sin) that floats round, so `cyclic`,
`theorem6` and `dihedral` are inexact: rounding errors add up, and `horizon` measures how many
tokens they get right. `compile` makes exact networks for the same languages.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from statetrack.automata import DFA, Group, group
from statetrack.compiler import limits
from statetrack.compiler.blocks_to_stages import make_blocks
from statetrack.compiler.compiling import compile
from statetrack.compiler.dfa_to_cascade import decompose
from statetrack.compiler.network import CompiledRNN
from statetrack.compiler.proof import Ints
from statetrack.compiler.stages_to_network import (
    Array,
    Layer,
    affine_scan,
    rows,
    stages_to_layers,
)
from statetrack.compiler.text_to_dfa import find_dfa, word_problem
from statetrack.config import at_least
from statetrack.devices import on_cpu
from statetrack.errors import UserError
from statetrack.layers import Dense


class MatrixLayer(Layer):
    """H_t = A(rule_t) H_{t-1} with given matrices A, and nothing added (B = 0).

    The whole state is read; it counts as the codeword with which it has the largest cosine.
    """

    target = "dense"
    table_names = ("A",)
    A: Tensor  # [rules, n, n]

    def __init__(self, moves: Ints, out: Ints, start: int, codewords: Array, A: Array) -> None:
        super().__init__(moves, out, start, codewords)
        self.register_buffer("A", torch.tensor(A, dtype=torch.float32))
        self.register_buffer("expected", self.codewords.flatten(1))

    def run(self, rules: Tensor, state: Tensor, backend: str = "auto") -> tuple[Tensor, Tensor]:
        A = rows(self.A, rules)
        states, last = affine_scan(A, A.new_zeros(*rules.shape, *state.shape[1:]), state)
        return self.read(rules, states), last

    def read(self, rules: Tensor, states: Tensor) -> Tensor:
        return states.flatten(2)

    def transition(self, rules: Tensor) -> Dense:
        return Dense(rows(self.A, rules)[:, :, None])

    def identify(self, readings: Tensor) -> Tensor:
        # normalised, as a low-precision dtype rounds codewords of norm 1 to different norms
        directions = nn.functional.normalize(self.expected.float(), dim=-1)
        return (readings.float() @ directions.mT).argmax(-1)


@on_cpu()
def parity() -> CompiledRNN:
    """Theorem 3 for m = 2: the state is the scalar 1 or -1; the symbol x multiplies it by (-1)^x.

    This network is exact.
    """
    dfa = _addition(2)
    signs = np.array([[[1.0]], [[-1.0]]])  # both the codewords and the matrices
    layer = MatrixLayer(dfa.delta.T, _same_for_all(np.arange(2), 2), 0, signs, signs)
    return CompiledRNN(dfa, np.arange(2), [layer], "a sign for parity")


@on_cpu()
def cyclic(m: int, tokens_per_element: int = 1) -> CompiledRNN:
    """Theorem 3 for addition modulo m: the symbol x rotates a plane vector by 2 pi x / m.

    A rotation is a product of two reflections (Householder factors). With two or more tokens per
    element, each of the first two tokens of a block applies one of them.
    """
    dfa = _addition(m)
    x = np.arange(m)
    angles = 2 * np.pi * x / m
    points = _rotation(angles)[:, :, :1]  # where rotations take (1, 0)
    if tokens_per_element > 1:
        return _cyclic_blocks(m, tokens_per_element, points, _reflection(angles))
    layer = MatrixLayer(dfa.delta.T, _same_for_all(x, m), 0, points, _rotation(angles))
    return CompiledRNN(dfa, x, [layer], f"rotations for Z{m}", exact=False)


def _cyclic_blocks(m: int, tokens: int, points: Array, reflections: Array) -> CompiledRNN:
    """The first token of a block takes angle f to -f, the second to 2 pi x / m + f."""
    x = np.arange(m)
    steps = np.tile(np.eye(2), (m, tokens, 1, 1))
    steps[:, 0], steps[:, 1] = reflections[0], reflections
    moves = np.tile(np.arange(1 + m), (m, tokens, 1))  # state 0 is the sink, 1 + k the k-th point
    moves[:, 0, 1:] = 1 + (-x) % m
    moves[:, 1, 1:] = 1 + (x[:, None] - x) % m
    blocks = make_blocks(group(f"Z{m}"), tokens, moves, 1 + x)
    layers = stages_to_layers(blocks.stages, "householder", "shift")
    matrices = np.concatenate([steps.reshape(-1, 2, 2), np.zeros((1, 2, 2))])
    codewords = np.concatenate([np.zeros((1, 2, 1)), points])
    last = MatrixLayer(blocks.moves, blocks.out, 1, codewords, matrices)
    title = f"reflections for Z{m}, {tokens} tokens per element"
    return CompiledRNN(blocks.dfa, blocks.first, [*layers, last], title, exact=False)


def permutations(given: Group | str) -> CompiledRNN:
    """Theorem 3: a group's word problem in one layer.

    The group acts by permutation matrices, on as few points as `compile` finds; each is a product
    of swaps of two points, which are reflections (Householder factors). This network is exact.
    """
    return compile(given, target="householder")


def theorem4(language: str | DFA | Group) -> CompiledRNN:
    """Theorem 4: any regular language, by a cascade of layers. This network is exact.

    As in the theorem, a layer passes on only its symbol and its current state H_t, never H_{t-1}.
    But the next layer needs the state before the token, which a reset erases; so every layer except
    the last also stores it in a second half of H_t. A state thus has up to 2 |Q| rows, where the
    theorem has |Q|. There are at most |Q| - 1 layers, where the theorem has 2^|Q|.
    """
    return compile(decompose(find_dfa(language).minimal()), target="householder", delay="state")


@on_cpu()
def theorem6(m: int) -> CompiledRNN:
    """Theorem 6: addition modulo m with one reflection per token, in two layers.

    The state of the first layer is a sign p that changes with every token. The state of the second
    is a point on the unit circle at angle f, in units of 2 pi / m; the symbol x reflects it to
    angle p x - f. So f is p times the sum of the symbols, and the output is p f modulo m.

    The second layer has m points. The paper's has 2 m, one set after an even number of tokens and
    another after an odd one, so that its decoder need not read p.
    """
    dfa = _addition(m)
    x = np.arange(m)
    signs = np.array([[[1.0]], [[-1.0]]])
    # rule 2 x + n of the second layer: the symbol is x, and n = 1 if p is -1 after it
    flips = np.tile([1, 0], (m, 1))  # [symbols, n before]: n after
    first = MatrixLayer(flips, 2 * x[:, None] + flips, 0, signs, -np.ones((m, 1, 1)))
    symbols, negative = np.divmod(np.arange(2 * m), 2)
    px = (1 - 2 * negative) * symbols  # p x
    moves = (px[:, None] - x) % m
    out = np.where(negative[:, None] == 1, -x, x) % m  # p f
    unit = 2 * np.pi / m
    points = np.stack([np.cos(unit * x), np.sin(unit * x)], -1)[:, :, None]
    second = MatrixLayer(moves, out, 0, points, _reflection(unit * px))
    return CompiledRNN(dfa, x, [first, second], f"reflections for Z{m}", exact=False)


@on_cpu()
def dihedral(m: int) -> CompiledRNN:
    """The word problem of D_m with one reflection per token, in two layers.

    The state of the first layer is a sign p that changes with every symbol that is a rotation. Let
    G be the inverse of the product of the symbols so far, and F the reflection diag(1, -1). The
    state of the second layer is the matrix G if p is 1, and F G if p is -1. Then each token
    multiplies it on the left by a single reflection: a rotation r by F r^-1 or r^-1 F, a reflection
    s by s or F s F. (G is the inverse because a new symbol multiplies the product on the right, but
    a layer multiplies its state on the left.)
    """
    name = f"D{m}"
    elements = group(name)
    table, inverses = elements.table.astype(np.int64), elements.inverses()
    order = elements.order
    angles = 2 * np.pi * np.arange(m) / m
    matrices = np.concatenate([_rotation(angles), _reflection(angles)])  # r_k, then s_k
    F = m  # the number of the element s_0 = diag(1, -1)
    symbols = np.arange(order)
    rotates = symbols < m
    # rule 2 x + n of the second layer: the symbol is x, and n = 1 if p is -1 after it
    flips = np.where(rotates[:, None], [1, 0], [0, 1])  # [symbols, n before]: n after
    signs = np.array([[[1.0]], [[-1.0]]])
    factors = np.where(rotates, -1.0, 1.0)[:, None, None]  # of p
    first = MatrixLayer(flips, 2 * symbols[:, None] + flips, 0, signs, factors)
    symbol, after = np.divmod(np.arange(2 * order), 2)
    before = np.where(rotates[symbol], 1 - after, after)
    # the reflection that each rule applies, as a group element
    step = inverses[symbol]
    step = np.where(after == 1, table[F, step], step)
    step = np.where(before == 1, table[step, F], step)
    G = np.where(after[:, None] == 1, table[F], np.arange(order))  # [rules, second layer's state]
    second = MatrixLayer(table[step], inverses[G], 0, matrices, matrices[step])
    return CompiledRNN(
        word_problem(elements), symbols, [first, second], f"reflections for {name}", exact=False
    )


def horizon(
    net: CompiledRNN, tokens: int = 100_000, seed: int = 0, tokens_per_element: int = 1
) -> dict[str, Any]:
    """Measure how many tokens a network gets right before its first wrong state.

    It runs on two words: "constant", the second symbol of the alphabet repeated (the first is often
    the identity), and "random", uniform symbols. With several tokens per element each symbol is
    followed by fillers, the last symbol of the alphabet.

    Returns:
        `tokens`, and for each of the two words a dictionary of `holds_for`, the number of tokens
        before the first wrong state (None if none is wrong), and `deviation`, the largest
        difference of an entry of a layer's state from the codeword it was identified as.
    """
    at_least("tokens", tokens, 1)
    rng = np.random.default_rng(seed)
    at_least("tokens_per_element", tokens_per_element, 1)
    symbols = len(net.dfa.alphabet) - (tokens_per_element > 1)
    words = {
        "constant": np.full((1, tokens), min(1, symbols - 1)),
        "random": rng.integers(symbols, size=(1, tokens)),
    }
    measured: dict[str, Any] = {"tokens": tokens}
    for kind, word in words.items():
        word[:, np.arange(tokens) % tokens_per_element > 0] = symbols
        result = net.run(torch.from_numpy(word).to(net.device))
        wrong = np.flatnonzero(result.states.cpu().numpy() != net.dfa.run(word))
        first = int(wrong[0]) if len(wrong) else None
        measured[kind] = {"holds_for": first, "deviation": result.deviation}
    return measured


def _addition(m: int) -> DFA:
    """Return the DFA of addition modulo m, with symbols 0..m-1; it accepts words of sum 0."""
    if not 2 <= m <= limits.MAX_MODULUS:
        raise UserError(
            f"the modulus must be from 2 to {limits.MAX_MODULUS:,}, for tables have m^2 numbers; "
            f"got {m:,}: for a product of coprime factors, use a network for each factor"
        )
    x = np.arange(m)
    alphabet = tuple(map(str, x.tolist()))
    return DFA(alphabet, (x[:, None] + x) % m, 0, x == 0, alphabet)


def _same_for_all(states: Ints, rules: int) -> Ints:
    """[rules, S]: the DFA's state by the layer's state, whatever the rule."""
    return np.tile(states, (rules, 1))


def _rotation(angles: Array) -> Array:
    """[..., 2, 2]: adds `angles` to the angle of a vector."""
    c, s = np.cos(angles), np.sin(angles)
    return np.stack([np.stack([c, -s], -1), np.stack([s, c], -1)], -2)


def _reflection(angles: Array) -> Array:
    """[..., 2, 2]: takes a vector at angle f to angle `angles` - f; I - 2 v v^T for a unit v."""
    c, s = np.cos(angles), np.sin(angles)
    return np.stack([np.stack([c, s], -1), np.stack([s, -c], -1)], -2)
