"""Frames: sets of states, each with a level and smaller sets of lower levels that cover it.

Sets are the bits of integers. Singletons have level 0 and all states the highest. From any frame
that keeps the promises of :class:`Frame`, `decompose` makes a cascade of permutation-reset
automata.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from statetrack.automata import DFA
from statetrack.errors import UserError

MAX_IMAGES = 4_096  # sets of states that holonomy looks at: a second's work


class TooLargeError(UserError):
    """A limit that a method has met; another may not."""


class Images:
    """X.a: where a symbol takes a set of states."""

    def __init__(self, dfa: DFA) -> None:
        self._bits = [[1 << state for state in column] for column in dfa.delta.T.tolist()]
        self._known: list[dict[int, int]] = [{} for _ in dfa.alphabet]

    def __call__(self, states: int, symbol: int) -> int:
        known = self._known[symbol].get(states)
        if known is None:
            bits = self._bits[symbol]
            known = 0
            for state in members(states):
                known |= bits[state]
            self._known[symbol][states] = known
        return known


def members(states: int) -> list[int]:
    """The states of a set, ascending."""
    found = []
    while states:
        low = states & -states
        found.append(low.bit_length() - 1)
        states ^= low
    return found


class Frame(ABC):
    """Levels and tiles.

    A set's tiles are proper subsets of lower levels that cover it. If a symbol takes X onto Y of
    the same level, it takes the tiles of X one to one onto those of Y; and whatever a symbol makes
    of a set lies in a tile of Y if it is a proper subset of Y.
    """

    def __init__(self, dfa: DFA) -> None:
        self.images = Images(dfa)
        self.everything = (1 << dfa.states) - 1

    @abstractmethod
    def level(self, states: int) -> int:
        """The level of a set."""

    @abstractmethod
    def tiles(self, states: int) -> list[int]:
        """The tiles of a set, in the order in which coordinates count them."""


class BannedState(Frame):
    """Esik's: the tiles of a set leave out one state each, so |Q| states have |Q| - 1 levels.

    A symbol that is one to one on X takes "all but x" to "all but x.a"; one that is not misses a
    state of Y, and what it makes of X is within "all but that".
    """

    def __init__(self, dfa: DFA) -> None:
        super().__init__(dfa)
        self._tiles: dict[int, list[int]] = {}

    def level(self, states: int) -> int:
        return states.bit_count() - 1

    def tiles(self, states: int) -> list[int]:
        tiles = self._tiles.get(states)
        if tiles is None:
            tiles = self._tiles[states] = [states ^ (1 << state) for state in members(states)]
        return tiles


class Holonomy(Frame):
    """The tiles of a set are the largest images of all states, and singletons, within it.

    Heights are the textbook's if `strict`: a set is higher than its images, unless they lead back
    to it. Then the permutations of tiles are those of groups in the transition monoid, so none but
    the identity occurs for star-free languages. Else a set may also share the level of an image
    onto whose tiles its own go one to one: fewer levels, as a rule.
    """

    def __init__(self, dfa: DFA, strict: bool) -> None:
        super().__init__(dfa)
        self._symbols = range(len(dfa.alphabet))
        family = self._family(dfa)
        self._tiles: dict[int, list[int]] = {}
        for place, X in enumerate(family):
            if X.bit_count() > 1:
                self._tiles[X] = _maximal(S for S in family[place + 1 :] if S | X == X)
        self._level = {X: 0 for X in family if X.bit_count() == 1}
        self._find_levels(strict)
        self._order_tiles()

    def level(self, states: int) -> int:
        return self._level[states]

    def tiles(self, states: int) -> list[int]:
        return self._tiles[states]

    def _family(self, dfa: DFA) -> list[int]:
        """The images of all states by all words, and the singletons; large ones first."""
        found = [self.everything]
        seen = set(found)
        for X in found:  # grows while it is read
            for a in self._symbols:
                image = self.images(X, a)
                if image not in seen:
                    seen.add(image)
                    found.append(image)
            if len(found) > MAX_IMAGES:
                raise TooLargeError(
                    f"words take the {dfa.states:,} states to more than {MAX_IMAGES:,} different "
                    "sets, the most supported"
                )
        seen |= {1 << state for state in range(dfa.states)}
        return sorted(seen, key=lambda X: (-X.bit_count(), X))

    def _moves_tiles(self, X: int, a: int) -> bool:
        """Whether a symbol takes the tiles of X one to one onto those of its image."""
        image = self.images(X, a)
        if image.bit_count() != X.bit_count():
            return False
        moved = {self.images(T, a) for T in self._tiles[X]}
        return len(moved) == len(self._tiles[X]) and moved == set(self._tiles[image])

    def _find_levels(self, strict: bool) -> None:
        by_size: dict[int, list[int]] = {}
        for X in self._tiles:
            by_size.setdefault(X.bit_count(), []).append(X)
        for size in sorted(by_size):  # tiles and smaller images have their levels by then
            for component in self._components(by_size[size]):
                least = 1
                for X in component:
                    least = max(least, *(1 + self._level[T] for T in self._tiles[X]))
                    for a in self._symbols:
                        image = self.images(X, a)
                        if image not in component:
                            shared = not strict and self._moves_tiles(X, a)
                            least = max(least, self._level[image] + (not shared))
                self._level.update(dict.fromkeys(component, least))

    def _components(self, sets: list[int]) -> list[set[int]]:
        """Tarjan: sets of one size that lead to each other; those that are led to come first."""
        number: dict[int, int] = {}
        low: dict[int, int] = {}
        stack: list[int] = []
        waiting: set[int] = set()
        found: list[set[int]] = []
        for root in sets:
            work = [(root, iter(self._symbols))] if root not in number else []
            while work:
                X, symbols = work[-1]
                if X not in number:
                    number[X] = low[X] = len(number)
                    stack.append(X)
                    waiting.add(X)
                for a in symbols:
                    image = self.images(X, a)
                    if image.bit_count() != X.bit_count():
                        continue
                    if image not in number:
                        work.append((image, iter(self._symbols)))
                        break
                    if image in waiting:
                        low[X] = min(low[X], number[image])
                else:
                    work.pop()
                    if work:
                        low[work[-1][0]] = min(low[work[-1][0]], low[X])
                    if low[X] == number[X]:
                        cut = stack.index(X)
                        component = set(stack[cut:])
                        del stack[cut:]
                        waiting -= component
                        found.append(component)
        return found

    def _order_tiles(self) -> None:
        """Carry the order of tiles from set to image: most symbols then leave coordinates alone."""
        ordered: set[int] = set()
        for root in self._tiles:
            pending = [root] if root not in ordered else []
            ordered.update(pending)
            for X in pending:  # grows while it is read
                for a in self._symbols:
                    image = self.images(X, a)
                    if image in ordered or self._level[image] != self._level[X]:
                        continue
                    if self._moves_tiles(X, a):
                        self._tiles[image] = [self.images(T, a) for T in self._tiles[X]]
                        ordered.add(image)
                        pending.append(image)


def _maximal(sets: Iterable[int]) -> list[int]:
    """Those that lie in no other; `sets` come with the largest first."""
    kept: list[int] = []
    for S in sets:
        if not any(S | K == K for K in kept):
            kept.append(S)
    return kept
