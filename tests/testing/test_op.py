"""`check_op` on ops that are right, and on one that is wrong for each of its checks."""

from __future__ import annotations

import pytest
import torch

from statetrack.errors import UserError
from statetrack.testing import check_op
from statetrack.testing.op import OP_CHECKS

INPUTS = {"x": torch.randn(3, 4, generator=torch.Generator().manual_seed(0)), "n": torch.tensor(2)}


def power(x, n):
    return x**n, x.sum()


def wrong_value(x, n):
    return 1.001 * x**n, x.sum()


def wrong_gradient(x, n):
    return x.detach() * x, x.sum()


def reads_memory(x, n):
    """As a kernel does that takes an address for the tensor."""
    if not torch.is_grad_enabled() and not x.is_contiguous():
        x = torch.as_strided(x, x.shape, (x.shape[1], 1))
    return x**n, x.sum()


def ignores_negation(x, n):
    if not torch.is_grad_enabled() and x.is_neg():
        x = -x
    return x**n, x.sum()


def writes_its_input(x, n):
    result = x**n, x.sum()
    with torch.no_grad():
        x.data.add_(1e-6)
    return result


class Counting:
    calls = 0

    def __call__(self, x, n):
        self.calls += 1
        return x**n * (1 + 1e-6 * self.calls), x.sum()


@pytest.mark.parametrize(
    ("op", "caught"),
    [
        (power, set()),
        (wrong_value, {"values", "all_gradients", "strided", "lazy_views"}),
        (wrong_gradient, {"all_gradients", "strided", "lazy_views"}),
        (reads_memory, {"strided"}),
        (ignores_negation, {"lazy_views"}),
        (writes_its_input, {"inputs_kept", "same_bits"}),
        (Counting(), {"same_bits"}),
    ],
)
def test_what_is_wrong_is_caught(op, caught):
    report = check_op(op, INPUTS, power)
    assert {r.check for r in report.failures} == caught
    assert [r.check for r in report.results] == list(OP_CHECKS)


def test_unknown_checks():
    with pytest.raises(UserError, match="unknown check 'value'"):
        check_op(power, INPUTS, power, only=["value"])


def test_number_types_have_their_tolerance():
    report = check_op(power, INPUTS, power, dtype=torch.bfloat16, title="power")
    assert report.summary() == "power: 6 passed"
    assert report["values"].tolerance > 1e-3
