"""What follows from eigenvalues: necessary conditions, so never that a model can do something.

Read w again and again, and let a model's output settle into a period that divides Q, counted in
words. Then it cannot accept just every m-th power of w, the language (w^m)*, unless m divides Q
(Grazzi et al., 2025, Theorems 1 and 2). Two ways to a Q are kept apart: from the parametrisation
alone, which holds for any weights, and from the transitions of the model at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from statetrack.diagnosis.period import LayerPeriod
from statetrack.layers import Guarantee, Transition


class Kind(StrEnum):
    """On what a verdict rests."""

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
    """The output's period divides `factor` words in the end; None: nothing is known."""

    factor: int | None
    why: str

    def excludes(self, m: int) -> bool:
        """Whether (w^m)* cannot be recognised."""
        return self.factor is not None and self.factor % m != 0


ARGUMENTS = {
    Guarantee.NON_NEGATIVE: "its eigenvalues are real and not negative",
    Guarantee.FADING: "its eigenvalues are 1 or of modulus below 1, so counting fades "
    "(up to ties in rounding)",
    Guarantee.REAL: "its eigenvalues are real",
}
WEAKEST = (Guarantee.REAL, Guarantee.FADING, Guarantee.NON_NEGATIVE)


def architectural(transitions: Sequence[Transition | None], word_length: int) -> Bound:
    """What the parametrisation of the layers, one after the other, leaves possible."""
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
    weakest = next(g for g in WEAKEST if g in used)
    return Bound(factor, ARGUMENTS[weakest])


def probed(periods: Sequence[LayerPeriod]) -> Bound:
    """What the monodromies of the layers leave possible."""
    factor = 1
    for layer, found in enumerate(periods):
        if found.factor is None:
            return Bound(None, f"layer {layer}: {found.why}")
        factor *= found.factor
    if factor > 1:
        return Bound(factor, "its eigenvalues of modulus 1 are roots of unity of that order")
    return Bound(
        factor, "no eigenvalue has modulus 1 except +1, so counting fades (up to ties in rounding)"
    )


def language(word: Sequence[str], m: int | str) -> str:
    """(w^m)* for people: (11)* or (1^3)* of a letter, ((ab)^3)* of a longer word."""
    if len(word) > 1:
        joined = ("" if all(len(token) == 1 for token in word) else " ").join(word)
        return f"(({joined})^{m})*"
    if m == 2 and len(word[0]) == 1:
        return f"({word[0] * 2})*"
    return f"({word[0]}^{m})*"
