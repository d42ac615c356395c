"""Our delta rule against flash-linear-attention's functions in plain torch, beta in (0, 2)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from fla.ops.delta_rule.naive import delta_rule_chunkwise, delta_rule_recurrence
from torch import Tensor

from statetrack.ops import delta_rule
from statetrack.testing.inputs import Tensors
from tests.ops.common import assert_all_close, run
from tests.ops.inputs import delta_rule_inputs

Op = Callable[..., tuple[Tensor, Tensor | None]]

BACKENDS = ["naive", "torch", "native"]


def heads_first(op: Callable[..., Any], **options: Any) -> Op:
    """fla's functions take [B, H, T, ...]."""

    def call(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, **more: Any) -> Any:
        more.pop("output_final_state")  # always
        o, state = op(*(x.transpose(1, 2) for x in (q, k, v, beta)), **options, **more)
        return o.transpose(1, 2), state

    return call


def inputs(*shape: int) -> Tensors:
    drawn = delta_rule_inputs(*shape)
    drawn["beta"] = drawn["beta"].clamp(0.01, 1.99)
    return drawn


def ours(backend: str) -> Op:
    return partial(delta_rule, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(2, 1, 3, 5, 7), (2, 33, 2, 8, 4), (1, 100, 2, 16, 16)], ids=str)
def test_the_recurrence(shape: tuple[int, ...], backend: str) -> None:
    drawn = inputs(*shape)
    expected = run(heads_first(delta_rule_recurrence), drawn, torch.float32)
    assert_all_close(run(ours(backend), drawn, torch.float32), expected, 1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [16, 32])
def test_chunks(size: int, backend: str) -> None:
    drawn = inputs(2, 96, 2, 16, 8)
    del drawn["initial_state"]  # fla's chunks have none
    expected = run(heads_first(delta_rule_chunkwise, chunk_size=size), drawn, torch.float32)
    assert_all_close(run(ours(backend), drawn, torch.float32), expected, 1e-5)
