"""Cover sets of states by smaller sets, level by level: the plan of a cascade.

A cascade narrows down the state of the DFA from level to level. At each level the states that are
possible, given the levels above, are a set X. It is covered by smaller sets, its *tiles*, which may
overlap; the level's state is the number of a tile that contains the DFA's state. That tile is the X
of the levels below, until it has a single state. Sets are integers whose bits are the states.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from statetrack.automata import DFA
from statetrack.automata.search import TooManyStatesError, reach
from statetrack.compiler import limits
from statetrack.errors import UserError


class TooLargeError(UserError):
    """A method of decomposition exceeds a limit; another method may stay within it."""


def members(states: int) -> list[int]:
    """List the states of a set, ascending."""
    found = []
    while states:
        low = states & -states
        found.append(low.bit_length() - 1)
        states ^= low
    return found


class Tiling(ABC):
    """Assign every set that can occur a height and tiles.

    Singletons have height 0, and a set of height h is split at level h of the cascade. The tiles of
    a set are proper subsets of lower heights that cover it. Two conditions make every symbol
    permute or reset a level: if it takes X onto Y of the same height, it takes the tiles of X one
    to one onto those of Y; and any image that is a proper subset of Y lies within a tile of Y.
    """

    def __init__(self, dfa: DFA) -> None:
        self.all_states = (1 << dfa.states) - 1
        self._bits = [[1 << state for state in column] for column in dfa.delta.T.tolist()]
        self._images: list[dict[int, int]] = [{} for _ in dfa.alphabet]

    def image(self, states: int, symbol: int) -> int:
        """Return the set to which a symbol takes a set of states."""
        known = self._images[symbol].get(states)
        if known is None:
            bits = self._bits[symbol]
            known = 0
            for state in members(states):
                known |= bits[state]
            self._images[symbol][states] = known
        return known

    @abstractmethod
    def height(self, states: int) -> int:
        """Return the height of a set."""

    @abstractmethod
    def tiles(self, states: int) -> list[int]:
        """Return the tiles of a set, in the order in which a level numbers them."""


class BannedStateTiling(Tiling):
    """The tiling of Esik: each tile of X is X without one state, so |Q| states give |Q| - 1 levels.

    A symbol a that is one to one from X onto Y takes the tile without x to the tile without x.a.
    Otherwise the image of X misses a state of Y, and lies within the tile of Y without that state.
    """

    def __init__(self, dfa: DFA) -> None:
        super().__init__(dfa)
        self._tiles: dict[int, list[int]] = {}

    def height(self, states: int) -> int:
        return states.bit_count() - 1

    def tiles(self, states: int) -> list[int]:
        tiles = self._tiles.get(states)
        if tiles is None:
            tiles = self._tiles[states] = [states ^ (1 << state) for state in members(states)]
        return tiles


class HolonomyTiling(Tiling):
    """The holonomy decomposition: sets are the images of the set of all states, and singletons.

    The tiles of a set are the maximal ones of these sets within it. With `strict` the heights are
    those of the textbook: a set is higher than each of its images from which no word leads back to
    it. Then the permutations of tiles come from groups in the transition monoid, so only the
    identity occurs for star-free languages. Without `strict` a set may also have the height of an
    image if its tiles go one to one onto those of the image, which usually gives fewer levels.
    """

    def __init__(self, dfa: DFA, strict: bool) -> None:
        super().__init__(dfa)
        self._symbols = range(len(dfa.alphabet))
        family = self._family(dfa)
        self._tiles: dict[int, list[int]] = {}
        for place, X in enumerate(family):
            if X.bit_count() > 1:
                self._tiles[X] = _maximal(S for S in family[place + 1 :] if S | X == X)
        self._heights = {X: 0 for X in family if X.bit_count() == 1}
        self._find_heights(strict)
        self._order_tiles()

    def height(self, states: int) -> int:
        return self._heights[states]

    def tiles(self, states: int) -> list[int]:
        return self._tiles[states]

    def _family(self, dfa: DFA) -> list[int]:
        """Return the images of the set of all states under all words, and the singletons.

        The largest come first.
        """
        most = limits.MAX_CASCADE_IMAGES
        try:
            found = reach(
                self.all_states, lambda X: (self.image(X, a) for a in self._symbols), most
            )
        except TooManyStatesError:
            raise TooLargeError(
                f"words take the {dfa.states:,} states to more than {most:,} different sets, the "
                "most supported"
            ) from None
        family = {*found.states, *(1 << state for state in range(dfa.states))}
        return sorted(family, key=lambda X: (-X.bit_count(), X))

    def _moves_tiles(self, X: int, a: int) -> bool:
        """Whether a symbol takes the tiles of X one to one onto those of its image."""
        image = self.image(X, a)
        if image.bit_count() != X.bit_count():
            return False
        moved = {self.image(T, a) for T in self._tiles[X]}
        return len(moved) == len(self._tiles[X]) and moved == set(self._tiles[image])

    def _find_heights(self, strict: bool) -> None:
        by_size: dict[int, list[int]] = {}
        for X in self._tiles:
            by_size.setdefault(X.bit_count(), []).append(X)
        for size in sorted(by_size):  # tiles and smaller images have their heights by then
            for component in self._components(by_size[size]):
                least = 1
                for X in component:
                    least = max(least, *(1 + self._heights[T] for T in self._tiles[X]))
                    for a in self._symbols:
                        image = self.image(X, a)
                        if image not in component:
                            shared = not strict and self._moves_tiles(X, a)
                            least = max(least, self._heights[image] + (not shared))
                self._heights.update(dict.fromkeys(component, least))

    def _components(self, sets: list[int]) -> list[set[int]]:
        """Return the strongly connected components of sets of one size (Tarjan's algorithm).

        A component comes after those that it leads to.
        """
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
                    image = self.image(X, a)
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
        """Number the tiles of an image like those of the set that they come from.

        Most symbols then keep the numbers, that is, they act as the identity on the level.
        """
        ordered: set[int] = set()

        def carried_to(X: int) -> Iterator[int]:
            for a in self._symbols:
                image = self.image(X, a)
                if image in ordered or self._heights[image] != self._heights[X]:
                    continue
                if self._moves_tiles(X, a):
                    self._tiles[image] = [self.image(T, a) for T in self._tiles[X]]
                    ordered.add(image)
                    yield image

        for root in self._tiles:
            if root not in ordered:
                ordered.add(root)
                reach(root, carried_to)


def _maximal(sets: Iterable[int]) -> list[int]:
    """Return the sets that lie in no other one; `sets` must come with the largest first."""
    kept: list[int] = []
    for S in sets:
        if not any(S | K == K for K in kept):
            kept.append(S)
    return kept
