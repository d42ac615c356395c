"""What can be said of a compiled model for words of any length."""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statetrack.compiler.induction import Proof
from statetrack.compiler.model import CompiledModel, mixers
from statetrack.compiler.proofs import NORM_SLACK, type_name
from statetrack.compiler.reachable import Mistake, Read, explore, read_whole_words
from statetrack.compiler.wording import counted
from statetrack.layers.delta_net import DeltaInputs, DeltaNetState
from statetrack.layers.gated_delta_product import GatedDeltaProduct
from statetrack.models import SequenceModel
from statetrack.ops.delta_rule.chunk import MAX_CHUNK

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
        f"{net.origin} does what the DFA with {counted(net.dfa.states, 'state')} does, token by "
        "token in float32 and bfloat16"
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
    steps, states = counted(reached * len(net.dfa.alphabet), "step"), counted(reached, "state")
    return Proof(claim, f"all {steps} from {states} of the model, and a word from each")


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


def certificate(net: CompiledModel, max_states: int) -> dict[str, Any]:
    """Why nothing is rounded in chunks either, of all that the layers can be given.

    Let a chunk have n steps, L be its matrix beta_i D_ij (k_i . k_j), j < i, and T = (I + L)^-1.
    All norms are at most 1: of keys and queries, of gates and of the factors I - beta k k^T. M
    bounds values and the columns of states, as multiples of a power of two, the unit.

    - All beta_i (k_i . k_j) are whole, so L and T are, and any block's inverse. The entry T_ij is
      -beta_i k_i . (a product of transitions) k_j: at most 2.
    - U0 = T beta V is whole, at most 4nM, and what a part of the system leaves of the right side is
      beta_i (v_i - k_i . S) for a state S that began with 0 in the chunk, at most 6nM. So sums of
      products with entries of L or T stay below 14 n^2 M. W = T beta b K likewise, in halves.
    - W S is in halves, its sums at most 2M, for rows of W have norms up to 2. U = U0 - W S is
      beta (v - k . S) for the states S on the way, which writes of 2M each let grow: at most 8nM.
    - Outputs are sums of n products of q . k, in quarters and at most 1, with U, so in eighths; new
      states add up k U, in quarters: at most 8 n^2 M both.

    So all that a chunk adds up, in whatever order, is a multiple of an eighth of the unit and at
    most 64 n^2 M eighths, which float32, in which the ops compute, holds up to 2^24. That `scale`
    is a power of two changes nothing.
    """
    facts = [_facts(net, dtype, max_states) for dtype in FORMATS]
    chunk = min(found.longest_chunk for found in facts)
    return {
        "dyadic_entries": all(found.dyadic for found in facts),
        "whole_products": all(found.whole_products for found in facts),
        "largest_norm": max(found.norm for found in facts),
        "largest_number": max(found.largest for found in facts),  # as a multiple of the unit
        "longest_chunk": chunk,
        "exact": chunk >= MAX_CHUNK,
        "formats": [
            type_name(dtype)
            for dtype, found in zip(FORMATS, facts, strict=True)
            if found.longest_chunk >= MAX_CHUNK
        ],
    }


class _Facts(NamedTuple):
    """What `certificate` is about, in one number type."""

    dyadic: bool  # keys and queries in halves, betas and gates whole, values in units
    whole_products: bool
    norm: float
    largest: float
    longest_chunk: int  # 0 if anything is missing


@torch.no_grad()
def _facts(net: CompiledModel, dtype: torch.dtype, max_states: int) -> _Facts:
    model = copy.deepcopy(net.model).to(dtype)
    heard = [_listen(layer) for layer in mixers(model)]
    found = explore(_by_steps(net, model), model.init_state(1), net.dfa, max_states)
    dyadic, whole, norm, largest = True, True, 0.0, 1.0
    for i, (layer, given) in enumerate(zip(mixers(model), heard, strict=True)):
        q, k, v, beta, gate = (torch.cat(parts).double() for parts in zip(*given, strict=True))
        # [..., K, V]; those of a mistake are not known, and nothing is claimed then
        states = layer.init_state(1).S if isinstance(found, Mistake) else found.states[i].S
        states = states.double()
        unit = _unit(torch.cat([v.flatten(), states.flatten()]).abs())
        scale = math.frexp(layer.key_size**-0.5)[0] == 0.5  # a power of two
        dyadic &= unit > 0 and scale and all(map(_is_whole, (2 * q, 2 * k, beta, gate)))
        whole &= _whole_products(k, beta)
        sizes = (q.norm(dim=-1), k.norm(dim=-1), gate.abs(), (1 - beta * k.square().sum(-1)).abs())
        norm = max(norm, *(float(size.max()) for size in sizes))
        most = max(float(v.abs().max()), float(states.norm(dim=-2).max()))
        largest = max(largest, most / (unit or 1.0))
    exact = dyadic and whole and norm <= 1 + NORM_SLACK and not isinstance(found, Mistake)
    longest = math.isqrt(int(2**24 / (64 * largest))) if exact else 0
    return _Facts(dyadic, whole, norm, largest, longest)


Given = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _listen(layer: GatedDeltaProduct) -> list[Given]:
    """What the layer gives to its op from now on, one token at a time, each once.

    q [N, H, K], k [N, n, H, K], v [N, n, H, V], betas [N, n, H], gates [N, H].
    """
    given: list[Given] = []
    seen: set[bytes] = set()
    op_inputs = layer.op_inputs

    def listening(x: Tensor, state: DeltaNetState, ops: Any) -> DeltaInputs:
        inputs = op_inputs(x, state, ops)
        rows = torch.cat([x.flatten(1), state.conv.flatten(1)], 1).float().numpy()
        fresh = {row.tobytes(): i for i, row in enumerate(rows)}
        new = [i for key, i in fresh.items() if key not in seen]
        seen.update(fresh)
        if new:
            q, k, v, beta, gate, _ = inputs
            assert gate is not None
            given.append((q[new, 0], k[new], v[new], beta[new], gate.values()[new, 0]))
        return inputs

    layer.op_inputs = listening  # type: ignore[method-assign, assignment]
    layer.qkv_proj.register_forward_pre_hook(lambda *_: None)  # no program goes past a hook
    return given


def _is_whole(x: Tensor) -> bool:
    return bool((x == x.round()).all())


def _whole_products(k: Tensor, beta: Tensor) -> bool:
    """Whether beta_i (k_i . k_j) is whole for all keys that a head is given."""
    for head in torch.cat([k, beta[..., None]], -1).flatten(0, 1).unbind(1):
        rows = head.unique(dim=0)
        keys, betas = rows[:, :-1], rows[:, -1:]
        if not _is_whole(betas * (keys @ keys.mT)):
            return False
    return True


def _unit(values: Tensor) -> float:
    """The greatest power of two that all values are multiples of; 0 if it is below 2^-24."""
    whole = values.double() * 2.0**24
    if not bool((whole == whole.round()).all()):
        return 0.0
    common = math.gcd(*(int(v) for v in whole.unique().tolist()))
    return (common & -common) / 2.0**24 if common else 1.0
