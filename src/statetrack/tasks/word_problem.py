"""Word problems of finite groups: the running product of elements."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from statetrack.automata import DFA, Group, group, moore_machine, read_group
from statetrack.config import option, unknown
from statetrack.errors import UserError
from statetrack.tasks.base import Ints, PrefixTask, register

MAX_BLOCK_TRANSITIONS = 10_000_000  # of an automaton with several tokens per element: 80 MB
SPECIALS = ("PAD", "BOS", "UNK", "EOS", "SEP", "CLS", "MASK")


@register
@dataclass(frozen=True)
class GroupWordProblem(PrefixTask):
    """y_t = x_1 x_2 ... x_t, the new element multiplied on the right.

    The name is a group (`S5`, `A5`, `Z60`, `A4_x_Z5`), whose elements are all inputs; a permutation
    group with a suffix, `_only_swaps` (the identity and the transpositions) or `_up_to_3` (elements
    that move at most 3 points); or `group:FILE`, a JSON file with a multiplication table or
    generators. `generators` restricts the inputs to some elements. Tokens are the elements by
    number, then seven special tokens. Input and target begin with BOS; length counts the tokens
    after it.

    With `tokens_per_element` = n > 1 each element begins a block of n tokens and is followed by
    n - 1 fillers: a special token or the element again. The target of a block is on its last token,
    and the identity before the first block's end. Between the last tokens of two blocks the target
    is repeated or, with the filler `special_both`, is the special token.
    """

    family = "word problem"
    examples = (
        "S5", "S5_only_swaps", "S5_up_to_3", "A5", "Z60", "A4_x_Z5",
    )  # fmt: skip
    about = "the running product of group elements"
    metric = "sequence"

    supervision: Literal["last", "dense"] = option("dense", "targets at the answer or everywhere")
    generators: tuple[int, ...] = option((), "elements that are inputs; by default the name says")
    tokens_per_element: int = option(1, "tokens that each element takes", low=1, high=1_000)
    filler: Literal["special", "repeat", "special_both"] = option(
        "special", "what fills an element's tokens: special_both also fills the targets"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.inputs  # fail now, not at the first batch

    @classmethod
    def matches(cls, name: str) -> bool:
        return re.match(r"[A-Z][0-9]|group:", name) is not None

    @cached_property
    def _group_and_suffix(self) -> tuple[Group, str]:
        if self.name.startswith("group:"):
            return read_group(Path(self.name.removeprefix("group:"))), ""
        match = re.fullmatch(r"(.*?)(|_only_swaps|_up_to_[0-9]{1,3})", self.name)
        if match is None:
            raise unknown("task", self.name, self.examples)
        return group(match[1]), match[2]

    @property
    def group(self) -> Group:
        """The group that the name stands for."""
        return self._group_and_suffix[0]

    @property
    def content(self) -> int | None:
        return hash(self.group.table.tobytes()) if self.name.startswith("group:") else None

    @cached_property
    def inputs(self) -> Ints:
        """The elements that occur in the input, by number."""
        group, suffix = self._group_and_suffix
        if self.generators:
            return self._given_inputs(group)
        if not suffix:
            return np.arange(group.order)
        points = 2 if suffix == "_only_swaps" else int(suffix.rsplit("_", 1)[1])
        inputs = np.flatnonzero(group.moved_points() <= points)
        if len(inputs) < 2:
            raise UserError(f"{self.name}: only the identity moves at most {points} points")
        return inputs

    def _given_inputs(self, group: Group) -> Ints:
        inputs = np.unique(self.generators)
        if inputs[0] < 0 or inputs[-1] >= group.order:
            raise UserError(f"generators of {self.name} must lie in 0..{group.order - 1}")
        reached = int(group.subgroup(self.generators).sum())
        if reached < group.order:
            raise UserError(
                f"{self.generators} do not generate {self.name}: they reach {reached} of "
                f"{group.order} elements"
            )
        return inputs

    @property
    def _special(self) -> bool:
        return self.tokens_per_element > 1 and self.filler != "repeat"

    @cached_property
    def vocab(self) -> tuple[str, ...]:
        elements = tuple(map(str, range(self.group.order)))
        return elements + (("FILL",) if self._special else ()) + SPECIALS

    @property
    def pad(self) -> int:
        return len(self.vocab) - len(SPECIALS)

    @property
    def bos(self) -> int:
        """The token before the first element."""
        return self.pad + 1

    @property
    def chance(self) -> float:
        return 1 / self.group.order

    def scored(self, targets: Ints) -> NDArray[np.bool_]:
        return super().scored(targets) & (targets != self.bos)  # the same in every sequence

    def automaton(self) -> DFA | None:
        """The symbols are the inputs, the outputs the elements; the identity accepts.

        With several tokens per element a filler in place of an element, or the reverse, leads to a
        sink; it is None beyond 10,000,000 transitions, and with filler `special_both` beyond 10,000
        states.
        """
        if self.tokens_per_element > 1:
            if self.filler == "special_both":
                return self._automaton_with_filled_targets()
            n = self.tokens_per_element
            return block_automaton(self.group, self.inputs, n, special=self._special)
        elements = tuple(map(str, range(self.group.order)))
        symbols = tuple(str(i) for i in self.inputs)
        delta = self.group.table[:, self.inputs].astype(np.int64)
        return DFA(symbols, delta, 0, np.arange(len(delta)) == 0, elements).minimal()

    def _automaton_with_filled_targets(self) -> DFA | None:
        """A state is (target, product so far, position in the block)."""
        n, fill = self.tokens_per_element, self.group.order
        table, inputs = self.group.table, self.inputs.tolist()

        def step(state: tuple[int, ...], symbol: int) -> tuple[int, ...]:
            if not state:
                return ()
            target, product, position = state
            first = position % n == 0
            if first != (symbol < len(inputs)):
                return ()
            if first:
                product = int(table[product, inputs[symbol]])
                target, position = fill if position else target, 0
            position += 1
            return product if position == n else target, product, position

        def answer(state: tuple[int, ...]) -> str | None:
            return self.vocab[state[0]] if state else None

        start: tuple[int, ...] = (0, 0, 0)
        return moore_machine([*map(str, inputs), "FILL"], start, step, answer, "0")

    def input_size(self, length: int) -> int:
        return 1 + length

    def sample_tokens(self, rng: np.random.Generator, lengths: Ints, size: int) -> Ints:
        n = self.tokens_per_element
        blocks = -(-(size - 1) // n)
        elements = rng.choice(self.inputs, (len(lengths), blocks))
        tokens = np.repeat(elements, n, axis=1)
        if self._special:
            tokens[:, np.arange(tokens.shape[1]) % n > 0] = self.group.order
        return np.concatenate([np.full((len(lengths), 1), self.bos), tokens[:, : size - 1]], axis=1)

    def dense_targets(self, tokens: Ints) -> Ints:
        n = self.tokens_per_element
        body = tokens[:, 1:]
        if n > 1 and self.filler == "repeat":  # only the first token of a block acts
            body = np.where(np.arange(body.shape[1]) % n == 0, body, 0)
        body = np.where(body < self.group.order, body, 0)  # others have no effect
        products = self._running_products(body)
        if n > 1 and self.filler == "special_both":
            products[:, np.arange(body.shape[1]) % n > 0] = self.group.order
        targets = np.zeros_like(tokens)
        targets[:, :1] = self.bos
        targets[:, n:] = products[:, : max(0, tokens.shape[1] - n)]  # n - 1 positions late
        return targets

    def _running_products(self, elements: Ints) -> Ints:
        """Multiply each prefix of elements [B, T]."""
        order, table = self.group.order, self.group.table.ravel()
        columns = np.ascontiguousarray(elements.T)  # [T, B]: contiguous reads
        products = np.empty_like(columns)
        state = np.zeros(len(elements), dtype=np.int64)
        for t, column in enumerate(columns):
            state = products[t] = table.take(state * order + column)
        return products.T


def block_automaton(group: Group, inputs: Ints, n: int, *, special: bool = True) -> DFA | None:
    """The automaton of a word problem with n > 1 tokens per element.

    A state is the product at a block's end, or the product before the block, the element and the
    position in the block. All of them differ, so the DFA is minimal.

    Args:
        group: the group.
        inputs: the elements that are inputs.
        n: the tokens per element.
        special: whether the fillers are a special token; else the element again.

    Returns:
        The DFA, or None if it has more than MAX_BLOCK_TRANSITIONS.
    """
    order, size = group.order, group.order * len(inputs)  # size: states at one position in a block
    states, symbols = order + (n - 1) * size + special, len(inputs) + special
    if states * symbols > MAX_BLOCK_TRANSITIONS:
        return None
    inside = np.arange(order, order + (n - 1) * size)
    following = np.concatenate([inside[size:], group.table[:, inputs].ravel()])  # one token on
    delta = np.full((states, symbols), states - 1)  # the sink, if there is one
    delta[:order, : len(inputs)] = inside[:size].reshape(order, -1)
    delta[inside, -1 if special else 0] = following
    if not special:
        delta[inside] = delta[inside, :1]  # whatever the token is
    before = np.repeat(np.arange(order), len(inputs))
    targets = np.concatenate([np.arange(order), np.tile(before, n - 1)])
    outputs = (*map(str, targets), *[None] * special)
    names = (*map(str, inputs), *["FILL"] * special)
    accepting = np.array([text == "0" for text in outputs])
    return DFA(names, delta, 0, accepting, outputs).breadth_first()
