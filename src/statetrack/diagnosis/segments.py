"""The affine maps that words make of a model's memory, and how to join them.

A sequence of a run's task is cut into a prefix, a segment and a suffix. Over the segment the memory
of a linear layer goes through an affine map S -> P S + C, where P is the product of the segment's
transitions. Two segments are joined where the task's automaton ends the first in the state in which
it starts the second. Joining a segment with one of its own length doubles it, so 17 joins lead from
13 tokens to a million.

P is computed in float64. C is what the model itself makes of the segment, in its own number type,
minus P S: it contains the rounding of every step. A layer above the first has transitions that
depend on the layers below, which are taken to work as they do at the training lengths.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from statetrack.automata import DFA
from statetrack.layers import Diagonal, Transition
from statetrack.models import SequenceModel
from statetrack.tasks import PrefixTask, Task, generator
from statetrack.tasks.base import Ints
from statetrack.training import RunConfig

ROWS = 512  # sequences: with fewer, an accuracy of 0.99 is not told from 1 with confidence
# Sequences for each state of the automaton: with 4, the same few segments follow each other over
# and over, and their errors add up where those of real sequences cancel.
PER_STATE = 16
NUMBERS = 1 << 25  # of all matrices P together: 0.25 GB
STREAM = 0x686F72697A  # keeps these sequences apart from those of the validation


class NotMeasurableError(Exception):
    """Why a model's memory cannot be followed."""


@dataclass(frozen=True)
class Segments:
    """Words with what they do to the automaton and to the memory of every layer."""

    tokens: int
    start: Ints  # [N]: the automaton's state before each word
    end: Ints  # [N]: and after it
    action: Ints  # [N, states]: where each word leads each state
    last: Ints  # [N]: the sequence with which each word ends
    maps: tuple[tuple[Transition, Tensor], ...]  # by layer P [N, ..., n, n] and C [N, ..., n, V]

    def then(self, second: Segments, rng: np.random.Generator) -> Segments:
        """Words of this set, each followed by one of the second set."""
        i, j = match(self.end, second.start, rng)
        maps = zip(self.maps, second.maps, strict=True)
        return Segments(
            self.tokens + second.tokens,
            self.start[i],
            second.end[j],
            np.take_along_axis(second.action[j], self.action[i], 1),
            second.last[j],
            tuple((Q[j].after(P[i]), Q[j].apply(C[i]) + D[j]) for (P, C), (Q, D) in maps),
        )


def match(ends: Ints, starts: Ints, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """As many pairs (i, j) as there are ends, with ends[i] = starts[j]; j is drawn uniformly."""
    i = np.flatnonzero(np.isin(ends, starts))
    if not len(i):
        raise NotMeasurableError("the automaton does not return to a state at a later position")
    i = np.concatenate([i, rng.choice(i, len(ends) - len(i))])
    order = np.argsort(starts, kind="stable")
    low, high = (np.searchsorted(starts[order], ends[i], side=s) for s in ("left", "right"))
    return i, order[rng.integers(low, high)]


@dataclass(frozen=True)
class Probe:
    """A model on sequences of the training lengths, cut into prefix, segment and suffix."""

    model: SequenceModel
    dfa: DFA
    length: int  # of the sequences, as the task counts it
    lead: int  # tokens of a sequence minus its length
    tokens: Ints  # [N, T]
    targets: Ints  # [N, T]
    scored: Any  # [N, T] bool
    right: Any  # [N, T] bool: scored, and the model's answer is right
    symbols: Ints  # [N, T]: of the automaton; one more than its last leaves the state alone
    states: Ints  # [N, T]: of the automaton, after each token
    cuts: tuple[int, int]  # where the segment begins, and where the suffix does
    before: tuple[Tensor, ...]  # by layer the memory [N, ..., n, V] at the first cut
    behind: tuple[Tensor, ...]  # and at the second
    carried: tuple[Any, ...]  # the model's whole state at the second cut
    transitions: tuple[Transition, ...]  # by layer, of the segment
    segments: Segments

    @classmethod
    @torch.no_grad()
    def of(cls, model: SequenceModel, config: RunConfig) -> Probe:
        """Run a model on sequences of its run's greatest training length."""
        task, dfa = asked_everywhere(config.task), config.task.automaton()
        if dfa is None:
            raise NotMeasurableError(f"{task.name} has no automaton whose states could be followed")
        length = config.training.max_length
        size = task.input_size(length)
        if size < 3:
            raise NotMeasurableError(f"the training lengths end at {length}: nothing to cut")
        rng = generator(config.training.data_seed, "validation", STREAM)
        rows = _rows(model, dfa.states)
        batch = task.sample(rng, np.full(rows, length))
        tokens = torch.from_numpy(batch.tokens)
        cuts = size // 3, 2 * size // 3
        one, two = cuts
        first, state = model(tokens[:, :one])
        second, carried = model(tokens[:, one:two], state)
        third, _ = model(tokens[:, two:], carried)
        answers = torch.cat([first, second, third], 1).argmax(-1).numpy()
        scored = task.scored(batch.targets)
        symbols, states = read(task, dfa, batch.tokens)
        wide = copy.deepcopy(model).double().transitions(tokens[:, :two])
        transitions = tuple(t[:, one:two] for t in wide if t is not None)
        products = [t.product() for t in transitions]
        before, behind = (
            tuple(s[0].double().reshape(*P.shape, -1) for s, P in zip(at, products, strict=True))
            for at in (state, carried)
        )
        maps = tuple((P, S - P.apply(R)) for P, R, S in zip(products, before, behind, strict=True))
        action = np.tile(np.arange(dfa.states), (rows, 1))
        for t in range(one, two):
            action = step(dfa, action, symbols[:, t : t + 1])
        segments = Segments(
            two - one, states[:, one - 1], states[:, two - 1], action, np.arange(rows), maps
        )
        return cls(
            model, dfa, length, size - length, batch.tokens, batch.targets, scored,
            (answers == batch.targets) & scored, symbols, states, cuts, before, behind, carried,
            transitions, segments,
        )  # fmt: skip

    @property
    def size(self) -> int:
        """Tokens of a sequence."""
        return self.tokens.shape[1]

    @torch.no_grad()
    def accuracy(
        self,
        segments: Segments,
        rng: np.random.Generator,
        restored: Sequence[tuple[int, int]] = (),
    ) -> float:
        """The share of right answers in suffixes that are read behind some segments.

        `restored` names layers and heads whose memory is as it is in a sequence of the training
        length that the automaton leaves in the same state.
        """
        i, j = match(self.segments.start, segments.start, rng)  # prefixes and words
        ends = [
            P[j].apply(S[i]) + C[j] for (P, C), S in zip(segments.maps, self.before, strict=True)
        ]
        k, suffix = match(segments.end[j], self.segments.end, rng)
        states = []
        for layer, (memory, own) in enumerate(zip(ends, self.carried, strict=True)):
            memory = memory[k]
            for at, head in restored:
                if at == layer:
                    memory[:, head] = self.behind[layer][suffix, head]
            shape = (len(memory), *own[0].shape[1:])
            local = segments.last[j][k]  # what a convolution has seen last
            S = memory.reshape(shape).to(own[0].dtype)
            states.append(type(own)(S, *(part[local] for part in own[1:])))
        cut = self.cuts[1]
        logits, _ = self.model(torch.from_numpy(self.tokens[suffix, cut:]), tuple(states))
        scored = self.scored[suffix, cut:]
        right = (logits.argmax(-1).numpy() == self.targets[suffix, cut:]) & scored
        return float(right.sum() / scored.sum())


def asked_everywhere(task: Task) -> Task:
    """The task with a target at every position, where a prefix is a sequence like any other."""
    if isinstance(task, PrefixTask) and task.prefixes_are_samples:
        return replace(task, supervision="dense")
    return task


def read(task: Task, dfa: DFA, tokens: Ints) -> tuple[Ints, Ints]:
    """The automaton's symbols and its states [N, T]; tokens that it does not know do nothing."""
    numbers = {symbol: i for i, symbol in enumerate(dfa.alphabet)}
    of_token = np.array([numbers.get(name, len(numbers)) for name in task.vocab])
    symbols = of_token[tokens]
    states = np.empty_like(symbols)
    state = np.full(len(tokens), dfa.start)
    for t in range(tokens.shape[1]):
        state = states[:, t] = step(dfa, state, symbols[:, t])
    return symbols, states


def step(dfa: DFA, states: Ints, symbols: Ints) -> Ints:
    """The states after one symbol each, the one past the last of the alphabet doing nothing."""
    known = np.minimum(symbols, len(dfa.alphabet) - 1)
    return np.where(symbols < len(dfa.alphabet), dfa.delta[states, known], states)


def _rows(model: SequenceModel, states: int) -> int:
    """How many sequences to follow, or why none can be."""
    each = 0
    found = model.transitions(torch.zeros(1, 1, dtype=torch.int64))
    for layer, (config, transition) in enumerate(zip(model.config.mixers, found, strict=True)):
        if transition is None:
            raise NotMeasurableError(f"layer {layer} ({config.label}) has no transitions")
        if not config.layer.affine_state:
            raise NotMeasurableError(f"layer {layer} ({config.label}) keeps its memory scaled")
        P = transition.product()
        each += P.values.numel() if isinstance(P, Diagonal) else P.dense().numel()
    rows = max(ROWS, PER_STATE * states)
    if rows * each > NUMBERS:
        raise NotMeasurableError(
            f"products of its transitions along {rows:,} sequences, {PER_STATE} for each of "
            f"{states:,} states, have {rows * each:,} numbers, and the limit is {NUMBERS:,}"
        )
    return rows
