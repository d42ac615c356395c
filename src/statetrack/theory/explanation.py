"""What a regular language takes: its algebra, who is excluded by which theorem, what suffices."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from statetrack.automata import DFA, Group, Properties, TransitionMonoid, describe
from statetrack.errors import UserError
from statetrack.theory.cascade import Cascade
from statetrack.theory.compiler import compile
from statetrack.theory.counting import Counter, Exclusion, exclusions_by, find_counters
from statetrack.theory.decomposition import decompose
from statetrack.theory.languages import Language, find_dfa, find_language
from statetrack.theory.network import CompiledRNN
from statetrack.theory.targets import HouseholderLayer

SHOWN = 24  # states of a drawing
MAX_TRANSITIONS = 1_000_000  # some ten seconds' work


@dataclass(frozen=True, eq=False)
class Explanation:
    """Of one language."""

    language: Language
    dfa: DFA  # minimal
    properties: Properties | None
    why_unknown: str  # if the monoid is too large for its properties
    counters: tuple[Counter, ...]
    exclusions: tuple[Exclusion, ...]
    cascade: Cascade
    net: CompiledRNN

    @property
    def factors(self) -> list[int]:
        """The generalised Householder factors of each layer that suffice."""
        layers = [layer for layer in self.net.stack if isinstance(layer, HouseholderLayer)]
        return [layer.keys.shape[1] for layer in layers]

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
            "sufficient": {
                "layers": len(self.net.layers),
                "target": self.net.stack[0].target,
                "sizes": [layer.size for layer in self.net.stack],
                "householder_factors": self.factors,
                "most_layers": max(1, self.dfa.states - 1),
            },
            "cascade": self.cascade.stats(),
        }

    def __str__(self) -> str:
        return "\n".join([*self._algebra(), "", *self._bounds(), "", *self._drawings()])

    def _algebra(self) -> list[str]:
        dfa, p = self.dfa, self.properties
        lines = [
            f"{self.language.text} ({self.language.kind})",
            f"minimal DFA: {dfa.states} states, {len(dfa.alphabet)} symbols",
        ]
        if p is None:
            return [*lines, f"monoid: not known: {self.why_unknown}"]
        orders = [order for order in p.subgroup_orders if order > 1]
        groups = "groups of orders " + ", ".join(map(str, orders)) if orders else "no groups"
        lines.append(f"transition monoid: {p.monoid_size:,} elements, {groups}")
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
        layers = len(self.net.layers)
        what = f"{layers} layer{'s' * (layers > 1)}"
        if self.factors:
            count = max(self.factors)
            what += f" with {count} generalised Householder factor{'s' * (count > 1)} per token"
            what += ", eigenvalues in [-1, 1] (Theorems 3 and 4)"
        else:
            what += " with gates of 0 and 1, eigenvalues in [0, 1]"
        sizes = ", ".join(str(layer.size) for layer in self.net.stack)
        lines.append(f"sufficient: {what}; states of size {sizes}")
        return lines

    def _drawings(self) -> list[str]:
        return [*draw(self.dfa), "", str(self.cascade)]

    def plot(self, path: Path) -> None:
        """A figure of the automaton and its cascade."""
        from statetrack.theory.automaton_figure import plot

        plot(self, path)


def explain(given: str | DFA | Group) -> Explanation:
    """What is known of a language, given as for `compile`."""
    language = find_language(given)
    text, value = language.text, language.value
    dfa = find_dfa(value).minimal()
    if dfa.delta.size > MAX_TRANSITIONS:
        raise UserError(
            f"{text}: {dfa.states:,} states and {len(dfa.alphabet):,} symbols make "
            f"{dfa.delta.size:,} transitions; at most {MAX_TRANSITIONS:,} are explained: choose a "
            "smaller group, or fewer symbols"
        )
    some = dfa  # of its symbols: those that generate a group make the same monoid, in less time
    if isinstance(value, Group):
        letters = [dfa.alphabet.index(str(element)) for element in value.generators()]
        names = tuple(dfa.alphabet[letter] for letter in letters)
        some = replace(dfa, alphabet=names, delta=dfa.delta[:, letters])
    properties, why = None, ""
    counters: tuple[Counter, ...] = ()
    try:
        properties = describe(some)
        counters = find_counters(dfa, TransitionMonoid(some))
    except UserError as problem:
        why = str(problem)
    exclusions = tuple(exclusions_by(counters))
    return Explanation(
        language, dfa, properties, why, counters, exclusions, decompose(dfa), compile(value)
    )


def draw(dfa: DFA) -> list[str]:
    """The automaton as lines of text: > marks the start, * what is accepted."""
    lines = ["automaton (> start, * accepting):"]
    for state, row in enumerate(dfa.delta[:SHOWN].tolist()):
        marks = (">" if state == dfa.start else " ") + ("*" if dfa.accepting[state] else " ")
        targets: dict[int, list[str]] = {}
        for symbol, target in zip(dfa.alphabet, row, strict=True):
            targets.setdefault(target, []).append(symbol)
        arrows = [f"{short(symbols)} -> {target}" for target, symbols in targets.items()]
        more = f"   and {len(arrows) - SHOWN} more" if len(arrows) > SHOWN else ""
        lines.append(f"  {marks} {state}   " + "   ".join(arrows[:SHOWN]) + more)
    if dfa.states > SHOWN:
        lines.append(f"     and {dfa.states - SHOWN} more states")
    return lines


def short(symbols: list[str], most: int = 6) -> str:
    """Some symbols, not too many of them."""
    return ",".join(symbols[:most]) + (",..." if len(symbols) > most else "")
