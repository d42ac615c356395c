"""Round the heads of a layer whose transitions are products of Householder factors.

A factor maps the state S to S - beta k (k^T S - v^T). With beta = 2 it is the reflection in the
hyperplane k^T S = v^T. Factors with beta close to 2 become reflections that generate a finite
group and whose hyperplanes meet in a common point: otherwise their products contain translations,
and the state drifts away. The keys of all other factors become orthogonal to those of the
reflections.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import torch
from torch import Tensor

from statetrack.hardening.candidate import NOT_NEEDED, Candidate, Component
from statetrack.hardening.groups import CannotRoundError, root_system
from statetrack.hardening.heads import (
    OTHER_BETAS,
    HeadInputs,
    OtherBetas,
    inexact,
    read_heads,
    separate_others,
    write_heads,
)
from statetrack.hardening.inputs import LayerInputs
from statetrack.hardening.products import Memory, ProductRule, memories, with_inferred
from statetrack.layers.inverse import DependentError
from statetrack.models import SequenceModel

BETA_TOLERANCES = (0.005, 0.02, 0.1)  # tried: how far a beta may be from 2, and a gate from 1
EPS_FACTORS = (1e4, 1e3, 1e2, 1e1)  # tried in this order: multiples of the head norm's epsilon


@dataclass(frozen=True)
class Rule:
    """Options for rounding heads with one Householder factor per token."""

    tolerance: float  # a factor whose beta is within it of 2 becomes a reflection
    other_betas: OtherBetas
    orders: Sequence[int] = (1, 2, 3)  # keys of reflections may be j pi / m apart, for these m

    @classmethod
    def all(cls, orders: Sequence[int]) -> Iterator[Rule]:
        """Yield every rule that is tried."""
        for tolerance, other_betas in product(BETA_TOLERANCES, OTHER_BETAS):
            yield cls(tolerance, other_betas, orders)


def candidates(
    model: SequenceModel, inputs: LayerInputs, orders: Sequence[int]
) -> Iterator[Candidate]:
    """Yield every rounding of the layer that is tried."""
    trained = _Trained.of(model, inputs)
    known = set()
    rules: Iterator[Rule | ProductRule] = (
        Rule.all(orders) if trained.factors == 1 else ProductRule.all()
    )
    for rule, remove in product(rules, (True, False)):
        heads, components = [], []
        for i, head in enumerate(trained.heads):
            try:
                rounded, error = trained.round(i, rule)
                components.append(Component(f"head {i}", error=error))
            except CannotRoundError as reason:
                rounded = head.without_memory(trained.outputs[:, i]) if remove else head
                components.append(Component(f"head {i}", None, str(reason), remove))
            heads.append(rounded)
        inexact_heads = [component.reason is not None for component in components]
        if all(inexact_heads) or (remove and not any(inexact_heads)):
            continue  # nothing is exact, or there is no memory to remove
        content = tuple(t.numpy().tobytes() for h in heads for t in (h.k, h.v, h.beta))
        if content in known:
            continue  # a larger tolerance has changed nothing
        known.add(content)
        settings = {**vars(rule), "remove_memory": remove}
        settings.pop("orders", None)
        with suppress(DependentError):
            yield trained.with_heads(tuple(heads), settings, tuple(components))


@dataclass(frozen=True)
class _Trained:
    """The heads of a trained model's layer, before rounding."""

    model: SequenceModel
    inputs: LayerInputs
    heads: list[HeadInputs]
    output: Tensor  # [B, T, D]: of the layer, on the recorded sequences
    outputs: Tensor  # [n, H, V]: the mean normalised output of each head, by input

    @classmethod
    def of(cls, model: SequenceModel, inputs: LayerInputs) -> _Trained:
        mixer = inputs.mixer(model)
        x, y = inputs.run(model)
        outputs = inputs.mean_by_input(mixer.head_outputs(x))
        return cls(model, inputs, read_heads(mixer, inputs.x), y, outputs)

    @property
    def factors(self) -> int:
        return len(self.heads[0].beta) // len(self.inputs.x)

    @property
    def recurring(self) -> Tensor:
        return self.inputs.recurring.repeat_interleave(self.factors)

    @cached_property
    def memories(self) -> list[Memory | CannotRoundError]:
        """Return the memory subspace of each head with several factors."""
        return memories(self.heads, self.inputs)

    @cached_property
    def inferred(self) -> list[Memory | CannotRoundError]:
        """Return the same, with elements for tokens that a head ignores."""
        return with_inferred(self.memories, self.inputs)

    def round(self, i: int, rule: Rule | ProductRule) -> tuple[HeadInputs, float]:
        """Return an exact head and the largest change of an inner product or a matrix entry."""
        head, inputs = self.heads[i], self.inputs
        tolerance = rule.tolerance if isinstance(rule, Rule) else max(BETA_TOLERANCES)
        if head.gate is not None and (head.gate[inputs.recurring] < 1 - tolerance).any():
            raise CannotRoundError(f"its gate is below {1 - tolerance:g} for some token")
        counts = inputs.counts.repeat_interleave(self.factors)
        if isinstance(rule, Rule):
            return round_reflections(head, self.recurring, counts, rule)
        known = self.inferred if rule.infer else self.memories
        memory = known[i]
        if isinstance(memory, CannotRoundError):
            raise memory
        if rule.largest:
            sizes = [len(m.chosen(rule).elements) for m in known if isinstance(m, Memory)]
            if len(memory.chosen(rule).elements) < max(sizes):
                raise CannotRoundError("another head has a larger group")
        return memory.moved_first(rule).round(head, inputs.recurring, counts, rule)

    def with_heads(
        self,
        heads: tuple[HeadInputs, ...],
        settings: dict[str, Any],
        components: tuple[Component, ...],
    ) -> Candidate:
        """Return the model with other heads."""
        slow, not_exact = zip(*(inexact(head, self.recurring) for head in heads), strict=True)

        def write(eps_factor: float) -> SequenceModel:
            mixer = self.inputs.mixer(self.model)
            mixer = write_heads(mixer, self.inputs.x, heads, eps_factor)
            made = self.inputs.replace_mixer(self.model, mixer)
            return self.inputs.with_output(made, self.output)

        made = Candidate(write(1.0), settings, components, (sum(slow), sum(not_exact)))

        def keep_only(names: frozenset[str]) -> Candidate | None:
            left, described = list(heads), list(components)
            for i, component in enumerate(components):
                if component.error is not None and component.name not in names:
                    left[i] = heads[i].without_memory(self.outputs[:, i])
                    described[i] = Component(component.name, None, NOT_NEEDED, memory_removed=True)
            try:
                return self.with_heads(tuple(left), settings, tuple(described))
            except DependentError:
                return None

        def larger_eps() -> Iterator[Candidate]:
            # a state that rotates about 0 needs no larger epsilon: with keys below length 1 it
            # shrinks, and the norm undoes that only if its epsilon is small
            for factor in () if settings.get("writes") == "none" else EPS_FACTORS:
                with suppress(DependentError):
                    more = {**settings, "eps_factor": factor}
                    yield replace(made, model=write(factor), settings=more)

        return replace(made, keep_only=keep_only, larger_eps=larger_eps)


def round_reflections(
    head: HeadInputs, recurring: Tensor, counts: Tensor, rule: Rule
) -> tuple[HeadInputs, float]:
    """Round a head with one factor per input.

    The values are moved so that all hyperplanes k^T S = v^T meet in one point.

    Args:
        head: of n inputs.
        recurring: [n] bool; only factors of inputs that recur become reflections.
        counts: [n] how often each input was read, on average.
        rule: the options.

    Returns:
        The exact head, and the largest change of an inner product of its keys.

    Raises:
        CannotRoundError: no factor is close to a reflection, or the keys to no root system.
    """
    reflects = recurring & (head.beta > 2 - rule.tolerance)
    if not reflects.any():
        raise CannotRoundError(f"no token has a beta within {rule.tolerance:g} of 2")
    k, v, beta = head.k.clone(), head.v.clone(), head.beta.clone()
    k[reflects], error = root_system(head.k[reflects], rule.orders)
    beta[reflects] = 2.0
    roots = k[reflects]  # [r, K]
    v[reflects] = roots @ (torch.linalg.pinv(roots, rtol=1e-6) @ v[reflects])
    return separate_others(
        HeadInputs(k, v, beta), reflects, recurring & ~reflects, counts, rule.other_betas
    ), error
