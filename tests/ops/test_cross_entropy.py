"""The cross-entropy: its definition, and the native kernels against it in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from statetrack.errors import UserError
from statetrack.kernels import library
from statetrack.ops import cross_entropy
from statetrack.testing.inputs import Tensors, draw
from tests.ops.common import assert_close
from tests.ops.pointwise import (
    assert_compiles,
    assert_native_is_right,
    assert_threads_do_not_matter,
    needs_native,
    run_all,
)

pytestmark = pytest.mark.native


def logits_and_targets(M: int, V: int, ignored: int = -100) -> tuple[Tensors, torch.Tensor]:
    normal = draw(0)
    targets = (normal(M).abs() * 1e6).long() % V
    targets[1::3] = ignored
    return {"logits": 5 * normal(M, V)}, targets


@needs_native
@given(st.integers(1, 40), st.integers(1, 70), st.sampled_from([-100, 0, 2]))
def test_native_agrees_with_naive(rows, classes, ignored):
    inputs, targets = logits_and_targets(rows, classes, ignored)
    if (targets != ignored).any():
        assert_native_is_right(cross_entropy, inputs, targets=targets, ignore_index=ignored)


@needs_native
@pytest.mark.parametrize("shape", [(3000, 5), (3000, 64), (3, 33000)], ids=str)
def test_many_blocks(shape):
    inputs, targets = logits_and_targets(*shape)
    assert_native_is_right(cross_entropy, inputs, 3e-6, targets=targets)
    assert_threads_do_not_matter(cross_entropy, inputs, targets=targets)


def test_the_definition():
    inputs, targets = logits_and_targets(6, 4)
    log_p = inputs["logits"].log_softmax(-1)
    expected = -torch.stack([log_p[i, t] for i, t in enumerate(targets) if t != -100]).mean()
    assert_close(cross_entropy(inputs["logits"], targets), expected, 1e-14)


@needs_native
def test_ends_of_the_range():
    inf, nan = torch.inf, torch.nan
    rows = [
        ([0.0, 0.0], 0, math.log(2)),
        ([1e30, -1e30], 0, 0.0),
        ([1e4, -1e4], 1, 2e4),
        ([-inf, 3.0], 1, 0.0),
        ([-inf, 3.0], 0, inf),
        ([20.0, 0.0], 0, math.log1p(math.exp(-20))),
        ([1000.0, 1001.0], 0, 1 + math.log1p(math.exp(-1))),
    ]
    for level in library.LEVELS:
        with library.forced(level):
            for logits, target, expected in rows:
                loss = cross_entropy(
                    torch.tensor([logits]), torch.tensor([target]), backend="native"
                )
                assert loss.item() == pytest.approx(expected, rel=1e-6, abs=3e-8)
            lost = cross_entropy(torch.tensor([[nan, 1.0]]), torch.tensor([1]), backend="native")
            assert lost.isnan()


@pytest.mark.parametrize("backend", ["naive", pytest.param("native", marks=needs_native)])
def test_a_mean_over_nothing(backend):
    logits = torch.zeros(3, 2, requires_grad=True)
    assert cross_entropy(logits, torch.full((3,), -100), backend=backend).isnan()


@needs_native
def test_compiles_in_both_directions():
    inputs, targets = logits_and_targets(9, 5)
    assert_compiles(cross_entropy, inputs, targets=targets)


@pytest.mark.parametrize("backend", ["naive", pytest.param("native", marks=needs_native)])
def test_half_precision_logits(backend):
    inputs, targets = logits_and_targets(50, 20)
    inputs = {name: x.bfloat16() for name, x in inputs.items()}
    oracle = run_all(cross_entropy, inputs, torch.float64, targets=targets, backend="naive")
    got = run_all(cross_entropy, inputs, torch.bfloat16, targets=targets, backend=backend)
    assert got["output 0"].dtype == torch.float32
    assert_close(got["output 0"], oracle["output 0"], 1e-6)
    assert_close(got["dlogits"], oracle["dlogits"], 0.01)


@pytest.mark.parametrize("backend", ["auto", "naive", pytest.param("native", marks=needs_native)])
@pytest.mark.parametrize("target", [-1, 4, -101])
def test_targets_that_are_no_class(backend, target):
    with pytest.raises(UserError, match=f"targets must be from 0 to 3 .* got {target}"):
        cross_entropy(torch.zeros(2, 4), torch.tensor([0, target]), backend=backend)


@pytest.mark.parametrize(
    ("logits", "targets", "message"),
    [
        (torch.zeros(2, 3, 4), torch.zeros(2, 3).long(), "logits must"),
        (torch.zeros(0, 4), torch.zeros(0).long(), "logits must"),
        (torch.zeros(2, 4).long(), torch.zeros(2).long(), "logits must"),
        (torch.zeros(2, 4), torch.zeros(3).long(), "targets must"),
        (torch.zeros(2, 4), torch.zeros(2), "targets must"),
    ],
)
def test_mistakes(logits, targets, message):
    with pytest.raises(UserError, match=message):
        cross_entropy(logits, targets)
