"""How much of the difference between the DFA's states each head retains.

Let m(q) be the mean memory of a head over sequences that leave the DFA in state q. A word that
takes the states a and b to a' and b' should take m(a) - m(b) to m(a') - m(b'). The retained share
is the coefficient of m(a') - m(b') in P (m(a) - m(b)), where P is the product of the word's
transitions: 1 if the transitions are exact, less if the difference fades or rotates away.

Means come from two cuts of the sequences. A product of a mean of one cut with a mean of the other
has no noise in common, so the coefficient is unbiased.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from statetrack.diagnosis.segments import Probe, Segments
from statetrack.diagnosis.spectrum import Floats
from statetrack.layers import Transition
from statetrack.tasks.base import Ints

MIN_READINGS = 16  # below this, the loss of a token is not reported


@dataclass(frozen=True)
class StateMeans:
    """Mean memory by state of the DFA: by layer [states, heads, n, V] at both cuts."""

    present: Ints  # the states that occur at both cuts
    early: tuple[Tensor, ...]
    late: tuple[Tensor, ...]

    @classmethod
    def of(cls, probe: Probe) -> StateMeans:
        """Average over the sequences."""
        start, end = probe.segments.start, probe.segments.end
        return cls(
            np.intersect1d(start, end),
            tuple(_by_state(S, start, probe.dfa.states) for S in probe.memory[0]),
            tuple(_by_state(S, end, probe.dfa.states) for S in probe.memory[1]),
        )

    def explained(self, probe: Probe) -> list[Floats]:
        """By layer [heads]: the share of the memory's variance that the state explains."""
        states = torch.from_numpy(probe.segments.end[np.isin(probe.segments.end, self.present)])
        found = []
        for early, late, memory in zip(self.early, self.late, probe.memory[1], strict=True):
            one, two = (m[states] - m[states].mean(0) for m in (early, late))
            total = (memory - memory.mean(0)).square().sum((-2, -1)).mean(0)
            share = (one * two).sum((-2, -1)).mean(0) / total
            found.append(share.nan_to_num(0.0).clamp(0, 1).numpy())
        return found

    def retained(self, segments: Segments, rng: np.random.Generator) -> list[Floats]:
        """By layer [heads]: the share that some segments retain."""
        pairs = self._pairs(segments.start, segments.end, segments.action, rng)
        sums = [self._sums(layer, P, *pairs) for layer, (P, _) in enumerate(segments.maps)]
        return [_ratio(kept.sum(0), whole.sum(0)) for kept, whole in sums]

    def lost_by_token(self, probe: Probe, rng: np.random.Generator) -> list[Floats]:
        """By layer [symbols, heads]: the share that reading a symbol loses; NaN for rare ones."""
        symbols = len(probe.dfa.alphabet)
        first, last = probe.cuts
        kept, whole = ([m.new_zeros(symbols, m.shape[1]) for m in self.early] for _ in range(2))
        readings = np.zeros(symbols)
        for t in range(first, last):
            read = probe.symbols[:, t]
            before, after = probe.states[:, t - 1 : t + 1].T
            pairs = self._pairs(before, after, probe.delta.T[read], rng)
            one_hot = torch.from_numpy(np.eye(symbols + 1)[read[pairs[0]]][:, :-1])
            readings += one_hot.sum(0).numpy()
            for layer, transition in enumerate(probe.transitions):
                sums = self._sums(layer, transition[:, t - first], *pairs)
                kept[layer] += one_hot.T @ sums[0]  # [symbols, heads]
                whole[layer] += one_hot.T @ sums[1]
        rare = readings[:, None] < MIN_READINGS
        ratios = [_ratio(k, w) for k, w in zip(kept, whole, strict=True)]
        return [np.where(rare, np.nan, 1 - ratio) for ratio in ratios]

    def _pairs(
        self, before: Ints, after: Ints, action: Ints, rng: np.random.Generator
    ) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """Words i with states a != b that they take to a' != b', all of them in `present`."""
        other = rng.choice(self.present, len(before))
        other_after = np.take_along_axis(action, other[:, None], 1)[:, 0]
        present = (np.isin(states, self.present) for states in (before, after, other_after))
        i = np.flatnonzero(np.logical_and.reduce([*present, other_after != after]))
        return i, before[i], other[i], after[i], other_after[i]

    def _sums(
        self, layer: int, P: Transition, i: Ints, a: Ints, b: Ints, a_next: Ints, b_next: Ints
    ) -> tuple[Tensor, Tensor]:
        """[words, heads]: what is retained of each difference, and the whole of it."""
        early, late = self.early[layer], self.late[layer]
        target = late[a_next] - late[b_next]
        kept = P[i].apply(early[a] - early[b]) * target
        whole = (early[a_next] - early[b_next]) * target
        return kept.sum((-2, -1)), whole.sum((-2, -1))


def _by_state(memory: Tensor, states: Ints, count: int) -> Tensor:
    index = torch.from_numpy(states)
    total = memory.new_zeros(count, *memory.shape[1:]).index_add_(0, index, memory)
    times = torch.bincount(index, minlength=count).clamp(min=1)
    return total / times.view(-1, *[1] * (memory.dim() - 1))


def _ratio(kept: Tensor, whole: Tensor) -> Floats:
    """NaN where a head has nothing to retain."""
    return torch.where(whole > 0, kept / whole, torch.nan).numpy()
