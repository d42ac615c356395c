"""What a regular language takes: its algebra, who is excluded by which theorem, what suffices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from statetrack.automata import DFA, Group, Properties, TransitionMonoid, describe, is_permutation
from statetrack.compiler.cascade import Cascade
from statetrack.compiler.compiler import compile
from statetrack.compiler.counting import Counter, Exclusion, exclusions_by, find_counters
from statetrack.compiler.decomposition import decompose
from statetrack.compiler.languages import Language, find_dfa, find_language
from statetrack.compiler.network import CompiledRNN
from statetrack.compiler.targets import HouseholderLayer
from statetrack.compiler.wording import FEW, SHOWN, counted, listed, size_of
from statetrack.errors import UserError

MAX_TRANSITIONS = 1_000_000  # some ten seconds' work
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Explanation:
    """Of one language."""

    language: Language
    dfa: DFA  # minimal
    properties: Properties | None
    counters: tuple[Counter, ...]
    exclusions: tuple[Exclusion, ...]
    cascade: Cascade | None
    net: CompiledRNN | None
    gates: CompiledRNN | None  # of gates of 0 and 1 only, if the language is star-free
    left_out: dict[str, str]  # what is None above because of a limit, and that limit

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        p = self.properties
        return {
            "language": self.language.text,
            "kind": self.language.kind,
            "dfa": self.dfa.to_json(),
            "states": self.dfa.states,
            "properties": asdict(p) if p else None,
            "star_free": p.is_aperiodic if p else None,
            "counters": [asdict(counter) for counter in self.counters],
            "excluded": [asdict(exclusion) for exclusion in self.exclusions],
            "sufficient": _sizes(self.net),
            "gates_of_0_and_1": _sizes(self.gates),
            "most_layers": self.most_layers,
            "cascade": self.cascade.stats() if self.cascade else None,
            "left_out": self.left_out,
        }

    @property
    def most_layers(self) -> int:
        """As many suffice, whatever else is known (Theorems 3 and 4)."""
        return 1 if is_permutation(self.dfa) else max(1, self.dfa.states - 1)

    def __str__(self) -> str:
        parts = [self._algebra(), self._bounds(), self._left_out(), self._drawings()]
        return "\n\n".join("\n".join(lines) for lines in parts if lines)

    def _algebra(self) -> list[str]:
        dfa, p = self.dfa, self.properties
        lines = [
            f"{self.language.text} ({self.language.kind})",
            f"minimal DFA: {size_of(dfa)}",
        ]
        if p is None:
            return lines
        orders = [order for order in p.subgroup_orders if order > 1]
        groups = "groups of orders " + ", ".join(map(str, orders)) if orders else "no groups"
        lines.append(f"transition monoid: {counted(p.monoid_size, 'element')}, {groups}")
        if p.is_aperiodic:
            lines.append("star-free (aperiodic): nothing is counted modulo any number")
        else:
            kind = "cyclic" if p.is_cyclic else "solvable" if p.is_solvable else "not solvable"
            lines.append(f"not star-free; its groups are {kind}")
        if p.is_permutation:
            lines.append("permutation automaton: every symbol permutes the states")
        elif p.is_permutation_reset:
            lines.append("permutation-reset automaton: every symbol permutes the states or resets")
        return lines

    def _bounds(self) -> list[str]:
        lines = ["excluded at arbitrary length, whatever the weights:"]
        lines += [f"  {e.architectures} ({e.theorem}): {e.why}" for e in self.exclusions]
        if not self.exclusions:
            nothing = "nothing that these theorems know" if self.properties else "not known"
            lines[0] += f" {nothing}"
        lines.append(f"sufficient: {_enough(self.net) if self.net else self._at_most()}")
        if self.gates is not None and self.gates is not self.net:
            lines.append(f"sufficient as well: {_enough(self.gates)}")
        return lines

    def _at_most(self) -> str:
        layers = counted(self.most_layers, "layer")
        return f"{layers} with eigenvalues in [-1, 1] (Theorems 3 and 4)"

    def _left_out(self) -> list[str]:
        parts: dict[str, list[str]] = {}
        for what, why in self.left_out.items():
            parts.setdefault(why, []).append(what)
        return [f"left out, the {' and '.join(whats)}: {why}" for why, whats in parts.items()]

    def _drawings(self) -> list[str]:
        lines = draw(self.dfa)
        return [*lines, "", str(self.cascade)] if self.cascade else lines

    def plot(self, path: Path) -> None:
        """A figure of the automaton and its cascade."""
        from statetrack.explanation.figure import plot

        plot(self, path)


def explain(given: str | DFA | Group) -> Explanation:
    """What is known of a language, given as for `compile`.

    Of what would take too long, or too much memory, the explanation says that it is left out.
    """
    language = find_language(given)
    value = language.value
    dfa = find_dfa(value).minimal()
    some = dfa  # of its symbols: those that generate a group make the same monoid, in less time
    if isinstance(value, Group):
        letters = [dfa.alphabet.index(str(element)) for element in value.generators()]
        names = tuple(dfa.alphabet[letter] for letter in letters)
        some = replace(dfa, alphabet=names, delta=dfa.delta[:, letters])
    left_out: dict[str, str] = {}

    def within_limits(what: str, find: Callable[[], T]) -> T | None:
        try:
            _check_size(dfa)
            return find()
        except UserError as problem:
            left_out[what] = str(problem)
            return None

    monoid = within_limits("algebra", lambda: TransitionMonoid(some))
    properties = within_limits("algebra", lambda: describe(some)) if monoid is not None else None
    counters = within_limits("algebra", lambda: find_counters(dfa, monoid)) or ()
    cascade = within_limits("cascade", lambda: decompose(dfa))
    net = within_limits("network", lambda: compile(value, "householder"))  # of the fewest layers
    gates = None
    if properties is not None and properties.is_aperiodic and cascade is not None:
        gates = within_limits("network of gates", lambda: compile(dfa, "diagonal"))
        if net is not None and gates is not None and len(gates.layers) <= len(net.layers):
            net = gates
    exclusions = tuple(exclusions_by(counters))
    return Explanation(
        language, dfa, properties, counters, exclusions, cascade, net, gates, left_out
    )


def _check_size(dfa: DFA) -> None:
    if dfa.delta.size > MAX_TRANSITIONS:
        raise UserError(
            f"{dfa.states:,} states and {len(dfa.alphabet):,} symbols make {dfa.delta.size:,} "
            f"transitions; at most {MAX_TRANSITIONS:,} are explained: choose a smaller group, or "
            "fewer symbols"
        )


def _factors(net: CompiledRNN) -> list[int]:
    """The generalised Householder factors of each layer."""
    layers = [layer for layer in net.stack if isinstance(layer, HouseholderLayer)]
    return [layer.keys.shape[1] for layer in layers]


def _sizes(net: CompiledRNN | None) -> dict[str, Any] | None:
    if net is None:
        return None
    return {
        "layers": len(net.layers),
        "target": net.stack[0].target,
        "sizes": [layer.size for layer in net.stack],
        "householder_factors": _factors(net),
    }


def _enough(net: CompiledRNN) -> str:
    factors = _factors(net)
    what = f"{counted(len(net.layers), 'layer')} with "
    if factors:
        what += f"{counted(max(factors), 'generalised Householder factor')} per token, eigenvalues "
        what += "in [-1, 1] (Theorems 3 and 4)"
    else:
        what += "gates of 0 and 1, eigenvalues in [0, 1]"
    sizes = listed([str(layer.size) for layer in net.stack], "layers")
    return f"{what}; states of size {', '.join(sizes)}"


def draw(dfa: DFA) -> list[str]:
    """The automaton as lines of text: > marks the start, * what is accepted."""
    lines = ["automaton (> start, * accepting):"]
    small = dfa.states <= SHOWN and len(dfa.alphabet) <= SHOWN
    most = SHOWN if small else FEW
    for state, row in enumerate(dfa.delta[:most].tolist()):
        marks = (">" if state == dfa.start else " ") + ("*" if dfa.accepting[state] else " ")
        targets: dict[int, list[str]] = {}
        for symbol, target in zip(dfa.alphabet, row, strict=True):
            targets.setdefault(target, []).append(symbol)
        arrows = [f"{short(symbols)} -> {target}" for target, symbols in targets.items()]
        more = f"   and {len(arrows) - most} more" if len(arrows) > most else ""
        lines.append(f"  {marks} {state}   " + "   ".join(arrows[:most]) + more)
    if dfa.states > most:
        lines.append(f"     and {counted(dfa.states - most, 'more state')}: --json has them all")
    return lines


def short(symbols: list[str], most: int = 6) -> str:
    """Some symbols, not too many of them."""
    return ",".join(symbols[:most]) + (",..." if len(symbols) > most else "")
