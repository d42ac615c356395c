"""How much of what distinguishes the automaton's states a head keeps.

m(q) is the mean of a head's memory over sequences that leave the automaton in state q. A word that
leads the states a and b to a' and b' should lead the difference m(a) - m(b) to m(a') - m(b'). The
share that is kept is the coefficient of the second in what the product of the word's transitions
makes of the first: 1 if the transitions are exact, less if the difference fades or turns away.

Means are taken from two cuts of the sequences. A product of a mean of one cut with a mean of the
other has no share of the noise of both, so the coefficient is unbiased.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from statetrack.diagnosis.segments import Probe, Segments, step
from statetrack.layers import Transition
from statetrack.tasks.base import Ints

Floats = NDArray[np.float64]
RECURRING = 16  # with fewer readings, the loss of a token is not reported


@dataclass(frozen=True)
class Means:
    """Of the memory by state of the automaton: by layer [states, heads, n, V] at both cuts."""

    present: Ints  # the states that occur at both cuts
    early: tuple[Tensor, ...]
    late: tuple[Tensor, ...]

    @classmethod
    def of(cls, probe: Probe) -> Means:
        """Average over the sequences."""
        start, end = probe.segments.start, probe.segments.end
        return cls(
            np.intersect1d(start, end),
            tuple(_by_state(S, start, probe.dfa.states) for S in probe.before),
            tuple(_by_state(S, end, probe.dfa.states) for S in probe.behind),
        )

    def shares(self, probe: Probe) -> list[Floats]:
        """By layer [heads]: the share of the memory's variance that is due to the state."""
        states = torch.from_numpy(probe.segments.end[np.isin(probe.segments.end, self.present)])
        found = []
        for early, late, memory in zip(self.early, self.late, probe.behind, strict=True):
            one, two = (m[states] - m[states].mean(0) for m in (early, late))
            total = (memory - memory.mean(0)).square().sum((-2, -1)).mean(0)
            share = (one * two).sum((-2, -1)).mean(0) / total
            found.append(share.nan_to_num(0.0).clamp(0, 1).numpy())
        return found

    def kept(self, segments: Segments, rng: np.random.Generator) -> list[Floats]:
        """By layer [heads]: the share of the distinction that is kept over some segments."""
        pairs = self._pairs(segments.start, segments.end, segments.action, rng)
        sums = [self._sums(layer, P, *pairs) for layer, (P, _) in enumerate(segments.maps)]
        return [_ratio(kept.sum(0), whole.sum(0)) for kept, whole in sums]

    def lost_by_token(self, probe: Probe, rng: np.random.Generator) -> list[Floats]:
        """By layer [symbols, heads]: the share lost by reading a symbol; NaN for rare ones."""
        symbols = len(probe.dfa.alphabet)
        first = probe.cuts[0]
        everything = np.arange(probe.dfa.states)
        kept, whole = ([m.new_zeros(symbols, m.shape[1]) for m in self.early] for _ in range(2))
        seen = np.zeros(symbols)
        for t in range(probe.cuts[1] - first):
            read = probe.symbols[:, first + t]
            action = step(probe.dfa, everything[None], read[:, None])
            before, after = probe.states[:, first + t - 1], probe.states[:, first + t]
            pairs = self._pairs(before, after, action, rng)
            of_pair = torch.from_numpy(np.eye(symbols + 1)[read[pairs[0]]][:, :-1])
            seen += of_pair.sum(0).numpy()
            for layer, transition in enumerate(probe.transitions):
                sums = self._sums(layer, transition[:, t], *pairs)
                kept[layer] += of_pair.T @ sums[0]  # [symbols, heads]
                whole[layer] += of_pair.T @ sums[1]
        rare = seen < RECURRING
        return [
            np.where(rare[:, None], np.nan, 1 - _ratio(k, w))
            for k, w in zip(kept, whole, strict=True)
        ]

    def _pairs(
        self, before: Ints, after: Ints, action: Ints, rng: np.random.Generator
    ) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """Words i, and states a, b that they lead to a' and b', all different and known."""
        other = rng.choice(self.present, len(before))
        led = np.take_along_axis(action, other[:, None], 1)[:, 0]
        known = np.isin(before, self.present) & np.isin(after, self.present)
        i = np.flatnonzero(known & np.isin(led, self.present) & (led != after))
        return i, before[i], other[i], after[i], led[i]

    def _sums(
        self, layer: int, P: Transition, i: Ints, a: Ints, b: Ints, a_next: Ints, b_next: Ints
    ) -> tuple[Tensor, Tensor]:
        """[words, heads]: what is kept of each difference, and the whole of it."""
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
    """NaN where a head has nothing to keep."""
    return torch.where(whole > 0, kept / whole, torch.nan).numpy()
