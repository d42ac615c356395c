"""Compiled networks: a stack of layers that does, step by step, what a DFA does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self, overload

import torch
from torch import Tensor, nn

from statetrack.automata import DFA
from statetrack.compiler.cascade import Cascade
from statetrack.compiler.induction import MAX_STATES, Proof
from statetrack.compiler.layers import Layer, rows
from statetrack.compiler.words import Words, accepts_words
from statetrack.errors import UserError, check_type
from statetrack.layers import Transition

CELLS = 1 << 22  # numbers that a layer lays out over tokens at once


class Carry(NamedTuple):
    """What a layer leaves for the tokens to come."""

    state: Tensor  # [B, n, V]
    seen: Tensor  # [B]: its number


class Run(NamedTuple):
    """What came of some tokens."""

    states: Tensor  # [B, T]: of the DFA, after each token
    deviation: float  # of what was read, and of the last states, from what it should be
    carry: tuple[Carry, ...]  # for a run that goes on from here


class CompiledRNN(nn.Module):
    """Layers of linear recurrences and look-ups between them; `dfa` is what they compute.

    A layer's context follows from the one below and from that layer's state before the token: its
    output one token late (`delay` "shift"), or what it remembers of it ("state"). Tables are
    buffers: `net.to(torch.bfloat16)` runs in bfloat16, where that holds all numbers.
    """

    first: Tensor  # [symbols]: the first layer's contexts

    def __init__(
        self,
        dfa: DFA,
        first: Any,
        layers: Sequence[Layer],
        origin: str,
        exact: bool = True,
        cascade: Cascade | None = None,
        instead: str = "",
    ) -> None:
        super().__init__()
        self.dfa = dfa
        self.origin = origin
        self.exact = exact
        self.cascade = cascade
        self.instead = instead  # what else would do, in words
        self.layers = nn.ModuleList(layers)
        self.register_buffer("first", torch.as_tensor(first))
        self.register_buffer("accepting", torch.tensor(dfa.accepting))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves and casts the tables; to a type that does not hold what is read, it refuses."""
        dtype = fn(torch.empty(0)).dtype
        most = round(2 / torch.finfo(dtype).eps)  # up to which all integers are exact
        if self.exact and self.largest_reading > most:
            raise UserError(
                f"{dtype} holds integers up to {most:,}, and this network reads numbers up to "
                f"{self.largest_reading:,.0f}: it is exact in torch.float32"
            )
        return super()._apply(fn, recurse)

    @property
    def largest_reading(self) -> float:
        """The largest number that a layer reads."""
        return max(float(layer.expected.abs().max()) for layer in self.stack)

    @property
    def stack(self) -> list[Layer]:
        """The layers, with their type."""
        return list(self.layers)  # type: ignore[arg-type]

    def forward(self, tokens: Tensor, backend: str = "auto") -> Tensor:
        """[B, T] symbols, by number -> [B, T] the states of the DFA after each."""
        return self._run(tokens, None, backend, measure=False).states

    @overload
    def accepts(self, given: Tensor, backend: str = "auto") -> Tensor: ...
    @overload
    def accepts(self, given: str, backend: str = "auto") -> bool: ...
    @overload
    def accepts(self, given: list[str] | tuple[str, ...], backend: str = "auto") -> list[bool]: ...
    def accepts(self, given: Tensor | Words, backend: str = "auto") -> Tensor | bool | list[bool]:
        """Whether words are in the language.

        Args:
            given: [B, T] symbols, by number; or a word such as "abab"; or a list of words.
            backend: of the recurrences.

        Returns:
            [B, T] whether the word up to each symbol is; or of the word; or of each word.
        """
        if isinstance(given, str | list | tuple):
            return accepts_words(self, given)
        accepting: Tensor = self.get_buffer("accepting")
        return accepting[self(given, backend)]

    def run(
        self, tokens: Tensor, carry: tuple[Carry, ...] | None = None, backend: str = "auto"
    ) -> Run:
        """The states, how far numbers were from what they should be, and what goes on from here."""
        return self._run(tokens, carry, backend, measure=True)

    @torch.no_grad()
    def transitions(self, tokens: Tensor) -> list[Transition]:
        """[B, T] symbols -> A(context_t) of every layer, as `diagnose` asks for them."""
        tokens = as_tokens(tokens, len(self.first))
        contexts, found = rows(self.first, tokens), []
        for layer, before in zip(self.stack, self.begin(len(tokens)), strict=True):
            found.append(layer.transition(contexts))
            seen = layer.seen(layer.run(contexts, before.state)[0])
            contexts = _tell(layer, contexts, seen, before.seen, layer is self.layers[-1])
        return found

    def begin(self, batch: int) -> tuple[Carry, ...]:
        """Before the first token."""
        return tuple(
            Carry(layer.H0.expand(batch, -1, -1), layer.moves.new_full((batch,), layer.start))
            for layer in self.stack
        )

    @torch.no_grad()
    def _run(
        self, tokens: Tensor, carry: tuple[Carry, ...] | None, backend: str, measure: bool
    ) -> Run:
        tokens = as_tokens(tokens, len(self.first))
        carry = self.begin(len(tokens)) if carry is None else carry
        if not isinstance(carry, tuple) or not all(isinstance(part, Carry) for part in carry):
            raise UserError("carry must be what an earlier run returned")
        cells = max(layer.cells for layer in self.stack)
        length = max(1, CELLS // (cells * len(tokens)))
        states, deviation = [], 0.0
        for part in tokens.split(length, dim=1):
            contexts, left = rows(self.first, part), []
            for layer, before in zip(self.stack, carry, strict=True):
                readings, state = layer.run(contexts, before.state, backend)
                seen = layer.seen(readings)
                if measure:
                    deviation = max(deviation, _deviation(layer, readings, seen, state))
                left.append(Carry(state, seen[:, -1]))
                contexts = _tell(layer, contexts, seen, before.seen, layer is self.layers[-1])
            carry = tuple(left)
            states.append(contexts)
        return Run(torch.cat(states, 1), deviation, carry)

    def prove(self, max_states: int = MAX_STATES) -> Proof:
        """Whether the network does what the DFA does, for words of any length; see `proofs`."""
        from statetrack.compiler.proofs import prove

        return prove(self, max_states)

    def certificate(self) -> dict[str, Any]:
        """Why no rounding can occur, however long the word; see `proofs`."""
        from statetrack.compiler.proofs import certificate

        return certificate(self)

    def report(self) -> str:
        """What the network consists of, in words."""
        from statetrack.compiler.proofs import report

        return report(self)


def as_tokens(tokens: Tensor, symbols: int) -> Tensor:
    """A batch of symbols, by number, as int64; raise a UserError for anything else."""
    check_type("tokens", tokens, Tensor, "a tensor [B, T]")
    fraction = tokens.is_floating_point() or tokens.is_complex()
    if tokens.dim() != 2 or 0 in tokens.shape or fraction:
        raise UserError(
            f"tokens must be whole numbers [B, T], at least one; got {tokens.dtype} of shape "
            f"{list(tokens.shape)}"
        )
    tokens = tokens.long()
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= symbols:
        raise UserError(f"tokens must be symbols from 0 to {symbols - 1}; got {low} to {high}")
    return tokens


def _tell(layer: Layer, contexts: Tensor, seen: Tensor, before: Tensor, last: bool) -> Tensor:
    """[B, T]: the next layer's contexts, or the states of the DFA."""
    width = layer.out.shape[1]
    if layer.undo is not None:
        seen = rows(layer.undo.view(-1), contexts * width + seen)
    elif not last:
        seen = torch.cat([before[:, None], seen[:, :-1]], 1)
    return rows(layer.out.view(-1), contexts * width + seen)


def _deviation(layer: Layer, readings: Tensor, seen: Tensor, state: Tensor) -> float:
    """How far what was read is from what is read of codewords, and the last states from these."""
    read = (readings - layer.expected[seen]).abs().max()
    left = (state[:, None] - layer.codewords).abs().amax((2, 3)).amin(1).max()
    found = torch.maximum(read.float(), left.float())
    return float("inf") if found.isnan() else float(found)  # what overflows is near nothing
