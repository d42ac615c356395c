"""What the comparisons with whole models of other packages share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

SINGLE = 1e-5
"""Relative, of what is computed in float32 on both sides."""

Tensors = dict[str, Tensor]


def random_weights(model: Any) -> Any:
    """Weights that make every part of a model matter."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith(("A_log", "dt_bias", "dt_proj.bias")):
                p.uniform_(-1.5, 1.0, generator=generator)
            elif p.dim() == 1:
                p.normal_(1.0, 0.3, generator=generator)
            else:
                p.normal_(0.0, 0.2, generator=generator)
    return model.eval()


def logits_and_gradients(model: nn.Module, logits: Callable[[], Tensor]) -> tuple[Tensor, Tensors]:
    """Logits, and the gradient of every parameter if they are weighed with fixed numbers."""
    model.zero_grad()
    y = logits()
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(9))
    (y * weight).sum().backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    return y.detach(), {name: g.clone() for name, g in grads.items() if g is not None}


def assert_same_gradients(actual: Tensors, expected: Tensors, tolerance: float = 1e-4) -> None:
    """Each close in the 2-norm; one that ought to be 0 is measured by all of them together.

    In float32 transformers' gated delta rule is off by up to 4e-5 in the gradients of its gates, as
    ours in float64 shows; ours in float32 by 2e-6.
    """
    assert actual.keys() == expected.keys()
    whole = sum(float(g.norm()) ** 2 for g in expected.values()) ** 0.5
    for name, right in expected.items():
        distance = float((actual[name] - right).norm())
        bound = tolerance * (float(right.norm()) + 1e-3 * whole)
        assert distance <= bound, f"{name}: {distance:.1e}"
