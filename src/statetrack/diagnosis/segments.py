"""The affine maps that words apply to a model's memory, and how to join them.

A sequence of a run's task is cut into a prefix, a segment and a suffix. Over the segment the memory
S of a linear layer goes through an affine map S -> P S + C, where P is the product of the segment's
transitions. Two segments are joined where the task's DFA ends the first in the state in which it
starts the second. Joining a segment with one of equal length doubles it, so 17 joins lead from 13
tokens to a million.

P is computed in float64. C is the memory that the model itself computes over the segment, in its
own dtype, minus P S: it contains the rounding of every step. A layer above the first has
transitions that depend on the layers below, which are assumed to work as at the training lengths.
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

MIN_SEQUENCES = 512  # fewer do not distinguish an accuracy of 0.99 from 1 with confidence
# With 4 sequences for each state of the DFA, the same few segments follow each other again and
# again, and their errors add up where those of real sequences cancel.
PER_STATE = 16
MAX_ENTRIES = 1 << 25  # of all matrices P together: 0.25 GB
SEGMENT_STREAM = 0x686F72697A  # separates these sequences from those of the validation

Memories = tuple[Tensor, ...]  # by layer [N, heads, n, V]


class NotPredictableError(Exception):
    """Why no horizon can be predicted."""


@dataclass(frozen=True)
class Segments:
    """Words with their effect on the DFA and on the memory of every layer."""

    tokens: int
    start: Ints  # [N]: the DFA's state before each word
    end: Ints  # [N]: and after it
    action: Ints  # [N, states]: the state that each word takes each state to
    last: Ints  # [N]: the sequence with which each word ends
    maps: tuple[tuple[Transition, Tensor], ...]  # by layer P [N, heads, n, n], C [N, heads, n, V]

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
        raise NotPredictableError("the DFA does not return to a state at a later position")
    i = np.concatenate([i, rng.choice(i, len(ends) - len(i))])
    order = np.argsort(starts, kind="stable")
    low, high = (np.searchsorted(starts[order], ends[i], side=s) for s in ("left", "right"))
    return i, order[rng.integers(low, high)]


@dataclass(frozen=True)
class Probe:
    """A model on sequences of the largest training length, cut into prefix, segment and suffix."""

    model: SequenceModel
    dfa: DFA
    delta: Ints  # [states, symbols + 1]: of the DFA; the last column leaves the state alone
    length: int  # of the sequences, as the task counts it
    tokens: Ints  # [N, T]
    targets: Ints  # [N, T]
    scored: Any  # [N, T] bool
    right: Any  # [N, T] bool: scored, and the model's answer is right
    symbols: Ints  # [N, T]: columns of `delta`
    states: Ints  # [N, T]: of the DFA, after each token
    cuts: tuple[int, int]  # where the segment begins, and where the suffix does
    memory: tuple[Memories, Memories]  # at both cuts
    carried: tuple[Any, ...]  # the model's whole state at the second cut
    transitions: tuple[Transition, ...]  # by layer, over the segment
    segments: Segments

    @classmethod
    @torch.no_grad()
    def of(cls, model: SequenceModel, config: RunConfig) -> Probe:
        """Run a model on sequences of its run's largest training length."""
        task, dfa = _dense(config.task), config.task.automaton()
        if dfa is None:
            raise NotPredictableError(f"{task.name} has no DFA whose states could be followed")
        length = config.training.max_length
        size = task.input_size(length)
        if size < 3:
            raise NotPredictableError(f"sequences of {length} are too short to be cut in three")
        rng = generator(config.training.data_seed, "validation", SEGMENT_STREAM)
        rows = _sequences(model, dfa.states)
        batch = task.sample(rng, np.full(rows, length))
        tokens = torch.from_numpy(batch.tokens)
        one, two = size // 3, 2 * size // 3
        first, state = model(tokens[:, :one])
        second, carried = model(tokens[:, one:two], state)
        third, _ = model(tokens[:, two:], carried)
        answers = torch.cat([first, second, third], 1).argmax(-1).numpy()
        scored = task.scored(batch.targets)
        delta = np.column_stack([dfa.delta, np.arange(dfa.states)])
        column = {symbol: i for i, symbol in enumerate(dfa.alphabet)}
        symbols = np.array([column.get(name, len(column)) for name in task.vocab])[batch.tokens]
        states = np.empty_like(symbols)
        now = np.full(rows, dfa.start)
        for t in range(size):
            now = states[:, t] = delta[now, symbols[:, t]]
        exact = copy.deepcopy(model).double().transitions(tokens[:, :two])
        transitions = tuple(_with_heads(t)[:, one:two] for t in exact if t is not None)
        products = [t.product() for t in transitions]
        before, after = (
            tuple(_memory(*parts) for parts in zip(model.config.mixers, at, products, strict=True))
            for at in (state, carried)
        )
        maps = tuple((P, S - P.apply(R)) for P, R, S in zip(products, before, after, strict=True))
        action = np.tile(np.arange(dfa.states), (rows, 1))
        for t in range(one, two):
            action = delta[action, symbols[:, t : t + 1]]
        segments = Segments(
            two - one, states[:, one - 1], states[:, two - 1], action, np.arange(rows), maps
        )
        return cls(
            model, dfa, delta, length, batch.tokens, batch.targets, scored,
            (answers == batch.targets) & scored, symbols, states, (one, two), (before, after),
            carried, transitions, segments,
        )  # fmt: skip

    @property
    def size(self) -> int:
        """Tokens of a sequence."""
        return self.tokens.shape[1]

    @property
    def lead(self) -> int:
        """Tokens of a sequence minus its length."""
        return self.size - self.length

    @torch.no_grad()
    def accuracy(
        self,
        segments: Segments,
        rng: np.random.Generator,
        restored: Sequence[tuple[int, int]] = (),
    ) -> float:
        """The share of right answers in suffixes that are read after some segments.

        `restored` lists (layer, head): their memory is set to that of a sequence of the training
        length that leaves the DFA in the same state.
        """
        i, j = match(self.segments.start, segments.start, rng)  # prefixes and words
        before, after = self.memory
        ends = [P[j].apply(S[i]) + C[j] for (P, C), S in zip(segments.maps, before, strict=True)]
        k, suffix = match(segments.end[j], self.segments.end, rng)
        states = []
        for layer, (memory, own) in enumerate(zip(ends, self.carried, strict=True)):
            memory = memory[k]
            for at, head in restored:
                if at == layer:
                    memory[:, head] = after[layer][suffix, head]
            S = memory.reshape(len(memory), *own[0].shape[1:]).to(own[0].dtype)
            local = segments.last[j][k]  # the sequence whose end a convolution window holds
            states.append(type(own)(S, *(part[local] for part in own[1:])))
        cut = self.cuts[1]
        logits, _ = self.model(torch.from_numpy(self.tokens[suffix, cut:]), tuple(states))
        scored = self.scored[suffix, cut:]
        right = (logits.argmax(-1).numpy() == self.targets[suffix, cut:]) & scored
        return float(right.sum() / scored.sum())


def _dense(task: Task) -> Task:
    """The task with a target at every position, if each prefix of a sequence is a sequence."""
    if isinstance(task, PrefixTask) and task.prefixes_are_samples:
        return replace(task, supervision="dense")
    return task


def _with_heads(transition: Transition) -> Transition:
    """The transition with a dimension of heads, which a layer with one head may leave out."""
    return transition[:, :, None] if len(transition.shape) == 3 else transition


def _memory(mixer: Any, state: Any, P: Transition) -> Tensor:
    """The part of a layer's state that P multiplies, [N, heads, n, V]."""
    if state[0].numel() % P.shape.numel():
        sizes = f"{list(state[0].shape[1:])} for transitions of {list(P.shape[1:])}"
        raise NotPredictableError(f"the state of {mixer.label} begins with a tensor of {sizes}")
    return state[0].double().reshape(*P.shape, -1)


def _sequences(model: SequenceModel, states: int) -> int:
    """How many sequences to follow.

    Raises:
        NotPredictableError: a layer has no linear memory, or the products are too large.
    """
    entries = 0
    found = model.transitions(torch.zeros(1, 1, dtype=torch.int64))
    for layer, (config, transition) in enumerate(zip(model.config.mixers, found, strict=True)):
        if transition is None:
            raise NotPredictableError(f"layer {layer} ({config.label}) has no transitions")
        if not config.layer.affine_state:
            raise NotPredictableError(f"layer {layer} ({config.label}) scales its memory")
        P = transition.product()
        entries += P.values.numel() if isinstance(P, Diagonal) else P.dense().numel()
    rows = max(MIN_SEQUENCES, PER_STATE * states)
    if rows * entries > MAX_ENTRIES:
        raise NotPredictableError(
            f"products of its transitions along {rows:,} sequences, {PER_STATE} for each of "
            f"{states:,} states, have {rows * entries:,} numbers; the limit is {MAX_ENTRIES:,}"
        )
    return rows
