"""What follows from eigenvalues: necessary conditions, so never that a model can do something.

A word w is read again and again. If a model's output then settles into a period that divides Q,
counted in words, it cannot accept exactly every m-th power of w, the language (w^m)*, unless m
divides Q (Grazzi et al., 2025, Theorems 1 and 2). Q has two sources, which are kept apart: the
parametrisation alone, which holds for any weights, and the transitions of the given model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from statetrack.diagnosis.period import LayerPeriod
from statetrack.layers import Guarantee, Transition


class Kind(StrEnum):
    """What a verdict is based on."""

    ARCHITECTURAL = "architectural"  # excluded whatever the weights are
    PROBED = "probed"  # excluded with these weights, up to the tolerance
    NOT_EXCLUDED = "not excluded"


@dataclass(frozen=True)
class Verdict:
    """What is known of one language, or of a family of them."""

    kind: Kind
    language: str
    text: str


@dataclass(frozen=True)
class Bound:
    """The period of the output divides `factor` words in the end; None: nothing is known."""

    factor: int | None
    why: str

    def excludes(self, m: int) -> bool:
        """Whether (w^m)* cannot be recognised."""
        return self.factor is not None and self.factor % m != 0


COUNTING_FADES = "so counting fades (up to ties in rounding)"
ARGUMENTS = {  # the weakest guarantee first
    Guarantee.REAL: "its eigenvalues are real",
    Guarantee.FADING: f"its eigenvalues are 1 or of modulus below 1, {COUNTING_FADES}",
    Guarantee.NON_NEGATIVE: "its eigenvalues are real and not negative",
}


def architectural(transitions: Sequence[Transition | None], word_length: int) -> Bound:
    """Bound the period by the guarantees of the layers, from the first to the last."""
    factor = 1
    used = set()
    for layer, transition in enumerate(transitions):
        if transition is None:
            return Bound(None, f"layer {layer} is no linear RNN")
        length = word_length * factor  # the period of this layer's input
        guarantee = transition.guarantee(length)
        if guarantee is Guarantee.NONE:
            products = "its transitions" if length == 1 else f"products of {length} transitions"
            return Bound(None, f"layer {layer}: {products} may have any eigenvalues")
        used.add(guarantee)
        factor *= 2 if guarantee is Guarantee.REAL else 1
    return Bound(factor, next(text for weakest, text in ARGUMENTS.items() if weakest in used))


def probed(periods: Sequence[LayerPeriod]) -> Bound:
    """Bound the period by what each layer does to the period of its input."""
    factor = 1
    for layer, found in enumerate(periods):
        if found.factor is None:
            return Bound(None, f"layer {layer}: {found.why}")
        factor *= found.factor
    if factor > 1:
        return Bound(factor, "its eigenvalues of modulus 1 are roots of unity of that order")
    return Bound(factor, f"no eigenvalue has modulus 1 except +1, {COUNTING_FADES}")


def language(word: Sequence[str], m: int | str) -> str:
    """Write (w^m)*: (11)* or (1^3)* for a single letter, ((ab)^3)* for a longer word."""
    if len(word) > 1:
        joined = ("" if all(len(token) == 1 for token in word) else " ").join(word)
        return f"(({joined})^{m})*"
    if m == 2 and len(word[0]) == 1:
        return f"({word[0] * 2})*"
    return f"({word[0]}^{m})*"
