"""`gated_linear_attention` beside fla's defining loop for GLA: values and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fla.ops.gla.naive import naive_recurrent_gla
from torch import Tensor

from statetrack.ops import gated_linear_attention
from tests.ops.common import assert_all_close, run
from tests.ops.inputs import linear_attention_inputs


def theirs(q: Tensor, k: Tensor, v: Tensor, g: Tensor, **options: Any) -> Any:
    return naive_recurrent_gla(q, k, v, g, **options)


@pytest.mark.parametrize("backend", ["naive", "torch", "native"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 4, 4), (2, 63, 3, 8, 16), (1, 100, 2, 16, 5)], ids=str)
def test_the_op(shape: tuple[int, ...], backend: str) -> None:
    inputs = linear_attention_inputs(*shape, gate="g", per_channel=True)
    expected = run(theirs, inputs, torch.float32)
    actual = run(gated_linear_attention, inputs, torch.float32, backend=backend)
    assert_all_close(actual, expected, 1e-5)
