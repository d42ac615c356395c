"""Which registered architectures cannot recognise a language, whatever their weights.

A layer's `transitions` guarantee something about the eigenvalues of products of A(x), for any
weights. Reading a word w again and again gives the first layer a periodic input; the guarantee for
products of |w| transitions bounds the period that its output can end up with, which is the period
of the next layer's input, and so on (Theorems 1 and 2, Proposition 1.3; docs/diagnostics.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch

from statetrack.automata.counters import Counter
from statetrack.layers import MIXERS, Guarantee, MixerConfig, Transition
from statetrack.layers.base import VARIANT_SIZE

THEOREMS = {
    Guarantee.NON_NEGATIVE: ("Theorem 1", "all eigenvalues are real and non-negative"),
    Guarantee.FADING: (
        "Proposition 1.3",
        "all eigenvalues are 1 or of modulus below 1 (up to ties in rounding)",
    ),
    Guarantee.REAL: ("Theorem 2", "all eigenvalues are real"),
}


@dataclass(frozen=True)
class Exclusion:
    """Architectures that cannot recognise the language at arbitrary length, by one argument."""

    architectures: tuple[str, ...]
    theorem: str
    why: str
    layers: int | None  # too few: any number of layers up to this one; None: any number at all

    def __str__(self) -> str:
        depth = "Any number of layers"
        if self.layers is not None:
            depth = "1 layer" if self.layers == 1 else f"Up to {self.layers} layers"
        return f"{depth} of {'; '.join(self.architectures)} ({self.theorem}): {self.why}"


def find_exclusions(counters: tuple[Counter, ...]) -> tuple[Exclusion, ...]:
    """List the registered architectures that cannot count as a language does.

    Args:
        counters: words that the language counts modulo some m.
    """
    groups: dict[tuple[Guarantee, Counter, int | None], list[str]] = {}
    if counters:
        for title, transition in _architectures():
            arguments = [(*_too_few_layers(transition, c), c) for c in counters]
            found = [x for x in arguments if x[0] != 0]
            if found:
                # the strongest argument, by the shortest word
                layers, guarantee, counter = min(
                    found, key=lambda x: (x[0] is not None, -(x[0] or 0), len(x[2].word), x[2].m)
                )
                groups.setdefault((guarantee, counter, layers), []).append(title)
    order = list(THEOREMS)
    exclusions = []
    for (guarantee, counter, layers), titles in sorted(
        groups.items(), key=lambda item: (item[0][2] is not None, order.index(item[0][0]))
    ):
        theorem, about = THEOREMS[guarantee]
        why = f"powers of {counter} are counted modulo {counter.m}, and {about}"
        exclusions.append(Exclusion(tuple(titles), theorem, why, layers))
    return tuple(exclusions)


def _too_few_layers(transition: Transition, counter: Counter) -> tuple[int | None, Guarantee]:
    """How many layers cannot count, None for any number, 0 if one may; and by which guarantee.

    As `diagnose` does for the layers of a model: the output of a layer ends up with a period that
    divides `period`, in words.
    """
    period, weakest = 1, Guarantee.NON_NEGATIVE
    for layers in range(counter.m.bit_length() + 1):
        guarantee = transition.guarantee(len(counter.word) * period)
        if guarantee is Guarantee.NONE:
            return layers, weakest
        if list(THEOREMS).index(guarantee) > list(THEOREMS).index(weakest):
            weakest = guarantee
        period *= 2 if guarantee is Guarantee.REAL else 1
        if period % counter.m == 0:
            return layers, weakest
    return None, weakest


def _architectures() -> Iterator[tuple[str, Transition]]:
    for kind in MIXERS.values():
        yield from _transitions(kind).items()  # type: ignore[arg-type]


@cache
def _transitions(kind: type[MixerConfig]) -> dict[str, Transition]:
    """The transitions of a registered layer, by the titles of its architectures."""
    found = {}
    for title, config in kind.architectures().items():
        with torch.random.fork_rng(devices=[]):
            layer = config.build(VARIANT_SIZE)
        transition = layer.transitions(torch.zeros(1, 1, VARIANT_SIZE))
        if transition is not None:
            found[title] = transition
    return found
