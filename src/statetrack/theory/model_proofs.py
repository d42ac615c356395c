"""What can be said of a compiled model for words of any length."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statetrack.models import SequenceModel
from statetrack.theory.induction import Proof
from statetrack.theory.model import CompiledModel, mixers
from statetrack.theory.proofs import NORM_SLACK, type_name
from statetrack.theory.reachable import Mistake, Read, explore, read_whole_words

FORMATS = (torch.float32, torch.bfloat16)


@torch.no_grad()
def prove(net: CompiledModel, max_states: int) -> Proof:
    """Every state that the model can get into, bit for bit, reads every symbol.

    Breadth first from the start, in float32 and in bfloat16, token by token: if the answers are
    the DFA's and no further states turn up, they are the DFA's for all words. Then every such state
    reads a word as a whole, in chunks, and must end in one of them; that no chunk can differ,
    whatever its word, is what `certificate` is for.
    """
    claim = (
        f"{net.origin} does what the DFA with {net.dfa.states} states does, token by token in "
        "float32 and bfloat16"
    )
    reached = 0
    for dtype in FORMATS:
        model = copy.deepcopy(net.model).to(dtype)
        found = explore(_by_steps(net, model), model.init_state(1), net.dfa, max_states)
        if isinstance(found, Mistake):
            wrong: Mistake | None = found
        else:
            reached = max(reached, len(found.words))
            wrong = read_whole_words(_at_once(net, model), found, net.dfa)
        if wrong is not None:
            reason = f"state {wrong.told} instead of {wrong.right} in {type_name(dtype)}"
            return Proof(claim, "its states", wrong.word, reason)
    steps = reached * len(net.dfa.alphabet)
    evidence = f"all {steps:,} steps from {reached:,} states of the model, and a word from each"
    return Proof(claim, evidence)


def _by_steps(net: CompiledModel, model: SequenceModel) -> Read:
    def read(symbols: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits, state = model.step(symbols[:, 0] + 1, state)
        return net.told(logits)[:, None], state

    return read


def _at_once(net: CompiledModel, model: SequenceModel) -> Read:
    def read(symbols: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits, state = model(symbols + 1, state)
        return net.told(logits), state

    return read


@torch.no_grad()
def certificate(net: CompiledModel, max_states: int) -> dict[str, Any]:
    """Why nothing is rounded in chunks either, of all that the layers can be given.

    Keys are halves of whole numbers, betas and gates whole, transitions of norm at most 1, values
    and states multiples of one power of two. A chunk of n steps, whichever way it multiplies, adds
    up at most n products of what a step writes, at most beta (|v| + |k . S|), with entries of its
    triangular matrix or the inverse of that, at most 2: all in halves of that power of two. So
    float32, in which the ops compute, holds them as long as n is at most `longest_chunk`.
    """
    model = copy.deepcopy(net.model).float()
    inputs: list[list[Tensor]] = [[] for _ in model.blocks]
    for layer, given in zip(mixers(model), inputs, strict=True):
        layer.qkv_proj.register_forward_pre_hook(partial(_record, given))
    found = explore(_by_steps(net, model), model.init_state(1), net.dfa, max_states)
    halves, norm, width, numbers = True, 0.0, 0.0, [torch.zeros(1)]
    for layer, given in zip(mixers(model), inputs, strict=True):
        x = torch.cat(given).unique(dim=0)[None]  # [1, N, hidden], whatever the layer is given
        transition = layer.transitions(x)
        assert transition.decay is not None
        tables = (2 * transition.k, transition.beta, transition.decay)
        halves &= all(bool((table == table.round()).all()) for table in tables)
        norm = max(norm, float(torch.linalg.matrix_norm(transition.dense().double(), 2).max()))
        width = max(width, float(transition.k.abs().sum(-1).max()))
        numbers.append(F.silu(layer.qkv_proj(x)[..., -layer.sizes[2] :]).flatten())
    states = [] if isinstance(found, Mistake) else [layer.S.flatten() for layer in found.states]
    values = torch.cat([*numbers, *states]).abs()
    unit = _unit(values)
    largest = float(values.max()) / unit if unit else 0.0
    written = 2 * (1 + width) * largest  # betas are at most 2, in units
    dyadic = bool(halves and unit and (values.bfloat16() == values).all())
    exact = dyadic and not isinstance(found, Mistake) and norm <= 1 + NORM_SLACK
    return {
        "dyadic_entries": dyadic,
        "largest_norm": norm,
        "largest_number": largest,  # as a multiple of that power
        "longest_chunk": int(2**24 / (2 * 2 * max(1.0, written))) if exact else 0,
        "exact": exact,
        "formats": [*map(type_name, FORMATS)] if exact else [],
    }


def _record(rows: list[Tensor], module: nn.Module, args: tuple[Tensor]) -> None:
    rows.append(args[0].flatten(0, -2).unique(dim=0))


def _unit(values: Tensor) -> float:
    """The greatest power of two that all values are multiples of; 0 if it is below 2^-24."""
    whole = values.double() * 2.0**24
    if not bool((whole == whole.round()).all()):
        return 0.0
    common = math.gcd(*(int(v) for v in whole.unique().tolist()))
    return (common & -common) / 2.0**24 if common else 1.0
