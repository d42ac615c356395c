"""Gated delta rule and products against flash-linear-attention's loops, beta in (0, 2)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from fla.ops.gated_delta_product.naive import naive_recurrent_gated_delta_product
from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
from torch import Tensor

from statetrack.ops import delta_product, delta_rule
from statetrack.testing.inputs import Tensors
from tests.ops.common import assert_all_close, run
from tests.ops.inputs import delta_product_inputs, delta_rule_inputs

BACKENDS = ["naive", "torch", "native"]
SHAPES = [(2, 1, 3, 5, 7), (2, 33, 2, 8, 4), (1, 100, 2, 16, 16)]


def check(ours: Any, reference: Any, drawn: Tensors, backend: str) -> None:
    """Values and all gradients, in float32 on both sides."""
    expected = run(reference, drawn, torch.float32)
    assert_all_close(run(partial(ours, backend=backend), drawn, torch.float32), expected, 1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gated_delta_rule(shape: tuple[int, ...], backend: str) -> None:
    drawn = delta_rule_inputs(*shape, gate="g")
    check(delta_rule, naive_recurrent_gated_delta_rule, drawn, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("gate", [None, "g"], ids=["plain", "gated"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_delta_product(n: int, gate: str | None, shape: tuple[int, ...], backend: str) -> None:
    drawn = delta_product_inputs(*shape, n, gate=gate)

    def reference(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Any = None, **more: Any) -> Any:
        scale = q.shape[-1] ** -0.5
        return naive_recurrent_gated_delta_product(
            q, k, v, g, beta, scale, num_householder=n, **more
        )

    check(partial(delta_product, num_householder=n), reference, drawn, backend)
