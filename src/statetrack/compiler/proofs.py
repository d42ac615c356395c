"""What can be said of a compiled network for words of any length."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from statetrack.compiler.induction import Bools, Ints, Proof, by_levels, induct
from statetrack.compiler.layers import Layer
from statetrack.compiler.network import CompiledRNN
from statetrack.compiler.targets import HouseholderLayer
from statetrack.compiler.whole_words import advance, read_whole_words
from statetrack.compiler.wording import abridge, counted, size_of
from statetrack.errors import UserError
from statetrack.kernels import library

SLAB = 1 << 22  # numbers of tables at once
MAX_INTEGER = {torch.float32: 1 << 24, torch.bfloat16: 1 << 8}  # up to which all are exact
NORM_SLACK = 1e-12
M = TypeVar("M", bound=nn.Module)


def prove(net: CompiledRNN, max_states: int) -> Proof:
    """Every state of every layer, in every context, goes through the op that runs the layer.

    It must come out as the codeword of the state that the layer's automaton goes to, bit for bit,
    and be read as that, in float32 and bfloat16 (which holds integers up to 256), on every backend.
    Then the layers are automata, and the state that they tell must be the one that the DFA goes to:
    by induction down the levels of the cascade, or breadth first over all that the layers can reach
    together, at most `max_states`, which finds a word if something is wrong. All this is about
    single tokens; that chunks of them cannot differ is what the certificate says, without which the
    claim is "token by token". With it, words from all states of the DFA are read in chunks, too.
    """
    if not net.exact:
        raise UserError(
            f"{net.origin} rounds, so there is nothing to prove for words of any length; "
            "theorems.horizon measures how far it holds"
        )
    net = _twin(net).cpu()
    formats = _formats(net)
    certified = certificate(net)["exact"]
    how = "token by token" + " and in chunks" * certified
    names = " and ".join(map(type_name, formats))
    states = counted(net.dfa.states, "state")
    claim = f"{net.origin} does what the DFA with {states} does, {how}, in {names}"
    right = [np.ones(layer.moves.shape, dtype=np.bool_) for layer in net.stack]
    for number_type in formats:
        for i, layer in enumerate(_twin(net).to(number_type).stack):
            if not torch.equal(layer.H0, layer.codewords[layer.start]):
                return Proof(claim, "the start", (), f"layer {i + 1} does not start as it should")
            for backend in _backends(layer):
                right[i] &= _steps(layer, backend)
    steps = _by_levels(net, right)
    if steps is not None:
        proof = Proof(claim, f"all {counted(steps, 'step')} of its layers")
    else:
        proof = _by_states(net, claim, right, max_states)
    if not certified or not proof.holds:
        return proof
    wrong = read_whole_words(_twin(net).to(formats[-1]))  # what the coarsest holds, all do
    if wrong is None:
        return proof
    reason = f"read at once in {type_name(formats[-1])}, it is not as it should be"
    return Proof(claim, "words from all states", wrong, reason)


def _backends(layer: Layer) -> list[str]:
    """All that there are for the layer's op; dense layers have their scan only."""
    if layer.target == "dense":
        return ["torch"]
    return ["naive", "torch"] + ["native"] * library.serves(*layer.buffers())


def _by_states(net: CompiledRNN, claim: str, right: list[Bools], max_states: int) -> Proof:
    def step(coordinates: Ints, symbols: Ints) -> tuple[Ints, Ints, Bools]:
        new, contexts = advance(net, coordinates, symbols)
        wrong = [~r[c, old] for r, c, old in zip(right, contexts, coordinates.T, strict=False)]
        return new, contexts[-1], np.asarray(np.any(wrong, axis=0))

    def explain(coordinates: Ints, symbol: int) -> str:
        context = int(net.first[symbol])
        for i, (layer, state) in enumerate(zip(net.stack, coordinates, strict=True)):
            if not right[i][context, state]:
                target = int(layer.moves[context, state])
                return (
                    f"layer {i + 1} in context {context} does not take {state} to {target} exactly"
                )
            context = int(layer.out[context, layer.current(state)])
        return ""

    start = np.array([layer.start for layer in net.stack], dtype=np.int64)
    return induct(net.dfa, claim, start, step, explain, max_states)


def _twin(module: M) -> M:
    """A copy that shares all tables with the module, until the copy is moved or cast."""
    twin = copy.copy(module)
    twin._buffers = dict(module._buffers)
    twin._modules = {name: child and _twin(child) for name, child in module._modules.items()}
    return twin


def _by_levels(net: CompiledRNN, right: list[Bools]) -> int | None:
    """The steps of layers that prove the whole, None without a cascade or if they do not."""
    if net.cascade is None:
        return None
    levels = []
    for layer, steps in zip(net.stack, right, strict=True):
        moves, out = layer.moves.numpy(), layer.out.numpy()
        # whatever a layer remembers
        pairs = steps.reshape(*out.shape, -1)
        moves = layer.current(moves[:, :: pairs.shape[2]])
        levels.append((moves, out, np.asarray(pairs.all(axis=2))))
    start = net.cascade.start.tolist()
    return by_levels(net.dfa, net.first.numpy(), start, levels, net.cascade.tree)


@torch.no_grad()
def _steps(layer: Layer, backend: str) -> Bools:
    """[contexts, S]: whether one token makes of each state exactly what it should."""
    contexts, S = layer.moves.shape
    right = []
    for part in torch.arange(contexts * S).split(max(1, SLAB // layer.cells)):
        context, state = part // S, part % S
        readings, last = layer.run(context[:, None], layer.codewords[state], backend)
        moved = layer.moves.view(-1)[part]
        seen = layer.seen(readings[:, 0])
        exact = (readings[:, 0] == layer.expected[seen]).all(1)
        exact &= (last == layer.codewords[moved]).flatten(1).all(1)
        if layer.undo is None:
            right.append(exact & (seen == moved))
        else:  # the old state is what is read
            current = torch.from_numpy(layer.current(state.numpy()))
            right.append(exact & (layer.undo[context, seen] == current))
    return torch.cat(right).view(contexts, S).numpy()


def _formats(net: CompiledRNN) -> list[torch.dtype]:
    """The number types that hold all readings."""
    return [dtype for dtype, most in MAX_INTEGER.items() if net.largest_reading <= most]


def type_name(dtype: torch.dtype) -> str:
    """As people call it."""
    return str(dtype).removeprefix("torch.")


def certificate(net: CompiledRNN) -> dict[str, Any]:
    """Why nothing is rounded, however long the word.

    All entries are integers, no norm exceeds 1, that of single Householder factors included, and
    what is written goes where nothing is kept. A product of the transitions then has norm at most 1
    as well, its entries are integers, and writes do not add up: in any order of multiplication,
    step by step or chunk by chunk, all numbers that occur are small integers. The ops add up some
    dozens of products of them with readings, in float32.
    """
    tables = [table for layer in net.stack for table in (*layer.tables().values(), layer.H0)]
    integers = all(bool((table == table.round()).all()) for table in tables)
    maps = [(torch.as_tensor(layer.A), torch.as_tensor(layer.B)) for layer in net.stack]
    norms = [_norm(A) for A, _ in maps]
    for layer in net.stack:
        if isinstance(layer, HouseholderLayer):
            norms.append(float((1 - layer.betas * layer.keys.square().sum(-1)).abs().max()))
    fresh = not any(bool(A[B.any(-1)].any()) for A, B in maps)  # rows that B writes to
    return {
        "integer_entries": integers,
        "largest_norm": max(norms),
        "largest_reading": net.largest_reading,
        "fresh_writes": fresh,
        "exact": integers and fresh and max(norms) <= 1 + NORM_SLACK,
        "formats": [*map(type_name, _formats(net))],
    }


def _norm(A: Tensor) -> float:
    """The largest 2-norm of matrices [..., n, n]; it is at most the root of row times column sums,
    which says 1 of permutations and needs no singular values.
    """
    sizes = A.abs().float()
    bound = float((sizes.sum(-1).amax(-1) * sizes.sum(-2).amax(-1)).max()) ** 0.5
    return bound if bound <= 1 else float(torch.linalg.matrix_norm(A.double(), 2).max())


def report(net: CompiledRNN) -> str:
    """A line for the network, one for each of some layers and one for its exactness."""
    layers = []
    for i, layer in enumerate(net.stack, 1):
        line = f"layer {i} ({layer.target}): state [{layer.size}, {layer.H0.shape[1]}], "
        line += counted(layer.contexts, "context")
        if isinstance(layer, HouseholderLayer):
            line += f", {counted(layer.keys.shape[1], 'Householder factor')}"
        if layer.remembers:
            line += ", remembers its old state"
        layers.append(line)
    lines = [f"{net.origin}: {size_of(net.dfa)}", *abridge(layers, "layer")]
    if net.instead:
        lines.append(net.instead)
    facts = certificate(net)
    if facts["exact"]:
        formats = " and ".join(facts["formats"])
        lines.append(
            f"exact at any length in {formats}: integer tables, norms at most 1, fresh writes"
        )
    else:
        lines.append("rounds: see theorems.horizon for how far it holds")
    return "\n".join(lines)
