"""Explain a regular language: which architectures cannot recognise it, and which network can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from statetrack.automata import DFA, Group, Properties, TransitionMonoid, describe, is_permutation
from statetrack.automata.counters import Counter, find_counters
from statetrack.compiler import Cascade, CompiledRNN, compile, decompose, limits
from statetrack.compiler.text_to_dfa import Language, find_dfa, find_language
from statetrack.compiler.wording import FEW, SHOWN, counted, short, size_of
from statetrack.errors import UserError
from statetrack.explanation.exclusions import Exclusion, find_exclusions
from statetrack.explanation.figure import plot

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Explanation:
    """What is known of one language; `print` gives the verdict."""

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
        """Return plain values, for JSON."""
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
        return self.report()

    def report(self, *, verbose: bool = False) -> str:
        """Say who is ruled out and what is enough.

        Args:
            verbose: add the algebra, the automaton and its cascade.
        """
        parts = [[self._verdict()], self._ruled_out(), self._enough(), self._limits()]
        if verbose:
            cascade = [str(self.cascade)] if self.cascade else []
            parts += [self._algebra(), draw(self.dfa), cascade]
        return "\n\n".join("\n".join(lines) for lines in parts if lines)

    def _verdict(self) -> str:
        name = self.language.name
        verdict = f"Not known whether {name} is star-free"
        if self.properties is not None and self.properties.is_aperiodic:
            verdict = f"Star-free (aperiodic): {name} counts nothing modulo any number"
        elif self.counters:
            moduli = ", ".join(str(counter.m) for counter in self.counters)
            verdict = f"Not star-free: {name} counts modulo {moduli}"
        return f"{verdict}.\nMinimal DFA: {size_of(self.dfa)} ({self.language.kind})."

    def _ruled_out(self) -> list[str]:
        if self.exclusions:
            title = "Ruled out at arbitrary length, whatever the weights:"
            return [title, *(f"  {exclusion}." for exclusion in self.exclusions)]
        known = self.properties is not None
        return [
            "Ruled out at arbitrary length, whatever the weights: "
            + ("no architecture, by these theorems." if known else "not known.")
        ]

    def _enough(self) -> list[str]:
        layers = counted(self.most_layers, "layer")
        bound = f"{layers} with eigenvalues in [-1, 1] (Theorems 3 and 4)"
        lines = [f"Enough: {self.net.summary() if self.net else bound}."]
        if self.gates is not None and self.gates is not self.net:
            lines.append(f"Enough as well: {self.gates.summary()}.")
        return lines

    def _limits(self) -> list[str]:
        parts: dict[str, list[str]] = {}
        for what, why in self.left_out.items():
            parts.setdefault(why, []).append(what)
        return [f"Left out, the {' and '.join(whats)}: {why}." for why, whats in parts.items()]

    def _algebra(self) -> list[str]:
        p = self.properties
        if p is None:
            return []
        orders = [order for order in p.subgroup_orders if order > 1]
        groups = "no groups"
        if orders:
            kind = "cyclic" if p.is_cyclic else "solvable" if p.is_solvable else "not solvable"
            groups = f"groups of orders {', '.join(map(str, orders))}, {kind}"
        lines = [f"Transition monoid: {counted(p.monoid_size, 'element')}, {groups}."]
        if p.is_permutation:
            lines.append("Permutation automaton: every symbol permutes the states.")
        elif p.is_permutation_reset:
            lines.append("Permutation-reset automaton: every symbol permutes the states or resets.")
        return lines

    def plot(self, path: Path) -> None:
        """Draw the automaton and its cascade."""
        plot(self.language.text, self.dfa, self.cascade, path)


def explain(given: str | DFA | Group) -> Explanation:
    """Explain which linear RNNs can recognise a regular language, and why.

        print(explain("(ab)*"))

    Args:
        given: a language as for `compile`.

    Returns:
        The explanation; it names what was left out because it would take too long or too much
        memory.
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
    exclusions = find_exclusions(counters)
    return Explanation(
        language, dfa, properties, counters, exclusions, cascade, net, gates, left_out
    )


def _check_size(dfa: DFA) -> None:
    if dfa.delta.size > limits.MAX_EXPLAINED_TRANSITIONS:
        raise UserError(
            f"{dfa.states:,} states and {len(dfa.alphabet):,} symbols make {dfa.delta.size:,} "
            f"transitions; at most {limits.MAX_EXPLAINED_TRANSITIONS:,} are explained: choose a "
            "smaller group, or fewer symbols"
        )


def _sizes(net: CompiledRNN | None) -> dict[str, Any] | None:
    if net is None:
        return None
    return {
        "layers": len(net.layers),
        "target": net.stack[0].target,
        "sizes": [layer.size for layer in net.stack],
        "householder_factors": [layer.factors for layer in net.stack if layer.factors],
    }


def draw(dfa: DFA) -> list[str]:
    """Draw the automaton as lines of text: > marks the start, * accepting states."""
    lines = ["Automaton (> start, * accepting):"]
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
