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
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor

from statetrack.hardening.groups import (
    CannotRoundError,
    into_reflections,
    representation,
    root_system,
)
from statetrack.hardening.inputs import LayerInputs
from statetrack.hardening.search import NOT_NEEDED, SLOW, Candidate, Component
from statetrack.layers import Mixer
from statetrack.layers.inverse import DependentError, HeadTargets
from statetrack.models import SequenceModel

BETA_TOLERANCES = (0.005, 0.02, 0.1)  # tried: how far a beta may be from 2, and a gate from 1
KEY_RANK_TOLERANCE = 0.25  # of the reflecting keys: relative singular values below are noise
EPS_FACTORS = (1e4, 1e3, 1e2, 1e1)  # tried: multiples of the head norm's epsilon, the best first

OtherBetas = Literal["zero", "one", "keep", "all_zero"]
OTHER_BETAS: tuple[OtherBetas, ...] = ("zero", "one", "keep", "all_zero")


@dataclass(frozen=True)
class HeadInputs:
    """What one head feeds its op for n inputs of f factors each, in float64."""

    k: Tensor  # [n f, K]
    v: Tensor  # [n f, V]
    beta: Tensor  # [n f]
    gate: Tensor | None = None  # [n]; None: 1
    output: Tensor | None = None  # [n, V]: the normalised output of a head without memory

    def without_memory(self, output: Tensor) -> HeadInputs:
        """Return a head in which every input overwrites the state, with its last factor."""
        factors = len(self.beta) // len(output)
        k, beta = torch.zeros_like(self.k), torch.zeros_like(self.beta)
        k[:, 0] = 1.0
        beta[factors - 1 :: factors] = 1.0
        return HeadInputs(k, torch.zeros_like(self.v), beta, output=output)


@dataclass(frozen=True)
class Rule:
    """What is rounded, and how far."""

    tolerance: float  # a factor whose beta is within it of 2 becomes a reflection
    # for factors that do not reflect: betas below 0.5 become 0 ("zero"), or those below 1.5 become
    # 1 ("one"), or they stay ("keep"), or all become 0 ("all_zero")
    other_betas: OtherBetas
    orders: Sequence[int] = (1, 2, 3)  # keys of reflections may be j pi / m apart, for these m


def candidates(
    model: SequenceModel, inputs: LayerInputs, orders: Sequence[int]
) -> Iterator[Candidate]:
    """Yield every rounding of the layer that is tried."""
    trained = _Trained.of(model, inputs)
    known = set()
    for tolerance, other_betas, remove in product(BETA_TOLERANCES, OTHER_BETAS, (True, False)):
        rule = Rule(tolerance, other_betas, orders)
        heads, components = [], []
        for i, head in enumerate(trained.heads):
            try:
                rounded, error = trained.round(head, rule)
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
        settings = {"tolerance": tolerance, "other_betas": other_betas, "remove_memory": remove}
        with suppress(DependentError):
            yield trained.with_heads(tuple(heads), settings, tuple(components))


@torch.no_grad()
def read_heads(mixer: Mixer, x: Tensor) -> list[HeadInputs]:
    """Return what every head feeds its op for inputs x [n, D]."""
    made = mixer.op_inputs(x[None])
    k, v, beta = made.k[0], made.v[0], made.beta[0]
    gates = None if made.gate is None else made.gate.values()[0]
    return [
        HeadInputs(k[:, i], v[:, i], beta[:, i], None if gates is None else gates[:, i])
        for i in range(k.shape[1])
    ]


def write_heads(
    mixer: Mixer, x: Tensor, heads: Sequence[HeadInputs], eps_factor: float = 1.0
) -> Mixer:
    """Return a layer with these heads for inputs x [n, D]; see `Mixer.with_op_inputs`."""
    k, v, beta = (torch.stack([getattr(h, name) for h in heads], 1) for name in ("k", "v", "beta"))
    unknown = torch.full((len(x), v.shape[-1]), torch.nan).double()
    outputs = torch.stack([unknown if h.output is None else h.output for h in heads], 1)
    open_gates = torch.tensor([h.gate is None for h in heads])
    return mixer.with_op_inputs(x, HeadTargets(k, v, beta, outputs, open_gates), eps_factor)


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

    def round(self, head: HeadInputs, rule: Rule) -> tuple[HeadInputs, float]:
        """Return the exact head, and by how much its Gram matrix or its products were rounded."""
        if head.gate is not None and (head.gate[self.inputs.recurring] < 1 - rule.tolerance).any():
            raise CannotRoundError("its gate lets it fade")
        counts = self.inputs.counts.repeat_interleave(self.factors)
        if self.factors == 1:
            return round_reflections(head, self.recurring, counts, rule)
        return round_products(head, self.factors, self.recurring, counts, rule)

    def with_heads(
        self,
        heads: tuple[HeadInputs, ...],
        settings: dict[str, Any],
        components: tuple[Component, ...],
    ) -> Candidate:
        """Return the model with other heads."""
        slow, fading = zip(*(inexact(head, self.recurring) for head in heads), strict=True)

        def write(eps_factor: float) -> SequenceModel:
            mixer = self.inputs.mixer(self.model)
            mixer = write_heads(mixer, self.inputs.x, heads, eps_factor)
            made = self.inputs.replace_mixer(self.model, mixer)
            return self.inputs.with_output(made, self.output)

        made = Candidate(write(1.0), settings, components, (sum(slow), sum(fading)))

        def simpler() -> Iterator[Candidate]:
            exact = [i for i, c in enumerate(components) if c.error is not None]
            for i in (
                sorted(exact, key=lambda i: -(components[i].error or 0.0)) if exact[1:] else ()
            ):
                less = heads[i].without_memory(self.outputs[:, i])
                removed = Component(f"head {i}", None, NOT_NEEDED, memory_removed=True)
                with suppress(DependentError):
                    yield self.with_heads(
                        (*heads[:i], less, *heads[i + 1 :]),
                        settings,
                        (*components[:i], removed, *components[i + 1 :]),
                    )

        def steadier() -> Iterator[Candidate]:
            for factor in EPS_FACTORS:
                with suppress(DependentError):
                    more = {**settings, "eps_factor": factor}
                    yield replace(made, model=write(factor), settings=more)

        return replace(made, simpler=simpler, steadier=steadier)


def round_reflections(
    head: HeadInputs, recurring: Tensor, counts: Tensor, rule: Rule
) -> tuple[HeadInputs, float]:
    """Round a head with one factor per input.

    Returns the exact head, and how far its Gram matrix was from that of the root system. The values
    are moved so that all hyperplanes k^T S = v^T meet in one point.
    """
    reflects = recurring & (head.beta > 2 - rule.tolerance)
    if not reflects.any():
        raise CannotRoundError("no token reflects")
    k, v, beta = head.k.clone(), head.v.clone(), head.beta.clone()
    k[reflects], error = root_system(head.k[reflects], rule.orders)
    beta[reflects] = 2.0
    roots = k[reflects]  # [r, K]
    v[reflects] = roots @ (torch.linalg.pinv(roots, rtol=1e-6) @ v[reflects])
    return separate_others(
        HeadInputs(k, v, beta), reflects, recurring & ~reflects, counts, rule
    ), error


def round_products(
    head: HeadInputs, factors: int, recurring: Tensor, counts: Tensor, rule: Rule
) -> tuple[HeadInputs, float]:
    """Round a head with several factors per input, the first applied first.

    The reflections of an input are multiplied out to a matrix; the matrices are rounded to a finite
    group and factored again. `recurring` and `counts` are by input and factor.

    Returns the exact head, and the largest change of an entry of these matrices.
    """
    reflects = recurring & (head.beta > 2 - rule.tolerance)
    if not reflects.any():
        raise CannotRoundError("no token reflects")
    _, sizes, w = torch.linalg.svd(head.k[reflects], full_matrices=False)
    basis = w[sizes > KEY_RANK_TOLERANCE * sizes[0]]  # [d, K]: the space that is reflected
    keys = head.k @ basis.T  # [n f, d]
    keys = keys / keys.norm(dim=1, keepdim=True).clamp(min=1e-6)
    # for each recurring input, the factors that reflect
    by_input = [
        [i for i in range(start, start + factors) if reflects[i]]
        for start in range(0, len(reflects), factors)
        if recurring[start]
    ]
    eye = torch.eye(len(basis)).double()
    matrices, offsets = [], []
    for reflections in by_input:
        A, b = eye, torch.zeros(len(basis), head.v.shape[1]).double()
        for i in reflections:  # S -> S - 2 k (k^T S - v^T)
            A = A - 2 * torch.outer(keys[i], keys[i] @ A)
            b = b - 2 * torch.outer(keys[i], keys[i] @ b - head.v[i])
        matrices.append(A)
        offsets.append(b)
    old = torch.stack(matrices)
    exact = representation(old)
    # the common fixed point, by least squares
    center = torch.linalg.pinv(torch.cat(list(eye - old)), rtol=1e-2) @ torch.cat(offsets)
    k, v, beta = head.k.clone(), head.v.clone(), head.beta.clone()
    for reflections, matrix in zip(by_input, exact, strict=True):
        roots = into_reflections(matrix, keys[reflections])
        beta[reflections] = 0.0
        # the matrix may need fewer reflections; the beta of the others stays 0
        for i, root in zip(reflections, roots, strict=False):
            k[i], v[i], beta[i] = root @ basis, root @ center, 2.0
    made = separate_others(HeadInputs(k, v, beta), beta == 2, recurring & ~reflects, counts, rule)
    return made, float((exact - old).abs().max())


def separate_others(
    head: HeadInputs, reflects: Tensor, others: Tensor, counts: Tensor, rule: Rule
) -> HeadInputs:
    """Return the head with the keys of `others` made orthogonal to those of the reflections.

    Along such a key each read moves the state by a share beta towards the value. If 1 / beta is
    longer than the training lengths, longer sequences bring the state where it never was in
    training. So a small beta becomes 0, and the state stays 0 along the key; or it becomes 1, and
    the value is shrunk to what the state reaches in training, after `counts` reads. A key almost
    within the span of the reflections' is not changed; its beta becomes 0 if it is below 0.5.
    """
    k, v, beta = head.k.clone(), head.v.clone(), head.beta.clone()
    roots = k[reflects]
    span = torch.linalg.pinv(roots, rtol=1e-6)  # [K, r]
    for i in torch.nonzero(others).flatten().tolist():
        rest = k[i] - span @ (roots @ k[i])  # the part of the key orthogonal to all roots
        small = beta[i] < 0.5 and (rule.other_betas == "zero" or rest.norm() < 0.1)
        if small or rule.other_betas == "all_zero":
            beta[i] = 0.0
        elif rest.norm() >= 0.1:
            k[i] = rest / rest.norm()
            if beta[i] < 1.5 and rule.other_betas == "one":
                v[i] *= 1 - (1 - beta[i]).abs() ** counts[i]
                beta[i] = 1.0
    return HeadInputs(k, v, beta)


def inexact(head: HeadInputs, recurring: Tensor) -> tuple[int, int]:
    """Count the factors that fade slowly (SLOW < |1 - beta| < 1), and all that are not exact.

    A factor is not exact if its beta is not 0, 1 or 2, or if its key is not orthogonal to those of
    the reflections, which also counts as slow. Two factors with beta 1 are not exact if their keys
    are neither equal nor orthogonal: one then overwrites a part of what the other wrote.
    """
    if head.output is not None:
        return 0, 0
    reflects = recurring & (head.beta == 2)
    modulus = (1 - head.beta).abs()
    span = torch.linalg.pinv(head.k[reflects], rtol=1e-6)
    shared = ((head.k @ span).norm(dim=1) > 1e-6) & (head.beta > 0)
    others, fades = recurring & ~reflects, (modulus > 0) & (modulus < 1)
    slow = others & (shared | (fades & (modulus > SLOW)))
    writes = others & (head.beta == 1)
    cosines = (head.k @ head.k.T).abs()
    mixed = (cosines > 1e-6) & (cosines < 1 - 1e-6) & writes & writes[:, None]
    not_exact = others & (shared | fades | mixed.any(1))
    if head.gate is not None:  # of a head that was left as it is
        gate = head.gate.repeat_interleave(len(recurring) // len(head.gate))
        slow, not_exact = slow | (recurring & (gate > SLOW)), recurring
    return int(slow.sum()), int(not_exact.sum())
