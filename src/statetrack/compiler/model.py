"""Languages as ordinary models: Gated DeltaProduct layers and SwiGLU MLPs, with known weights."""

from __future__ import annotations

from typing import Any, overload

import torch
from torch import Tensor

from statetrack.automata import DFA
from statetrack.compiler.hub import Column, columns
from statetrack.compiler.induction import MAX_STATES, Ints, Proof
from statetrack.compiler.network import as_tokens
from statetrack.compiler.stages import Stage
from statetrack.compiler.weights import (
    ONE,
    Slots,
    automaton_config,
    indicator,
    lookup_size,
    points_of,
    shift_config,
    write_automaton,
    write_lookup,
    write_shift,
)
from statetrack.compiler.wording import abridge, counted, size_of
from statetrack.compiler.words import Words, accepts_words
from statetrack.errors import UserError
from statetrack.layers import MixerConfig
from statetrack.layers.gated_delta_product import GatedDeltaProduct
from statetrack.models import ModelConfig, SequenceModel, count_parameters

MAX_WEIGHTS = 100_000_000
SCORE = 32.0  # of the right answer, so that a softmax leaves nothing to the others
LENGTH = 4096  # tokens at once


class CompiledModel:
    """A SequenceModel that computes, exactly and at any length, the state of a DFA.

    Its tokens are those of the task `Automaton` with predict = "state": PAD, the symbols, the
    states; where a symbol is read the logits are greatest at the state after it.
    """

    def __init__(self, dfa: DFA, model: SequenceModel, origin: str) -> None:
        self.dfa = dfa
        self.model = model
        self.origin = origin

    @property
    def vocab(self) -> tuple[str, ...]:
        """The names of the model's tokens."""
        return ("PAD", *self.dfa.alphabet, *(f"q{i}" for i in range(self.dfa.states)))

    def __call__(self, tokens: Tensor) -> Tensor:
        """[B, T] symbols, by number -> [B, T] the states of the DFA after each."""
        tokens = as_tokens(tokens, len(self.dfa.alphabet))
        states, carry = [], None
        with torch.no_grad():
            for part in tokens.split(LENGTH, dim=1):
                logits, carry = self.model(part + 1, carry)
                states.append(self.told(logits))
        return torch.cat(states, 1)

    def told(self, logits: Tensor) -> Tensor:
        """The states that logits tell; negative if they tell none."""
        return logits.argmax(-1) - 1 - len(self.dfa.alphabet)

    @overload
    def accepts(self, given: Tensor) -> Tensor: ...
    @overload
    def accepts(self, given: str) -> bool: ...
    @overload
    def accepts(self, given: list[str] | tuple[str, ...]) -> list[bool]: ...
    def accepts(self, given: Tensor | Words) -> Tensor | bool | list[bool]:
        """Whether words are in the language; as `CompiledRNN.accepts`."""
        if isinstance(given, str | list | tuple):
            return accepts_words(self, given)
        return torch.tensor(self.dfa.accepting)[self(given)]

    def report(self) -> str:
        """What the model consists of, in words."""
        config = self.model.config
        lines = [
            f"{self.origin}: {size_of(self.dfa)}",
            f"a model of {counted(config.num_layers, 'block')} of width {config.hidden_size}, "
            f"{counted(self.model.num_parameters(), 'weight')}",
        ]
        blocks = []
        for i, layer in enumerate(mixers(self.model), 1):
            heads = counted(layer.config.num_heads, "head")
            what = f"{heads}, state [{layer.key_size}, {layer.value_size}]"
            if layer.conv:
                what += ", tells the state before a token"
            else:
                what += f", {counted(layer.config.num_householder, 'Householder factor')}"
            blocks.append(f"block {i}: {what}")
        return "\n".join([*lines, *abridge(blocks, "block")])

    def prove(self, max_states: int = MAX_STATES) -> Proof:
        """Whether the model does what the DFA does, for words of any length; see `model_proofs`."""
        from statetrack.compiler.model_proofs import prove

        return prove(self, max_states)

    def certificate(self, max_states: int = MAX_STATES) -> dict[str, Any]:
        """Why no rounding can occur, however long the chunks; see `model_proofs`."""
        from statetrack.compiler.model_proofs import certificate

        return certificate(self, max_states)


def build_model(dfa: DFA, first: Ints, stages: list[Stage], origin: str) -> CompiledModel:
    """The model of stages of permutations and resets.

    An automaton is a block; between two of them a block shifts the state by one token, for a
    context follows from the one before and that automaton's old state: its MLP looks it up.
    """
    tables = [columns(stage) for stage in stages]
    slots, at = [], ONE + 1
    for i, (stage, table) in enumerate(zip(stages, tables, strict=True)):
        contexts, state = at, at + len(stage.points)
        old = state + points_of(table)
        at = old + (points_of(table) if i < len(stages) - 1 else 0)
        slots.append(Slots(contexts, state, old))
    answers = at  # one-hot, if the last context has a say
    last = stages[-1]
    by_context = bool((last.out != last.out[0]).any())
    hidden = at + (dfa.states if by_context else 0)

    mixers: list[MixerConfig] = []
    units = 1
    for i, (stage, table) in enumerate(zip(stages, tables, strict=True)):
        mixers.append(automaton_config(table, hidden))
        if i < len(stages) - 1:
            mixers.append(shift_config(points_of(table), hidden))
        if i < len(stages) - 1 or by_context:
            units = max(units, lookup_size(stage.out))
    symbols = len(dfa.alphabet)
    config = ModelConfig(
        vocab_size=1 + symbols + dfa.states,
        hidden_size=hidden,
        num_layers=len(mixers),
        mixer=tuple(mixers),
        norm="none",
        mlp="swiglu",
        mlp_size=units,
        final_norm=False,
    )
    _check_size(config)
    model = SequenceModel(config)
    with torch.no_grad():
        _write_ends(model, first, slots[0], symbols)
        for i, (stage, table) in enumerate(zip(stages, tables, strict=True)):
            block: Any = model.blocks[2 * i]
            write_automaton(block.mixer, table, slots[i])
            if i < len(stages) - 1:
                shift: Any = model.blocks[2 * i + 1]
                write_shift(shift.mixer, points_of(table), slots[i])
                where = slots[i].contexts, slots[i].old, slots[i + 1].contexts
                write_lookup(shift.mlp, stage.out, table[0].place, *where)
        head: Any = model.head
        scores = head.weight[1 + symbols :]
        if by_context:
            where = slots[-1].contexts, slots[-1].state, answers
            write_lookup(block.mlp, last.out, tables[-1][0].place, *where)
            scores[:, answers:] = SCORE * torch.eye(dfa.states)
        else:
            _write_scores(scores, last.out[0], tables[-1], slots[-1].state)
    return CompiledModel(dfa, model.eval(), origin)


def _write_ends(model: SequenceModel, first: Ints, slots: Slots, symbols: int) -> None:
    """Embedding, MLPs and head: zeros, but that symbols are contexts of the first automaton."""
    model.embedding.weight.zero_()
    model.embedding.weight[:, ONE] = 1
    for symbol in range(symbols):
        model.embedding.weight[1 + symbol, slots.contexts + int(first[symbol])] = 1
    for name, parameter in model.named_parameters():
        if ".mlp." in name or name.startswith("head."):
            parameter.zero_()


def _write_scores(scores: Tensor, told: Ints, table: list[Column], state: int) -> None:
    """For each state of the DFA the number of columns that are as they should be."""
    for column in table:
        points = len(column.points)
        places: dict[int, set[int]] = {}
        for answer, place in zip(told.tolist(), column.place.tolist(), strict=True):
            places.setdefault(answer, set()).add(place)
        for answer, found in places.items():
            reached = sorted(found - {-1})
            scores[answer] += SCORE * indicator(reached, points, state, scores.shape[1])
        state += points - 1


def _check_size(config: ModelConfig) -> None:
    weights = count_parameters(config)
    if weights > MAX_WEIGHTS:
        raise UserError(
            f"as gated_deltaproduct this language takes a model of {weights:,} weights; at most "
            f"{MAX_WEIGHTS:,} are supported: target householder takes fewer"
        )


def mixers(model: SequenceModel) -> list[GatedDeltaProduct]:
    """The layers, with their type."""
    return [block.mixer for block in model.blocks]  # type: ignore[misc]
