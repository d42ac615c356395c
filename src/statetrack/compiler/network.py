"""Compiled networks of tables: layers of linear recurrences with look-ups between them."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from statetrack.automata import DFA, Group, group
from statetrack.automata.search import reach
from statetrack.compiler.compiled import (
    FORMATS,
    NORM_SLACK,
    Checked,
    Compiled,
    as_tokens,
)
from statetrack.compiler.proof import (
    CHUNK_TOKENS,
    Bools,
    Ints,
    LevelStates,
    Mistake,
    ModelStates,
    State,
    check_levels,
    explore,
    read_in_chunks,
)
from statetrack.compiler.stages_to_network import CELLS_AT_ONCE, Layer, rows
from statetrack.compiler.text_to_dfa import GROUP_NAME, Language
from statetrack.compiler.wording import counted, listed
from statetrack.errors import UserError
from statetrack.files import write_atomic
from statetrack.kernels import library
from statetrack.layers import Transition

TABLES_FILE = "tables.safetensors"
STEPS_AT_ONCE = 65_536  # of the layers' automata
M = TypeVar("M", bound=nn.Module)


class LayerState(NamedTuple):
    """What a layer keeps for the tokens to come."""

    state: Tensor  # [B, n, V]
    number: Tensor  # [B]: of the layer's state


class Trace(NamedTuple):
    """The result of `CompiledRNN.run`."""

    states: Tensor  # [B, T]: of the DFA, after each token
    deviation: float  # of all readings, and of the last states, from their exact values
    carry: tuple[LayerState, ...]  # for a run that goes on from here


class CompiledRNN(nn.Module, Compiled):
    """A stack of layers that computes, exactly and at any length, the state of a DFA.

    The rule of a layer follows from the rule of the layer below and from that layer's state before
    the token: its output one token late (`delay` "shift"), or the half of its state that keeps it
    ("state"). Tables are buffers: `net.to(torch.bfloat16)` runs in bfloat16, where that holds all
    numbers.
    """

    first: Tensor  # [symbols]: the first layer's rules

    def __init__(
        self,
        dfa: DFA,
        first: Any,
        layers: Sequence[Layer],
        title: str,
        exact: bool = True,
        tree: Sequence[Ints] | None = None,
    ) -> None:
        super().__init__()
        self.dfa = dfa
        self.title = title
        self.exact = exact
        self.tree = tree  # of a cascade: what the states of the layers stand for
        self.layers = nn.ModuleList(layers)
        self.register_buffer("first", torch.as_tensor(first))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or cast the tables; raise if the dtype cannot represent every number read."""
        dtype = fn(self.stack[0].H0[:0]).dtype
        if self.exact and self.largest_reading > _largest_integer(dtype):
            raise UserError(
                f"{dtype} holds integers up to {_largest_integer(dtype):,}, and this network reads "
                f"numbers up to {self.largest_reading:,.0f}: it is exact in torch.float32"
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

    @property
    def device(self) -> torch.device:
        return self.first.device

    def forward(self, tokens: Tensor, backend: str = "auto") -> Tensor:
        """[B, T] symbols, by number -> [B, T] the states of the DFA after each."""
        return self._run(tokens, None, backend, measure=False).states

    def run(
        self, tokens: Tensor, carry: tuple[LayerState, ...] | None = None, backend: str = "auto"
    ) -> Trace:
        """Read tokens [B, T], and measure how far numbers are from their exact values."""
        return self._run(tokens, carry, backend, measure=True)

    @torch.no_grad()
    def transitions(self, tokens: Tensor) -> list[Transition]:
        """[B, T] symbols -> A(rule_t) of every layer, as `diagnose` asks for them."""
        tokens = as_tokens(tokens, len(self.first))
        rules, found = rows(self.first, tokens), []
        for layer, before in zip(self.stack, self.begin(len(tokens)), strict=True):
            found.append(layer.transition(rules))
            read = layer.identify(layer.run(rules, before.state)[0])
            rules = next_rules(layer, rules, read, before.number, layer is self.layers[-1])
        return found

    def begin(self, batch: int) -> tuple[LayerState, ...]:
        """Return the state before the first token."""
        return tuple(
            LayerState(layer.H0.expand(batch, -1, -1), layer.moves.new_full((batch,), layer.start))
            for layer in self.stack
        )

    @torch.no_grad()
    def _run(
        self, tokens: Tensor, carry: tuple[LayerState, ...] | None, backend: str, measure: bool
    ) -> Trace:
        tokens = as_tokens(tokens, len(self.first))
        carry = self.begin(len(tokens)) if carry is None else carry
        if not isinstance(carry, tuple) or not all(isinstance(s, LayerState) for s in carry):
            raise UserError("carry must be what an earlier run returned")
        cells = max(layer.cells for layer in self.stack)
        length = max(1, CELLS_AT_ONCE // (cells * len(tokens)))
        states, deviation = [], 0.0
        for part in tokens.split(length, dim=1):
            rules, left = rows(self.first, part), []
            for layer, before in zip(self.stack, carry, strict=True):
                readings, state = layer.run(rules, before.state, backend)
                read = layer.identify(readings)
                if measure:
                    deviation = max(deviation, _deviation(layer, readings, read, state))
                left.append(LayerState(state, read[:, -1]))
                rules = next_rules(layer, rules, read, before.number, layer is self.layers[-1])
            carry = tuple(left)
            states.append(rules)
        return Trace(torch.cat(states, 1), deviation, carry)

    def summary(self) -> str:
        factors = max(layer.factors for layer in self.stack)
        what = f"{counted(len(self.layers), 'layer')} with "
        if factors:
            what += f"{counted(factors, 'generalised Householder factor')} per token, eigenvalues "
            what += "in [-1, 1] (Theorems 3 and 4)"
        elif self.stack[0].target == "diagonal":
            what += "gates of 0 and 1, eigenvalues in [0, 1]"
        else:
            what += "dense matrices"
        sizes = listed([str(layer.size) for layer in self.stack], "layers")
        return f"{what}; states of size {', '.join(sizes)}"

    def _layers(self) -> list[str]:
        return [f"Layer {i}: {layer}." for i, layer in enumerate(self.stack, 1)]

    def _certified(self) -> list[str]:
        facts = "Certificate: integer tables, norms at most 1, writes only to cleared rows."
        return [facts] if self.certificate()["exact"] else []

    def _unproved(self) -> str:
        facts = self.certificate()
        if not facts["exact"]:
            how_far = "theorems.horizon measures up to which length it is right"
            return f"Computes {self.name} with rounding: {how_far}"
        formats = " and ".join(facts["formats"])
        return f"Computes {self.name} exactly at any length in {formats}, by its certificate"

    def certificate(self) -> dict[str, Any]:
        """Compute the facts from which it follows that nothing is rounded, however long the word.

        All entries are integers, no norm exceeds 1, that of single Householder factors included,
        and B writes only to rows that A clears. A product of the transitions then has norm at most
        1 as well, its entries are integers, and writes do not add up: in any order of
        multiplication, step by step or chunk by chunk, all numbers that occur are small integers.
        The ops add up some dozens of products of them with readings, in float32.
        """
        tables = [table for layer in self.stack for table in (*layer.tables().values(), layer.H0)]
        integers = all(bool((table == table.round()).all()) for table in tables)
        maps = [layer.matrices() for layer in self.stack]
        norm = max(*(_norm(A) for A, _ in maps), *(layer.factor_norm() for layer in self.stack))
        fresh = not any(bool(A[B.any(-1)].any()) for A, B in maps)  # rows that B writes to
        return {
            "integer_entries": integers,
            "largest_norm": norm,
            "largest_reading": self.largest_reading,
            "fresh_writes": fresh,
            "exact": integers and fresh and norm <= 1 + NORM_SLACK,
            "formats": self._formats(),
        }

    def _formats(self) -> list[str]:
        """The number types that hold all readings."""
        most = self.largest_reading
        return [name for name, dtype in FORMATS.items() if most <= _largest_integer(dtype)]

    def _check(self, max_states: int) -> Checked:
        """Check every step of every layer, then that the layers together compute the DFA.

        Each state of each layer goes through the layer's op by each rule, on every backend. So the
        layers are automata. That these compute the DFA is proved level by level, or by visiting all
        states that they can reach together, which finds a word if something is wrong.
        """
        if not self.exact:
            raise UserError(
                f"{self.title} rounds, so there is nothing to prove for words of any length; "
                "theorems.horizon measures up to which length it is right"
            )
        net = _twin(self).cpu()  # the tables, as arrays
        certificate = net.certificate()
        right = [np.ones(layer.moves.shape, dtype=np.bool_) for layer in net.stack]
        for name in certificate["formats"]:
            for i, layer in enumerate(_twin(self).to(FORMATS[name]).stack):
                if not torch.equal(layer.H0, layer.codewords[layer.start]):
                    mistake = Mistake((), f"layer {i + 1} does not start in its start state")
                    return Checked(certificate, certificate["formats"], "the start", mistake)
                for backend in _backends(layer):
                    right[i] &= layer.exact_steps(backend)
        evidence, wrong = net.check_levels(right), None
        if not evidence:
            evidence, wrong = net.check_states(right, max_states)
        if certificate["exact"] and wrong is None:
            # the coarsest number type: if it holds all numbers, all do
            wrong = net.check_chunks(_twin(self).to(FORMATS[certificate["formats"][-1]]))
        return Checked(certificate, certificate["formats"], evidence, wrong)

    def check_levels(self, right: list[Bools]) -> str:
        """The evidence of a proof level by level; "" without a tree or if it fails."""
        if self.tree is None:
            return ""
        levels = []
        for layer, steps in zip(self.stack, right, strict=True):
            moves, out = layer.moves.numpy(), layer.out.numpy()
            pairs = steps.reshape(*out.shape, -1)  # whatever old state a layer keeps
            moves = layer.current(moves[:, :: pairs.shape[2]])
            levels.append((moves, out, np.asarray(pairs.all(axis=2))))
        start = [int(layer.current(np.array(layer.start))) for layer in self.stack]
        found = check_levels(self.dfa, self.first.numpy(), start, levels, self.tree)
        return "" if found is None else f"all {counted(found, 'step')} of its layers"

    def check_states(self, right: list[Bools], max_states: int) -> tuple[str, Mistake | None]:
        def read(symbols: Tensor, before: State) -> tuple[Tensor, State]:
            old = before[0].numbers.numpy()
            new, rules = self._advance(old, symbols[:, 0].numpy())
            exact = [r[c, n] for r, c, n in zip(right, rules, old.T, strict=False)]
            states = np.where(np.all(exact, axis=0), rules[-1], -1)
            return torch.from_numpy(states)[:, None], (LevelStates(torch.from_numpy(new)),)

        start = np.array([[layer.start for layer in self.stack]])
        begin = (LevelStates(torch.from_numpy(start)),)
        found = explore(read, begin, self.dfa, max_states, STEPS_AT_ONCE)
        if isinstance(found, ModelStates):
            states = len(found.dfa_states)
            steps = counted(states * len(self.dfa.alphabet), "step")
            return f"all {steps} from {counted(states, 'state')}", None
        numbers, reason = start, found.reason
        *above, last = self.dfa.encode(found.word)[:, None]
        for symbol in above:
            numbers, _ = self._advance(numbers, symbol)
        _, rules = self._advance(numbers, last)
        for i, (exact, (rule,), n) in enumerate(zip(right, rules, numbers[0], strict=False)):
            if not exact[rule, n]:
                to = int(self.stack[i].moves[rule, n])
                reason = f"layer {i + 1} by rule {rule} does not take {n} to {to} exactly"
                break
        return "its states", Mistake(found.word, reason)

    def _advance(self, numbers: Ints, symbols: Ints) -> tuple[Ints, list[Ints]]:
        """Read one symbol each, by the tables of the layers' automata alone.

        numbers: [N, layers] of states; symbols: [N]. Returns the new numbers, and the rules [N] of
        every layer followed by the states of the DFA.
        """
        rules = [self.first.numpy()[symbols]]
        new = np.empty_like(numbers)
        for i, layer in enumerate(self.stack):
            old = numbers[:, i]
            new[:, i] = layer.moves.numpy()[rules[-1], old]
            passed = new[:, i] if i == len(self.stack) - 1 else layer.current(old)
            rules.append(layer.out.numpy()[rules[-1], passed])
        return new, rules

    def check_chunks(self, reader: CompiledRNN) -> Mistake | None:
        """Read a random word, longer than a chunk of the ops, from every state of the DFA.

        With many states and large tables, from as many as are read in one go. `reader` is this
        network in another number type or on another device.
        """
        found = reach(self.dfa.start, lambda state: self.dfa.delta[state].tolist())
        numbers = np.empty((len(found.states), len(self.stack)), dtype=np.int64)
        numbers[0] = [layer.start for layer in self.stack]
        for i, (parent, symbol) in enumerate(found.parents[1:], 1):
            numbers[i] = self._advance(numbers[parent : parent + 1], np.array([symbol]))[0]
        states = tuple(
            LayerState(layer.codewords[column], column)
            for layer, column in zip(
                reader.stack, torch.from_numpy(numbers.T.copy()).to(reader.device), strict=True
            )
        )
        parents = np.array([p * len(self.dfa.alphabet) + a for p, a in found.parents])
        every = ModelStates(states, np.array(found.states), parents, None)

        def read(symbols: Tensor, before: State) -> tuple[Tensor, State]:
            trace = reader.run(symbols.to(reader.device), before, "torch")
            if trace.deviation:
                trace.states[:, -1] = -1
            return trace.states, trace.carry

        cells = max(layer.cells for layer in self.stack) * CHUNK_TOKENS
        stride = -(-len(found.states) * cells // CELLS_AT_ONCE)
        return read_in_chunks(read, every, self.dfa, stride, CHUNK_TOKENS * len(found.states))

    def _write(self, folder: Path, language: Language) -> None:
        if isinstance(language.value, Group):
            named = re.fullmatch(GROUP_NAME, language.text) is not None
            if not named or not np.array_equal(group(language.text).table, language.value.table):
                raise UserError(f"group {language.text} has no known name: save a DFA instead")
        tables = {name: table.cpu().contiguous() for name, table in self.state_dict().items()}
        write_atomic(folder / TABLES_FILE, safetensors.torch.save(tables))


def next_rules(layer: Layer, rules: Tensor, read: Tensor, before: Tensor, last: bool) -> Tensor:
    """[B, T]: the next layer's rules, or the states of the DFA if this layer is the last.

    read: [B, T], the states that were read; before: [B], the one before the first token.
    """
    width = layer.out.shape[1]
    if layer.undo is not None:
        read = rows(layer.undo.view(-1), rules * width + read)
    elif not last:
        read = torch.cat([before[:, None], read[:, :-1]], 1)
    return rows(layer.out.view(-1), rules * width + read)


def _deviation(layer: Layer, readings: Tensor, read: Tensor, state: Tensor) -> float:
    """How far readings are from those of codewords, and last states from codewords."""
    wrong = (readings - layer.expected[read]).abs().max()
    left = (state[:, None] - layer.codewords).abs().amax((2, 3)).amin(1).max()
    found = torch.maximum(wrong.float(), left.float())
    return float("inf") if found.isnan() else float(found)  # overflow


def _largest_integer(dtype: torch.dtype) -> int:
    """Up to which all integers are exact."""
    return round(2 / torch.finfo(dtype).eps)


def _backends(layer: Layer) -> list[str]:
    """All that there are for the layer's op; dense layers have their scan only."""
    if layer.target == "dense":
        return ["torch"]
    if not layer.H0.is_cpu:
        return ["naive", "torch", "auto"]  # the last one is what runs on this device
    return ["naive", "torch"] + ["native"] * library.serves(*layer.buffers())


def _twin(module: M) -> M:
    """A copy that shares all tables with the module, until the copy is moved or cast."""
    return copy.deepcopy(module, {id(table): table for table in module.buffers()})


def _norm(A: Tensor) -> float:
    """The largest 2-norm of matrices [..., n, n].

    It is at most the root of row times column sums, which is 1 for permutations and needs no
    singular values.
    """
    sizes = A.abs().float()
    bound = float((sizes.sum(-1).amax(-1) * sizes.sum(-2).amax(-1)).max()) ** 0.5
    return bound if bound <= 1 else float(torch.linalg.matrix_norm(A.cpu().double(), 2).max())
