"""The paper's constructions by name.

Rotations and their reflections have entries that no float represents exactly: such networks drift,
and `horizon` measures up to which length they are right; `compile` has exact ones for the same
languages.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from statetrack.automata import DFA, Group, group
from statetrack.compiler import limits
from statetrack.compiler.compiling import compile
from statetrack.compiler.dfa_to_cascade import decompose
from statetrack.compiler.network import CompiledRNN
from statetrack.compiler.proof import Ints
from statetrack.compiler.stages_to_network import Array, Layer, affine_scan, rows
from statetrack.compiler.text_to_dfa import find_dfa, word_problem
from statetrack.config import at_least
from statetrack.errors import UserError
from statetrack.layers import Dense


class MatrixLayer(Layer):
    """Any given matrices, without writes; the state is the codeword nearest in direction."""

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
        return states.flatten(2), last

    def transition(self, rules: Tensor) -> Dense:
        return Dense(rows(self.A, rules)[:, :, None])

    def identify(self, readings: Tensor) -> Tensor:
        # codewords are all of one length, until a number type rounds them
        directions = nn.functional.normalize(self.expected.float(), dim=-1)
        return (readings.float() @ directions.mT).argmax(-1)


def parity() -> CompiledRNN:
    """Theorem 3 for m = 2: the scalar 1 or -1, and a 1 changes its sign."""
    dfa = _addition(2)
    signs = np.array([[[1.0]], [[-1.0]]])
    layer = MatrixLayer(dfa.delta.T, _same_for_all(np.arange(2), 2), 0, signs, signs)
    return CompiledRNN(dfa, np.arange(2), [layer], "a sign for parity")


def cyclic(m: int) -> CompiledRNN:
    """Theorem 3 for Z_m: x turns the plane by 2 pi x / m, which is two reflections."""
    dfa = _addition(m)
    turns = _rotation(2 * np.pi * np.arange(m) / m)
    layer = MatrixLayer(dfa.delta.T, _same_for_all(np.arange(m), m), 0, turns[:, :, :1], turns)
    return CompiledRNN(dfa, np.arange(m), [layer], f"rotations for Z{m}", exact=False)


def permutations(given: Group | str) -> CompiledRNN:
    """Theorem 3: a group's word problem in one layer of swaps, on the fewest points."""
    return compile(given, target="householder")


def theorem4(language: str | DFA | Group) -> CompiledRNN:
    """Theorem 4: any regular language, by a cascade; each layer's decoder reads its state only.

    At most |Q| - 1 layers, where the theorem has 2^|Q|. A state has up to 2 |Q| rows, where the
    theorem has |Q|: in every layer but the last it keeps the one before a reset.
    """
    return compile(decompose(find_dfa(language).minimal()), target="householder", delay="state")


def theorem6(m: int) -> CompiledRNN:
    """Theorem 6: addition modulo m with one reflection per token, in two layers.

    The first layer changes its sign p with every token. The second reflects angle f to p x - f (in
    units of 2 pi / m), so that it holds p times the sum. It uses m points, where the paper's second
    layer uses 2 m, with other angles: m after an even number of tokens and m after an odd one. In
    return the decoder here reads p.
    """
    dfa = _addition(m)
    x = np.arange(m)
    signs = np.array([[[1.0]], [[-1.0]]])
    # rules of the second layer: symbol x, then whether p is -1 after it
    flips = np.tile([1, 0], (m, 1))
    first = MatrixLayer(flips, 2 * x[:, None] + flips, 0, signs, -np.ones((m, 1, 1)))
    symbols, negative = np.divmod(np.arange(2 * m), 2)
    turn = (1 - 2 * negative) * symbols
    moves = (turn[:, None] - x) % m
    out = np.where(negative[:, None] == 1, -x, x) % m
    angles = 2 * np.pi / m
    points = np.stack([np.cos(angles * x), np.sin(angles * x)], -1)[:, :, None]
    second = MatrixLayer(moves, out, 0, points, _reflection(angles * turn))
    return CompiledRNN(dfa, x, [first, second], f"reflections for Z{m}", exact=False)


def dihedral(m: int) -> CompiledRNN:
    """The word problem of D_m with one reflection per token, in two layers.

    The first layer's sign p changes with every rotation. With F the reflection of the second axis,
    the second layer holds G if p is 1, else F G: whatever the symbol, a single reflection leads
    from one to the next. As words grow on the right, G is the inverse of the product.
    """
    name = f"D{m}"
    elements = group(name)
    table, inverses = elements.table.astype(np.int64), elements.inverses()
    order = elements.order
    angles = 2 * np.pi * np.arange(m) / m
    matrices = np.concatenate([_rotation(angles), _reflection(angles)])  # r_k, then s_k
    F = m  # s_0
    symbols = np.arange(order)
    rotates = symbols < m
    flips = np.where(rotates[:, None], [1, 0], [0, 1])  # [symbols, p negative before]
    # rules of the second layer: the symbol, then whether p is -1 after it
    signs = np.array([[[1.0]], [[-1.0]]])
    turns = np.where(rotates, -1.0, 1.0)[:, None, None]
    first = MatrixLayer(flips, 2 * symbols[:, None] + flips, 0, signs, turns)
    symbol, after = np.divmod(np.arange(2 * order), 2)
    before = np.where(rotates[symbol], 1 - after, after)
    step = inverses[symbol]
    step = np.where(after == 1, table[F, step], step)
    step = np.where(before == 1, table[step, F], step)
    held = np.where(after[:, None] == 1, table[F], np.arange(order))  # G, by what is held
    second = MatrixLayer(table[step], inverses[held], 0, matrices, matrices[step])
    return CompiledRNN(
        word_problem(elements), symbols, [first, second], f"reflections for {name}", exact=False
    )


def horizon(net: CompiledRNN, tokens: int = 100_000, seed: int = 0) -> dict[str, Any]:
    """Measure up to which length a network is right, on one repeated symbol and on random ones.

    Returns:
        For each kind of word the number of tokens before the first wrong state, None if there was
        none in `tokens`, and the largest distance of a state from the codeword it was taken for.
    """
    at_least("tokens", tokens, 1)
    rng = np.random.default_rng(seed)
    symbols = len(net.dfa.alphabet)
    words = {
        "constant": np.full((1, tokens), min(1, symbols - 1)),
        "random": rng.integers(symbols, size=(1, tokens)),
    }
    measured: dict[str, Any] = {"tokens": tokens}
    for kind, word in words.items():
        result = net.run(torch.tensor(word))
        wrong = np.flatnonzero(result.states.numpy() != net.dfa.run(word))
        first = int(wrong[0]) if len(wrong) else None
        measured[kind] = {"holds_for": first, "deviation": result.deviation}
    return measured


def _addition(m: int) -> DFA:
    """The sum modulo m; words that add up to 0 are accepted."""
    if not 2 <= m <= limits.MAX_MODULUS:
        raise UserError(
            f"the modulus must be from 2 to {limits.MAX_MODULUS:,}, for tables have m^2 numbers; "
            f"got {m:,}: for a product of coprime factors, use a network for each factor"
        )
    x = np.arange(m)
    alphabet = tuple(map(str, x.tolist()))
    return DFA(alphabet, (x[:, None] + x) % m, 0, x == 0, alphabet)


def _same_for_all(states: Ints, rules: int) -> Ints:
    return np.tile(states, (rules, 1))


def _rotation(angles: Array) -> Array:
    """[..., 2, 2]."""
    c, s = np.cos(angles), np.sin(angles)
    return np.stack([np.stack([c, -s], -1), np.stack([s, c], -1)], -2)


def _reflection(angles: Array) -> Array:
    """[..., 2, 2]: takes the angle f to `angles` - f; one Householder matrix."""
    c, s = np.cos(angles), np.sin(angles)
    return np.stack([np.stack([c, s], -1), np.stack([s, -c], -1)], -2)
