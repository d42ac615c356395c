"""Random words of a DFA, uniform among those that end in a given class of states.

Words are drawn from their last symbol to their first. One table [length, states] holds how many
words of each length lead from the start to each state, and serves every class and length: the last
state is drawn among those of the class with these numbers as weights, then each earlier state among
the predecessors of the one after it. The table holds logarithms, because the numbers are large, and
is computed in chunks of steps, because words may be long.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from statetrack.tasks.base import Ints

Floats = NDArray[np.float64]
STEPS = 256  # in a chunk, fewer if it would exceed CHUNK_SIZE
CHUNK_SIZE = 2**20  # numbers in the table of a chunk
CACHE_SIZE = 2**23  # numbers in all cached tables: 64 MB


class WeightedChoice:
    """Draws one item of a given group of items, by weights; items are numbered group by group."""

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
        self.width = len(groups) + 2**depth  # the binary search may read so far past the last group

    def log_sums(self, logs: Floats) -> Floats:
        """Sum weights by group: logarithms [..., items] -> logarithms [..., groups present]."""
        return np.asarray(np.logaddexp.reduceat(logs, self.starts, axis=-1))

    def bounds(self, logs: Floats) -> Floats:
        """Compute search keys [n, width] from logarithms of weights [n, items].

        The key of an item is twice its group plus the share of the group's weight up to the item.
        Keys ascend, so one binary search finds the item of a group and a number in [0, 1).
        """
        best = np.maximum.reduceat(logs, self.starts, axis=1)
        shift = np.where(best == -np.inf, 0, best)
        sums = np.exp(logs - shift.repeat(self.sizes, axis=1)).cumsum(1)
        before = np.concatenate([np.zeros((len(sums), 1)), sums[:, self.starts[1:] - 1]], axis=1)
        totals = sums[:, self.starts + self.sizes - 1] - before
        shares = sums - before.repeat(self.sizes, axis=1)
        shares /= np.where(totals > 0, totals, 1).repeat(self.sizes, axis=1)
        shares[shares >= 1] = 1.5  # 2 * group + number may be rounded up
        bounds = np.full((len(logs), self.width), np.inf)
        bounds[:, : len(self.groups)] = self.keys[self.groups] + shares
        return bounds

    def pick(
        self, bounds: Floats, groups: Ints, numbers: Floats, offset: Ints | None = None
    ) -> Ints:
        """Find the item of each group and number in [0, 1), by binary search.

        Returns:
            [B], positions in the flattened `bounds`, whose rows start at `offset` (or at 0).
        """
        keys = self.keys.take(groups) + numbers
        at: Ints = self.first.take(groups)
        if offset is not None:
            at += offset
        for half in self.halves:
            step = (keys >= bounds[half - 1 :].take(at)).astype(np.int64)
            step *= half  # in place: twice as fast as multiplying integers by booleans
            at += step
        return at


class NoWordsError(Exception):
    """There are no words of the length that is its argument."""


class Chunk(NamedTuple):
    """The table for some consecutive steps."""

    log_words: Floats  # [steps + 1, states]: log of how many words lead to a state before a step
    bounds: Floats  # [steps, width]: search keys of the edges into each state


class WordSampler:
    """Draws words whose run never leaves the `allowed` states, which include the start."""

    def __init__(self, delta: Ints, start: int, class_of: Ints, allowed: NDArray[np.bool_]) -> None:
        states, symbols = delta.shape
        sources, letters = np.divmod(np.arange(delta.size), symbols)
        targets = delta.ravel()
        legal = allowed[sources] & allowed[targets]
        # an edge is a pair of states, with all symbols that lead from one to the other
        edges, of_edge = np.unique((targets * states + sources)[legal], return_inverse=True)
        self.letters = letters[legal][np.argsort(of_edge, kind="stable")]  # sorted by edge
        self.choices = np.bincount(of_edge).astype(np.float64)  # letters per edge
        self.several_letters = bool(self.choices.max() > 1)
        self.log_choices = np.log(self.choices)
        self.first_letter = np.flatnonzero(np.diff(np.sort(of_edge), prepend=-1))
        targets, self.sources = np.divmod(edges, states)
        self.edges = WeightedChoice(targets)
        self.ends_by_class = np.flatnonzero(allowed)[np.argsort(class_of[allowed], kind="stable")]
        self.ends = WeightedChoice(class_of[self.ends_by_class])
        self.steps = min(STEPS, max(1, CHUNK_SIZE // self.edges.width))
        self._heads = [np.where(np.arange(states) == start, 0.0, -np.inf)]  # first rows of chunks
        self._chunks: dict[int, Chunk] = {}  # least recently used first

    def draw(self, rng: np.random.Generator, lengths: Ints) -> Ints:
        """Draw words [B, longest]; what lies past a row's length does not matter.

        The class of the last state is uniform among those that the length allows.

        Raises:
            NoWordsError: There are no words of one of the lengths.
        """
        order = np.argsort(-lengths, kind="stable")
        lengths = lengths[order]  # descending: the rows that have a step come first
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
                # with mode="raise" numpy would copy the output once more
                self.sources.take(edge, out=state[:n], mode="clip")
                if self.several_letters:
                    letter = rng.random(n) * self.choices.take(edge)
                    edge = self.first_letter.take(edge) + letter.astype(np.int64)
                self.letters.take(edge, out=part[t, :n], mode="clip")
        return words.take(np.argsort(order), axis=1).T

    def _last_states(
        self, rng: np.random.Generator, chunk: Chunk, lengths: Ints, head: int
    ) -> Ints:
        """Draw the last states of words; lengths are counted from the chunk's head."""
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
        """Continue the table [steps + 1, states] from its first row."""
        log_words = np.full((self.steps + 1, len(head)), -np.inf)
        log_words[0] = head
        for now, after in itertools.pairwise(log_words):
            after[self.edges.present] = self.edges.log_sums(self._by_edge(now))
        return log_words

    def _by_edge(self, log_words: Floats) -> Floats:
        return np.asarray(log_words[..., self.sources] + self.log_choices)


def _uniform_choice(rng: np.random.Generator, allowed: NDArray[np.bool_]) -> Ints:
    """Draw one allowed column in each row of [B, n]."""
    ranks = allowed.cumsum(1)
    wanted = (rng.random(len(allowed)) * ranks[:, -1]).astype(np.int64)
    return np.asarray((ranks <= wanted[:, None]).sum(1))
