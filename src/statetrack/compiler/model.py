"""Compiled models: ordinary SequenceModels whose weights were written, not learned."""

from __future__ import annotations

import copy
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from statetrack.automata import DFA
from statetrack.compiler.compiled import (
    FORMATS,
    NORM_SLACK,
    Checked,
    Compiled,
    as_tokens,
)
from statetrack.compiler.limits import MAX_PROOF_STATES
from statetrack.compiler.proof import (
    Mistake,
    ModelStates,
    State,
    explore,
    read_in_chunks,
    row_keys,
    take,
)
from statetrack.compiler.text_to_dfa import REGEX, Language
from statetrack.compiler.wording import counted
from statetrack.devices import device_of
from statetrack.errors import UserError
from statetrack.files import write_json
from statetrack.layers import GatedDeltaProduct
from statetrack.models import SequenceModel
from statetrack.ops.recurrence.chunk_delta import MAX_CHUNK
from statetrack.tasks.automaton import Automaton
from statetrack.tasks.languages import check_size
from statetrack.training import Run, RunConfig, TrainingConfig

LENGTH = 4096  # tokens that are read at once
DFA_FILE = "dfa.json"


class CompiledModel(Compiled):
    """A SequenceModel that computes, exactly and at any length, the state of a DFA.

    Its tokens are those of the task `Automaton` with predict = "state": PAD, the symbols, the
    states; where a symbol is read the logits are greatest at the state after it.
    """

    def __init__(self, dfa: DFA, model: SequenceModel, title: str) -> None:
        self.dfa = dfa
        self.model = model
        self.title = title

    @property
    def vocab(self) -> tuple[str, ...]:
        """The names of the model's tokens."""
        return ("PAD", *self.dfa.alphabet, *(f"q{i}" for i in range(self.dfa.states)))

    @property
    def device(self) -> torch.device:
        return device_of(self.model)

    def to(self, device: torch.device | str) -> Self:
        """Move the model to a device; return this."""
        self.model.to(device)
        return self

    @torch.no_grad()
    def __call__(self, tokens: Tensor) -> Tensor:
        tokens = as_tokens(tokens, len(self.dfa.alphabet))
        states, carry = [], None
        for part in tokens.split(LENGTH, dim=1):
            logits, carry = self.model(part + 1, carry)
            states.append(self._states(logits))
        return torch.cat(states, 1)

    def _states(self, logits: Tensor) -> Tensor:
        """The states of the DFA with the greatest logits; negative where another token has it."""
        return logits.argmax(-1) - 1 - len(self.dfa.alphabet)

    def summary(self) -> str:
        config = self.model.config
        blocks, weights = counted(config.num_layers, "block"), self.model.num_parameters()
        return f"a model of {blocks} of width {config.hidden_size}, {counted(weights, 'weight')}"

    def _layers(self) -> list[str]:
        lines = []
        for i, layer in enumerate(_mixers(self.model), 1):
            heads = counted(layer.config.num_heads, "head")
            what = f"{heads}, state [{layer.key_size}, {layer.value_size}]"
            if layer.conv:
                what += ", delays the state by one token"
            else:
                what += f", {counted(layer.config.num_householder, 'Householder factor')}"
            lines.append(f"Block {i}: {what}.")
        return lines

    def certificate(self) -> dict[str, Any]:
        """Compute the facts from which it follows that chunks round nothing either.

        They are about all that the layers can be given. Let a chunk have n steps, L be its matrix
        beta_i D_ij (k_i . k_j), j < i, and T = (I + L)^-1. All norms are at most 1: of keys and
        queries, of gates and of the factors I - beta k k^T. M bounds values and the columns of
        states, as multiples of a power of two, the unit.

        - All beta_i (k_i . k_j) are whole, so L and T are, and any block's inverse. The entry T_ij
          is -beta_i k_i . (a product of transitions) k_j: at most 2.
        - U0 = T beta V is whole, at most 4nM, and what a part of the system leaves of the right
          side is beta_i (v_i - k_i . S) for a state S that began with 0 in the chunk, at most 6nM.
          So sums of products with entries of L or T stay below 14 n^2 M. W = T beta b K likewise,
          in halves.
        - W S is in halves, its sums at most 2M, for rows of W have norms up to 2. U = U0 - W S is
          beta (v - k . S) for the states S on the way, which writes of 2M each let grow: at most
          8nM.
        - Outputs are sums of n products of q . k, in quarters and at most 1, with U, so in eighths;
          new states add up k U, in quarters: at most 8 n^2 M both.

        So all that a chunk adds up, in whatever order, is a multiple of an eighth of the unit and
        at most 64 n^2 M eighths, which float32, in which the ops compute, holds up to 2^24. That
        `scale` is a power of two changes nothing.
        """
        return self._check(MAX_PROOF_STATES, chunks=False).certificate

    def _check(self, max_states: int, chunks: bool = True) -> Checked:
        """Visit every state of the whole model, bit for bit, token by token, in each number type.

        If the answers are the DFA's and no further states turn up, they are so for all words. Then
        each state reads a longer word at once, in chunks, and must end in one of them.
        """
        results = [self._check_format(name, max_states, chunks) for name in FORMATS]
        facts = [fact for fact, _, _ in results]
        reached = max(number for _, number, _ in results)
        mistake = next((wrong for _, _, wrong in results if wrong is not None), None)
        chunk = min(fact.longest_chunk for fact in facts)
        certificate = {
            "dyadic_entries": all(fact.dyadic for fact in facts),
            "whole_products": all(fact.whole_products for fact in facts),
            "largest_norm": max(fact.norm for fact in facts),
            "largest_number": max(fact.largest for fact in facts),  # as a multiple of the unit
            "longest_chunk": chunk,
            "exact": chunk >= MAX_CHUNK,
            "formats": [
                name
                for name, fact in zip(FORMATS, facts, strict=True)
                if fact.longest_chunk >= MAX_CHUNK
            ],
        }
        steps = counted(reached * len(self.dfa.alphabet), "step")
        states = counted(reached, "state")
        evidence = f"all {steps} from {states} of the model, and a word from each"
        return Checked(certificate, [*FORMATS], evidence, mistake)

    @torch.no_grad()
    def _check_format(
        self, name: str, max_states: int, chunks: bool
    ) -> tuple[_Facts, int, Mistake | None]:
        """The facts for the certificate, the number of states, and what is wrong, if anything."""
        model, device = copy.deepcopy(self.model).to(FORMATS[name]), self.device

        def step(symbols: Tensor, state: State) -> tuple[Tensor, State]:
            logits, state = model.step(symbols[:, 0].to(device) + 1, state)
            return self._states(logits)[:, None], state

        def read(symbols: Tensor, state: State) -> tuple[Tensor, State]:
            logits, state = model(symbols.to(device) + 1, state)
            return self._states(logits), state

        found = explore(step, model.init_state(1), self.dfa, max_states)
        facts = _facts(model, found, len(self.dfa.alphabet))
        number, wrong = 0, None
        if isinstance(found, Mistake):
            wrong = found
        else:
            number = len(found.dfa_states)
            wrong = read_in_chunks(read, found, self.dfa) if chunks else None
        if wrong is not None:
            wrong = wrong._replace(reason=f"{wrong.reason} in {name}")
        return facts, number, wrong

    def _write(self, folder: Path, language: Language) -> None:
        """Write a run folder, as if the model had been trained for 0 steps."""
        check_size(language.text, self.dfa.states)
        if self.dfa.states == 1:
            raise UserError(f"{language.text} has one state only: no task, so no run of a model")
        for symbol in self.dfa.alphabet:
            if re.fullmatch("PAD|q[0-9]+", symbol):  # the task's own tokens
                raise UserError(f"{language.text}: a run of a model cannot have symbol {symbol!r}")
        name = language.text
        if not name.startswith("regex:") and language.kind == REGEX:
            name = f"regex:{name}"
        plain = replace(self.dfa, outputs=None)
        named = Automaton.matches(name) and replace(Automaton(name=name).dfa, outputs=None) == plain
        if not named:  # no language with a name of its own
            name = f"dfa:{folder / DFA_FILE}"
            write_json(folder / DFA_FILE, self.dfa.to_json())
        config = RunConfig(Automaton(name=name), self.model.config, TrainingConfig())
        data = config.to_json()
        if not named:
            data["task"]["name"] = f"dfa:{DFA_FILE}"  # beside config.json, wherever that is moved
        write_json(folder / "config.json", data)
        Run(folder, config).save(0, self.model)


def _mixers(model: SequenceModel) -> list[GatedDeltaProduct]:
    return [block.mixer for block in model.blocks]  # type: ignore[misc]


class _Facts(NamedTuple):
    """What the certificate is about, in one number type."""

    dyadic: bool  # keys and queries in halves, betas and gates whole, values in units
    whole_products: bool
    norm: float
    largest: float
    longest_chunk: int  # 0 if anything is missing


def _facts(model: SequenceModel, found: ModelStates | Mistake, symbols: int) -> _Facts:
    known = isinstance(found, ModelStates)
    if isinstance(found, Mistake):  # what follows is about the start only, and nothing is claimed
        zero = np.zeros(1, dtype=np.int64)
        found = ModelStates(model.init_state(1), zero, zero, None)
    dyadic, whole, norm, largest = True, True, 0.0, 1.0
    given = _op_inputs(model, found, symbols)
    for layer, its, (q, k, v, beta, gate) in zip(_mixers(model), found.states, given, strict=True):
        states = its.S.cpu().double()  # [..., K, V]
        unit = _unit(torch.cat([v.flatten(), states.flatten()]).abs())
        scale = math.frexp(layer.key_size**-0.5)[0] == 0.5  # a power of two
        dyadic &= unit > 0 and scale and all(map(_is_whole, (2 * q, 2 * k, beta, gate)))
        whole &= has_whole_products(k, beta)
        sizes = (q.norm(dim=-1), k.norm(dim=-1), gate.abs(), (1 - beta * k.square().sum(-1)).abs())
        norm = max(norm, *(float(size.max()) for size in sizes))
        most = max(float(v.abs().max()), float(states.norm(dim=-2).max()))
        largest = max(largest, most / (unit or 1.0))
    exact = known and dyadic and whole and norm <= 1 + NORM_SLACK
    longest = math.isqrt(int(2**24 / (64 * largest))) if exact else 0
    return _Facts(dyadic, whole, norm, largest, longest)


def _op_inputs(model: SequenceModel, found: ModelStates, symbols: int) -> list[tuple[Tensor, ...]]:
    """Return each layer's distinct op inputs over all states and symbols, in float64 on the CPU.

    q [N, H, K], k [N, n, H, K], v [N, n, H, V], beta [N, n, H], gate [N, H].
    """
    inputs: list[dict[bytes, tuple[Tensor, Tensor]]] = [{} for _ in model.blocks]
    for rows, letters in found.steps(symbols):
        x = model.embedding(torch.from_numpy(letters).to(device_of(model)) + 1)
        for block, state, seen in zip(model.blocks, take(found.states, rows), inputs, strict=True):
            keys = row_keys([x, state.conv])
            for i in np.unique(keys, return_index=True)[1]:
                seen.setdefault(keys[i].tobytes(), (x[i], state.conv[i]))
            if block is not model.blocks[-1]:
                x, _ = block.step(x, state)  # type: ignore[operator]
    results = []
    for layer, seen in zip(_mixers(model), inputs, strict=True):
        x, window = (torch.stack(column) for column in zip(*seen.values(), strict=True))
        state = layer.init_state(len(x))._replace(conv=window)
        q, k, v, beta, gate, _ = layer.op_inputs(x[:, None], state)
        assert gate is not None
        given = (q[:, 0], k, v, beta, gate.values()[:, 0])
        results.append(tuple(t.cpu().double() for t in given))
    return results


def _is_whole(x: Tensor) -> bool:
    return bool((x == x.round()).all())


def has_whole_products(k: Tensor, beta: Tensor) -> bool:
    """Whether beta_i (k_i . k_j) is whole for all keys k [N, n, H, K] that a head is given."""
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
