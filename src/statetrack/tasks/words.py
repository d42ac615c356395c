"""Random words of an automaton, uniform among those that end in a given class of states.

Words are drawn from their last symbol to their first. How many words of length n lead from the
start to a state does not depend on where a longer word ends, so one table of [length, states]
serves every class and every length: the last state is drawn by these numbers among those of the
class, and then each step back by those of the states that it may come from. The numbers are kept
as logarithms, for there are many words; in chunks of steps, for words may be long.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from statetrack.tasks.base import Ints

Floats = NDArray[np.float64]
STEPS = 256  # in a chunk, if it does not become too large
CHUNK_SIZE = 2**20  # numbers in the table of a chunk
CACHE_SIZE = 2**23  # numbers in all tables that are kept: 64 MB


class Groups:
    """Draws one item of a group, by weights; items are numbered group by group."""

    def __init__(self, groups: Ints) -> None:
        self.groups = groups  # [items], ascending
        self.present, self.starts, self.sizes = np.unique(
            groups, return_index=True, return_counts=True
        )
        self.first = np.zeros(groups[-1] + 1, dtype=np.int64)
        self.first[self.present] = self.starts
        self.keys = 2.0 * np.arange(len(self.first))
        depth = (int(self.sizes.max()) - 1).bit_length()
        self.halves = [2**i for i in reversed(range(depth))]
        self.width = len(groups) + 2**depth  # a search may look so far past the last group

    def log_sums(self, logs: Floats) -> Floats:
        """[..., items] -> [..., groups present]: the logarithms of the sums of weights."""
        return np.asarray(np.logaddexp.reduceat(logs, self.starts, axis=-1))

    def bounds(self, logs: Floats) -> Floats:
        """[n, items] -> [n, width]: twice the group plus the share of the items up to this one.

        These ascend, so that one search finds the item of a group and a number in [0, 1).
        """
        best = np.maximum.reduceat(logs, self.starts, axis=1)
        shift = np.where(best == -np.inf, 0, best)
        sums = np.exp(logs - shift.repeat(self.sizes, axis=1)).cumsum(1)
        before = np.concatenate([np.zeros((len(sums), 1)), sums[:, self.starts[1:] - 1]], axis=1)
        totals = sums[:, self.starts + self.sizes - 1] - before
        shares = sums - before.repeat(self.sizes, axis=1)
        shares /= np.where(totals > 0, totals, 1).repeat(self.sizes, axis=1)
        shares[shares >= 1] = 1.5  # so that rounding up 2 * group + number does not pass it
        bounds = np.full((len(logs), self.width), np.inf)
        bounds[:, : len(self.groups)] = self.keys[self.groups] + shares
        return bounds

    def pick(
        self, bounds: Floats, groups: Ints, numbers: Floats, offset: Ints | None = None
    ) -> Ints:
        """[B]: where in `bounds`, flat, stands the item of each group and number in [0, 1).

        Its row starts at `offset`, or at 0. A binary search, all at once.
        """
        keys = self.keys.take(groups) + numbers
        at: Ints = self.first.take(groups)
        if offset is not None:
            at += offset
        for half in self.halves:
            step = (keys >= bounds[half - 1 :].take(at)).astype(np.int64)
            step *= half  # in place: twice as fast as a product of numbers and truth values
            at += step
        return at


class NoWordsError(Exception):
    """There are no words of the length that it is raised with."""


class Chunk(NamedTuple):
    """Some steps of the table."""

    log_words: Floats  # [steps + 1, states]: how many words lead to a state before each step
    bounds: Floats  # [steps, width]: of the edges by which a step may lead to a state


class Words:
    """Words that never leave the `allowed` states, among which the start is."""

    def __init__(self, delta: Ints, start: int, class_of: Ints, allowed: NDArray[np.bool_]) -> None:
        states, symbols = delta.shape
        sources, letters = np.divmod(np.arange(delta.size), symbols)
        targets = delta.ravel()
        legal = allowed[sources] & allowed[targets]
        # symbols that lead from one state to one other are an edge
        edges, of_edge = np.unique((targets * states + sources)[legal], return_inverse=True)
        self.letters = letters[legal][np.argsort(of_edge, kind="stable")]  # edge by edge
        self.choices = np.bincount(of_edge).astype(np.float64)  # how many letters
        self.several_letters = bool(self.choices.max() > 1)
        self.log_choices = np.log(self.choices)
        self.first_letter = np.flatnonzero(np.diff(np.sort(of_edge), prepend=-1))
        targets, self.sources = np.divmod(edges, states)
        self.edges = Groups(targets)
        self.ends_by_class = np.flatnonzero(allowed)[np.argsort(class_of[allowed], kind="stable")]
        self.ends = Groups(class_of[self.ends_by_class])
        self.steps = min(STEPS, max(1, CHUNK_SIZE // self.edges.width))
        self._heads = [np.where(np.arange(states) == start, 0.0, -np.inf)]  # of each chunk
        self._chunks: dict[int, Chunk] = {}  # the last used at the end

    def draw(self, rng: np.random.Generator, lengths: Ints) -> Ints:
        """[B, longest] symbols; what stands past a row's length does not matter.

        The class of the last state is uniform among those that the length allows.
        """
        order = np.argsort(-lengths, kind="stable")
        lengths = lengths[order]  # descending: the rows that a step is part of come first
        words = np.zeros((int(lengths[0]), len(lengths)), dtype=np.int64)  # a row per step
        state = np.zeros(len(lengths), dtype=np.int64)
        begun = 0
        for k in reversed(range(-(-len(words) // self.steps))):
            chunk, head = self._chunk(k), k * self.steps
            part = words[head : head + self.steps]
            rows = int(np.count_nonzero(lengths > head))
            state[begun:rows] = self._last_states(rng, chunk, lengths[begun:rows] - head, head)
            begun = rows
            longer = np.searchsorted(-lengths, -head - np.arange(len(part))).tolist()
            for t in reversed(range(len(part))):
                n = longer[t]
                edge = self.edges.pick(chunk.bounds[t], state[:n], rng.random(n))
                # clip: else numpy copies what it takes once more
                self.sources.take(edge, out=state[:n], mode="clip")
                if self.several_letters:
                    letter = rng.random(n) * self.choices.take(edge)
                    edge = self.first_letter.take(edge) + letter.astype(np.int64)
                self.letters.take(edge, out=part[t, :n], mode="clip")
        return words.take(np.argsort(order), axis=1).T

    def _last_states(
        self, rng: np.random.Generator, chunk: Chunk, lengths: Ints, head: int
    ) -> Ints:
        """Last states of words so long, counted from the chunk's head."""
        distinct, row = np.unique(lengths, return_inverse=True)
        logs = chunk.log_words[distinct][:, self.ends_by_class]
        possible = self.ends.log_sums(logs) > -np.inf
        if not possible.any(1).all():
            raise NoWordsError(head + int(distinct[~possible.any(1)][0]))
        goals = self.ends.present[_uniform_choice(rng, possible[row])]
        offset = row * self.ends.width
        bounds = self.ends.bounds(logs).ravel()
        item = self.ends.pick(bounds, goals, rng.random(len(row)), offset) - offset
        return np.asarray(self.ends_by_class[item])

    def _chunk(self, k: int) -> Chunk:
        chunk = self._chunks.pop(k, None) or self._make_chunk(k)
        self._chunks[k] = chunk
        while len(self._chunks) > max(1, CACHE_SIZE // chunk.bounds.size):
            del self._chunks[next(iter(self._chunks))]
        return chunk

    def _make_chunk(self, k: int) -> Chunk:
        while len(self._heads) <= k:
            self._heads.append(self._log_words(self._heads[-1])[-1])
        log_words = self._log_words(self._heads[k])
        return Chunk(log_words, self.edges.bounds(self._by_edge(log_words[:-1])))

    def _log_words(self, head: Floats) -> Floats:
        """[steps + 1, states]: how many words lead to each state, given how many do at first."""
        log_words = np.full((self.steps + 1, len(head)), -np.inf)
        log_words[0] = head
        for now, after in itertools.pairwise(log_words):
            after[self.edges.present] = self.edges.log_sums(self._by_edge(now))
        return log_words

    def _by_edge(self, log_words: Floats) -> Floats:
        return np.asarray(log_words[..., self.sources] + self.log_choices)


def _uniform_choice(rng: np.random.Generator, allowed: NDArray[np.bool_]) -> Ints:
    """[B, n] -> one allowed column of each row."""
    ranks = allowed.cumsum(1)
    wanted = (rng.random(len(allowed)) * ranks[:, -1]).astype(np.int64)
    return np.asarray((ranks <= wanted[:, None]).sum(1))
