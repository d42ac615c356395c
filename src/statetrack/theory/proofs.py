"""What can be said of a compiled network for words of any length."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from statetrack.errors import UserError
from statetrack.ops import native
from statetrack.theory.induction import Bools, Ints, Proof, by_levels, induct
from statetrack.theory.layers import HouseholderLayer, Layer
from statetrack.theory.network import CompiledRNN

SLAB = 1 << 22  # numbers of tables at once
MAX_INTEGER = {torch.float32: 1 << 24, torch.bfloat16: 1 << 8}  # up to which all are exact
NORM_SLACK = 1e-12


def prove(net: CompiledRNN, max_states: int) -> Proof:
    """Every state of every layer, in every context, goes through the op that runs the layer.

    It must come out as the codeword of the state that the layer's automaton goes to, bit for bit,
    and be read as that, in float32 and bfloat16 (which holds integers up to 256), on every backend.
    Then the layers are automata, and the state that they tell must be the one that the DFA goes to:
    by induction down the levels of the cascade, or breadth first over all that the layers can reach
    together, at most `max_states`, which finds a word if something is wrong.
    """
    if not net.exact:
        raise UserError(
            f"{net.origin} rounds, so there is nothing to prove for words of any length; "
            "theorems.horizon measures how far it holds"
        )
    formats = [d for d, most in MAX_INTEGER.items() if _largest(net) <= most]
    backends = ["torch"] + (["native"] if native.serves(*net.buffers()) else [])
    names = " and ".join(str(d).removeprefix("torch.") for d in formats)
    claim = f"{net.origin} does what the DFA with {net.dfa.states} states does, in {names}"
    good = [np.ones(layer.moves.shape, dtype=np.bool_) for layer in net.stack]
    for number_type in formats:
        cast = copy.deepcopy(net).to(number_type)
        for i, layer in enumerate(cast.stack):
            if not torch.equal(layer.H0, layer.codewords[layer.start]):
                return Proof(claim, "", (), f"layer {i + 1} does not start as it should")
            for backend in backends[: 1 if layer.target == "dense" else None]:
                good[i] &= _steps(layer, backend)

    first = net.first.numpy()
    tables = [(layer.moves.numpy(), layer.out.numpy()) for layer in net.stack]
    steps = _by_levels(net, good)
    if steps is not None:
        return Proof(claim, f"all {steps:,} steps of its layers")

    def walk(coordinates: Ints, symbols: Ints) -> tuple[Ints, Ints, Bools, list[Ints]]:
        contexts, wrong = first[symbols], np.zeros(len(symbols), dtype=np.bool_)
        new, passed = np.empty_like(coordinates), []
        for i, (layer, (moves, out)) in enumerate(zip(net.stack, tables, strict=True)):
            old = coordinates[:, i]
            passed.append(contexts)
            wrong |= ~good[i][contexts, old]
            new[:, i] = moves[contexts, old]
            if layer.remembers:
                old = old // (out.shape[1] + 1)
            told = new[:, i] if i == len(tables) - 1 else old
            contexts = out[contexts, told]
        return new, contexts, wrong, passed

    def explain(coordinates: Ints, symbol: int) -> str:
        passed = walk(coordinates[None], np.array([symbol]))[3]
        for i, contexts in enumerate(passed):
            context, state = int(contexts[0]), int(coordinates[i])
            if not good[i][context, state]:
                target = tables[i][0][context, state]
                return (
                    f"layer {i + 1} does not take state {state} to {target} in context {context}; "
                )
        return ""

    start = np.array([layer.start for layer in net.stack], dtype=np.int64)
    step = lambda coordinates, symbols: walk(coordinates, symbols)[:3]  # noqa: E731
    return induct(net.dfa, claim, start, step, explain, max_states)


def _by_levels(net: CompiledRNN, good: list[Bools]) -> int | None:
    """The steps of layers that prove the whole, None without a cascade or if they do not."""
    if net.cascade is None:
        return None
    levels = []
    for layer, right in zip(net.stack, good, strict=True):
        moves, out = layer.moves.numpy(), layer.out.numpy()
        if layer.remembers:  # whatever it remembers
            S = out.shape[1]
            moves = moves[:, :: S + 1] // (S + 1)
            right = np.asarray(right.reshape(len(moves), S, S + 1).all(axis=2))
        levels.append((moves, out, right))
    start = net.cascade.start.tolist()
    return by_levels(net.dfa, net.first.numpy(), start, levels, net.cascade.tree)


@torch.no_grad()
def _steps(layer: Layer, backend: str) -> Bools:
    """[contexts, S]: whether one token makes of each state exactly what it should."""
    contexts, S = layer.moves.shape
    good = []
    pairs = torch.arange(contexts * S)
    for part in pairs.split(max(1, SLAB // layer.cells)):
        context, state = part // S, part % S
        readings, last = layer.run(context[:, None], layer.codewords[state], backend)
        moved = layer.moves.view(-1)[part]
        seen = layer.seen(readings[:, 0])
        told = seen
        if layer.remembers:
            width = layer.out.shape[1]
            assert isinstance(layer.undo, Tensor)
            told, moved_to = layer.undo[context, seen], state // (width + 1)
        else:
            moved_to = moved
        right = (last == layer.codewords[moved]).flatten(1).all(1) & (told == moved_to)
        good.append(right & (readings[:, 0] == layer.expected[seen]).all(1))
    return torch.cat(good).view(contexts, S).numpy()


def _largest(net: CompiledRNN) -> float:
    return max(float(layer.expected.abs().max()) for layer in net.stack)


def certificate(net: CompiledRNN) -> dict[str, Any]:
    """Why nothing is rounded, however long the word: all entries are integers, no norm exceeds 1.

    A product of the transitions then has norm at most 1 as well, and its entries are integers: in
    any order of multiplication, step by step or chunk by chunk, all numbers that occur are small
    integers, which the formats hold.
    """
    tables = [table for layer in net.stack for table in (*layer.tables().values(), layer.H0)]
    integers = all(bool((table == table.round()).all()) for table in tables)
    norms = [float(torch.linalg.matrix_norm(layer.A.double(), 2).max()) for layer in net.stack]
    largest = _largest(net)
    formats = [d for d, most in MAX_INTEGER.items() if largest <= most]
    return {
        "integer_entries": integers,
        "largest_norm": max(norms),
        "largest_reading": largest,
        "exact": integers and max(norms) <= 1 + NORM_SLACK,
        "formats": [str(d).removeprefix("torch.") for d in formats],
    }


def report(net: CompiledRNN) -> str:
    """A line for the network, one for each layer and one for its exactness."""
    dfa = net.dfa
    lines = [f"{net.origin}: {dfa.states} states, {len(dfa.alphabet)} symbols"]
    for i, layer in enumerate(net.stack, 1):
        line = f"layer {i} ({layer.target}): state [{layer.size}, {layer.H0.shape[1]}], "
        line += f"{layer.contexts} contexts"
        if isinstance(layer, HouseholderLayer):
            line += f", {layer.keys.shape[1]} Householder factors"
        if layer.remembers:
            line += ", remembers its old state"
        lines.append(line)
    facts = certificate(net)
    if facts["exact"]:
        formats = " and ".join(facts["formats"])
        lines.append(f"exact at any length in {formats}: integer tables, norms at most 1")
    else:
        lines.append("rounds: see theorems.horizon for how far it holds")
    return "\n".join(lines)
