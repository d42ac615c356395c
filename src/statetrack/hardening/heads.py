"""The heads of a layer whose transitions are products of Householder factors.

A factor maps the state S to S - beta k (k^T S - v^T). With beta = 2 it is the reflection in the
hyperplane k^T S = v^T.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from statetrack.hardening.candidate import SLOW
from statetrack.layers import Mixer
from statetrack.layers.inverse import HeadTargets

# betas of factors that do not reflect: those below 0.5 become 0 ("zero"), or those below 1.5
# become 1 ("one"), or they stay ("keep"), or all become 0 ("all_zero")
OtherBetas = Literal["zero", "one", "keep", "all_zero"]
OTHER_BETAS: tuple[OtherBetas, ...] = ("zero", "one", "keep", "all_zero")


@dataclass(frozen=True)
class HeadInputs:
    """The op inputs of one head for n tokens with f Householder factors each, in float64."""

    k: Tensor  # [n f, K]
    v: Tensor  # [n f, V]
    beta: Tensor  # [n f]
    gate: Tensor | None = None  # [n]; None: 1
    output: Tensor | None = None  # [n, V]: the normalised output of a head without memory

    def maps(self, n: int) -> tuple[Tensor, Tensor]:
        """Return the maps S -> A S + B of the inputs without their gates: [n, K, K], [n, K, V]."""
        by_factor = [part.unflatten(0, (n, -1)).unbind(1) for part in (self.k, self.v, self.beta)]
        A = torch.eye(self.k.shape[1], dtype=self.k.dtype).expand(n, -1, -1)
        B = self.v.new_zeros(n, self.k.shape[1], self.v.shape[1])
        for k, v, beta in zip(*by_factor, strict=True):  # S -> S - beta k (k^T S - v^T)
            step = (beta[:, None] * k)[..., None]  # [n, K, 1]
            A = A - step * (k[:, None] @ A)
            B = B - step * (k[:, None] @ B - v[:, None])
        return A, B

    def without_memory(self, output: Tensor) -> HeadInputs:
        """Return a head in which the last factor of every input overwrites the state.

        Args:
            output: [n, V] what the head shall put out for each input, after its norm.
        """
        factors = len(self.beta) // len(output)
        k, beta = torch.zeros_like(self.k), torch.zeros_like(self.beta)
        k[:, 0] = 1.0
        beta[factors - 1 :: factors] = 1.0
        return HeadInputs(k, torch.zeros_like(self.v), beta, output=output)


@torch.no_grad()
def read_heads(mixer: Mixer, x: Tensor) -> list[HeadInputs]:
    """Return the op inputs of every head for inputs x [n, D]."""
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


def separate_others(
    head: HeadInputs, reflects: Tensor, others: Tensor, counts: Tensor, other_betas: OtherBetas
) -> HeadInputs:
    """Return the head with the keys of other factors made orthogonal to those of the reflections.

    Along such a key each token moves the state by a share beta towards the value. If 1 / beta is
    longer than the training lengths, longer sequences lead to states that never occur in training.
    So a small beta becomes 0, and the state stays 0 along the key; or it becomes 1, and the value
    is shrunk to what the state reaches in training. A key almost within the span of the
    reflections' keys is not changed; its beta becomes 0 if it is below 0.5.

    Args:
        head: of m factors, the reflections already exact.
        reflects: [m] bool, the reflections.
        others: [m] bool, the factors to change.
        counts: [m] how often each factor is read in training, on average.
        other_betas: what their betas become.
    """
    k, v, beta = head.k.clone(), head.v.clone(), head.beta.clone()
    roots = k[reflects]
    span = torch.linalg.pinv(roots, rtol=1e-6)  # [K, r]
    for i in torch.nonzero(others).flatten().tolist():
        rest = k[i] - span @ (roots @ k[i])  # the part of the key orthogonal to all roots
        small = beta[i] < 0.5 and (other_betas == "zero" or rest.norm() < 0.1)
        if small or other_betas == "all_zero":
            beta[i] = 0.0
        elif rest.norm() >= 0.1:
            k[i] = rest / rest.norm()
            if beta[i] < 1.5 and other_betas == "one":
                v[i] *= 1 - (1 - beta[i]).abs() ** counts[i]
                beta[i] = 1.0
    return HeadInputs(k, v, beta)


def inexact(head: HeadInputs, recurring: Tensor) -> tuple[int, int]:
    """Count the factors that decay slowly (SLOW < |1 - beta| < 1), and all that are not exact.

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
    others, decays = recurring & ~reflects, (modulus > 0) & (modulus < 1)
    slow = others & (shared | (decays & (modulus > SLOW)))
    writes = others & (head.beta == 1)
    cosines = (head.k @ head.k.T).abs()
    mixed = (cosines > 1e-6) & (cosines < 1 - 1e-6) & writes & writes[:, None]
    not_exact = others & (shared | decays | mixed.any(1))
    if head.gate is not None:  # of a head that was left as it is
        gate = head.gate.repeat_interleave(len(recurring) // len(head.gate))
        slow, not_exact = slow | (recurring & (gate > SLOW)), recurring
    return int(slow.sum()), int(not_exact.sum())
