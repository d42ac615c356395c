"""Hardening DeltaNet, DeltaProduct and their gated forms: every rounding that is tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from torch import Tensor

from statetrack.hardening.candidate import NOT_NEEDED, Candidate, Part
from statetrack.hardening.heads import (
    Heard,
    ideal,
    layer_of,
    listen,
    read_heads,
    without_memory,
    write_model,
)
from statetrack.hardening.idle import write_idle
from statetrack.hardening.reflections import (
    RESTS,
    CannotHardenError,
    Head,
    Rule,
    inexact,
    snap,
)
from statetrack.hardening.representation import snap_products
from statetrack.hardening.tokens import DependentError, Seen
from statetrack.layers.delta_net import DeltaNetConfig
from statetrack.models import SequenceModel

STEADIER = (1e4, 1e3, 1e2, 1e1)  # the head norm's epsilon is tried so many times larger

__all__ = ["candidates", "ideal", "idle", "refusal"]


def refusal(config: DeltaNetConfig) -> str | None:
    """Why such a layer cannot be hardened, if it cannot."""
    if not config.allow_neg_eigval:
        return "its eigenvalues lie in [0, 1], so that no token reflects"
    if config.num_v_heads not in (None, config.num_heads):
        return "its heads share keys"
    return None


def candidates(model: SequenceModel, seen: Seen, orders: Sequence[int]) -> Iterator[Candidate]:
    """Every way of rounding that is tried."""
    trained = Trained.of(model, seen)
    factors = layer_of(model, seen).config.factors
    known = set()
    for tau, rest, forget in product((0.005, 0.02, 0.1), RESTS, (True, False)):
        rule = Rule(tau, rest, orders)
        made, parts = [], []
        for i, head in enumerate(trained.heads):
            try:
                _check_gate(head, seen.recurring, tau)
                exact, error = _snap(head, factors, *_by_factor(seen, factors), rule)
                parts.append(Part(f"head {i}", error=error))
            except CannotHardenError as why:
                exact = trained.without_memory(i) if forget else head
                parts.append(Part(f"head {i}", skipped=str(why), silenced=forget))
            made.append(exact)
        skipped = [part.skipped is not None for part in parts]
        if all(skipped) or (forget and not any(skipped)):
            continue  # nothing is exact, or there is nothing to forget
        content = tuple(t.numpy().tobytes() for h in made for t in (h.k, h.v, h.beta))
        if content in known:
            continue  # a larger tau has changed nothing
        known.add(content)
        settings = {"tau": tau, "rest": rest, "forget": forget}
        with suppress(DependentError):
            yield trained.with_heads(tuple(made), settings, tuple(parts))


def idle(model: SequenceModel, seen: Seen, out: Tensor) -> Candidate:
    """The model whose layer remembers nothing and says `out` [B, T, D], as nearly as it can."""
    made = write_idle(model, seen, out)
    heads = range(layer_of(model, seen).num_v_heads)
    return Candidate(made, {"memory": "none"}, tuple(map(_not_needed, heads)), (0, 0), idle=True)


@dataclass(frozen=True)
class Trained:
    """A trained model, and what is known of it."""

    model: SequenceModel
    seen: Seen
    heads: list[Head]
    heard: Heard
    said: Tensor  # [n, H, V]: what comes out of the heads' norms on average

    @classmethod
    def of(cls, model: SequenceModel, seen: Seen) -> Trained:
        """Its heads, and what they say on the sequences that were seen."""
        heard = listen(model, seen)
        return cls(model, seen, read_heads(model, seen), heard, seen.average(heard.normed))

    def without_memory(self, i: int) -> Head:
        """What head i becomes if it is to remember nothing."""
        return without_memory(self.heads[i], self.said[:, i])

    def with_heads(
        self, heads: tuple[Head, ...], settings: dict[str, Any], parts: tuple[Part, ...]
    ) -> Candidate:
        """The model with other heads."""
        recurring, _ = _by_factor(self.seen, layer_of(self.model, self.seen).config.factors)
        slow, every = zip(*(inexact(head, recurring) for head in heads), strict=True)
        write = partial(write_model, self.model, self.seen, self.heard, list(heads))
        made = Candidate(write(1.0), settings, parts, (sum(slow), sum(every)))

        def fewer() -> Iterator[Candidate]:
            exact = [i for i, part in enumerate(parts) if part.error is not None]
            for i in sorted(exact, key=lambda i: -(parts[i].error or 0.0)) if exact[1:] else ():
                with suppress(DependentError):
                    yield self.with_heads(
                        (*heads[:i], self.without_memory(i), *heads[i + 1 :]),
                        settings,
                        (*parts[:i], _not_needed(i), *parts[i + 1 :]),
                    )

        def steadier() -> Iterator[Candidate]:
            for eps in STEADIER:
                with suppress(DependentError):
                    yield replace(made, model=write(eps), settings={**settings, "eps": eps})

        return replace(made, fewer=fewer, steadier=steadier)


def _not_needed(i: int) -> Part:
    return Part(f"head {i}", skipped=NOT_NEEDED, silenced=True)


def _by_factor(seen: Seen, factors: int) -> tuple[Tensor, Tensor]:
    """Which tokens recur and how often they are read, once for each of their factors."""
    return seen.recurring.repeat_interleave(factors), seen.counts.repeat_interleave(factors)


def _check_gate(head: Head, recurring: Tensor, tau: float) -> None:
    """A gate within tau of 1 becomes 1, and what it is before is no matter."""
    if head.gate is not None and (head.gate[recurring] < 1 - tau).any():
        raise CannotHardenError("its gate lets it fade")


def _snap(
    head: Head, factors: int, recurring: Tensor, counts: Tensor, rule: Rule
) -> tuple[Head, float]:
    if factors == 1:
        return snap(head, recurring, counts, rule)
    return snap_products(head, factors, recurring, counts, rule)
