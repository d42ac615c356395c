"""One way to run the ops with all gradients, and one way to compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from statetrack.ops import selective_scan
from statetrack.testing.case import error
from statetrack.testing.inputs import Tensors, draw


def run(op: Callable[..., Any], inputs: Tensors, dtype: torch.dtype, **options: Any) -> Tensors:
    """Output, final state and the gradient of every input of one call.

    The loss weighs the output and the final state with fixed numbers, so gradients arrive
    through both.
    """
    leaves = {name: x.to(dtype, copy=True).requires_grad_() for name, x in inputs.items()}
    o, state = op(**leaves, output_final_state=True, **options)
    normal = draw(123)
    weights = normal(*o.shape), normal(*state.shape)
    loss = (weights[0] * o.double()).sum() + (weights[1] * state.double()).sum()
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return {
        "output": o.detach(),
        "final_state": state.detach(),
        **{f"d{name}": g for name, g in zip(leaves, gradients, strict=True)},
    }


def assert_close(actual: Tensor, expected: Tensor, tolerance: float, what: str = "") -> None:
    """Finite and close in the relative 2-norm."""
    assert actual.isfinite().all(), f"{what} is not finite"
    distance = error(actual, expected)
    assert distance <= tolerance, f"{what} is off by {distance:.1e} (relative)"


def assert_all_close(actual: Tensors, expected: Tensors, tolerance: float) -> None:
    """Every tensor close, by name."""
    assert actual.keys() == expected.keys()
    for name in expected:
        assert_close(actual[name], expected[name], tolerance, name)


def compare_scan(
    backend: str, tolerance: float, inputs: Tensors, switch: bool, **options: Any
) -> None:
    """Compare `selective_scan` in float32 on a backend with its definition in float64."""
    options |= {"allow_neg_eigval": switch}
    oracle = run(selective_scan, inputs, torch.float64, backend="naive", **options)
    got = run(selective_scan, inputs, torch.float32, backend=backend, **options)
    assert_all_close(got, oracle, tolerance)
    assert {x.dtype for x in got.values()} == {torch.float32}
