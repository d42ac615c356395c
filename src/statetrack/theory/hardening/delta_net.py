"""Hardening DeltaNet, DeltaProduct and their gated forms: every rounding that is tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

from torch import Tensor

from statetrack.layers.delta_net import DeltaNetConfig
from statetrack.models import SequenceModel
from statetrack.theory.hardening.heads import (
    layer_of,
    listen,
    read_heads,
    without_memory,
    write_model,
)
from statetrack.theory.hardening.reflections import (
    RESTS,
    CannotHardenError,
    Head,
    Rule,
    inexact,
    snap,
)
from statetrack.theory.hardening.report import Candidate, Part
from statetrack.theory.hardening.representation import snap_products
from statetrack.theory.hardening.tokens import Seen


def refusal(config: DeltaNetConfig) -> str | None:
    """Why such a layer cannot be hardened, if it cannot."""
    if not config.allow_neg_eigval:
        return "its eigenvalues lie in [0, 1], so that no token reflects"
    if config.conv_size:
        return "its keys depend on the convolution's window, not on the token alone"
    if config.num_v_heads not in (None, config.num_heads):
        return "its heads share keys"
    return None


def candidates(model: SequenceModel, seen: Seen, orders: Sequence[int]) -> Iterator[Candidate]:
    """Every way of rounding that is tried."""
    heads = read_heads(model, seen)
    factors = layer_of(model).config.factors
    recurring, counts = (t.repeat_interleave(factors) for t in (seen.recurring, seen.counts))
    heard = listen(model, seen)
    said = seen.average(heard.normed)  # [n, H, V]
    tries = product((0.005, 0.02, 0.1), RESTS, (True, False))
    for tau, rest, forget in tries:
        rule = Rule(tau, rest, orders)
        made, parts = [], []
        for i, head in enumerate(heads):
            try:
                _check_gate(head, seen.recurring, tau)
                exact, error = _snap(head, factors, recurring, counts, rule)
                parts.append(Part(f"head {i}", error=error))
            except CannotHardenError as why:
                exact = without_memory(head, said[:, i]) if forget else head
                parts.append(Part(f"head {i}", skipped=str(why), silenced=forget))
            made.append(exact)
        skipped = [part.skipped is not None for part in parts]
        if all(skipped) or (forget and not any(skipped)):
            continue  # nothing is exact, or there is nothing to forget
        slow, any_ = zip(*(inexact(head, recurring) for head in made), strict=True)
        write = partial(write_model, model, seen, heard, made)
        settings = {"tau": tau, "rest": rest, "forget": forget}
        yield Candidate(write(1.0), settings, tuple(parts), (sum(slow), sum(any_)), steadier=write)


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
