"""The linear recurrence: its parallel form against the loop, values and every gradient."""

from __future__ import annotations

import pytest
import torch

from statetrack.errors import UserError
from statetrack.ops.linear_scan import linear_scan
from statetrack.testing.inputs import draw, spread, with_exact
from tests.ops.common import assert_close


@pytest.mark.parametrize("length", [1, 2, 3, 15, 16, 17, 100])
@pytest.mark.parametrize("rest", [(), (3,), (2, 3)], ids=str)
def test_the_parallel_form_is_the_loop(length, rest):
    normal = draw(length)
    a = with_exact(spread(normal(2, length, *rest), -1.0, 1.0), 0.0, -1.0, 1.0)
    values = a, normal(2, length, *rest), normal(2, *rest)
    weights = normal(2, length, *rest)
    results = []
    for backend in ("naive", "torch"):
        leaves = [x.clone().requires_grad_() for x in values]
        h = linear_scan(*leaves, backend=backend)
        results.append([h, *torch.autograd.grad((weights * h).sum(), leaves)])
    for actual, expected in zip(*reversed(results), strict=True):
        assert_close(actual, expected, 1e-12)


def test_a_backend_that_it_does_not_have():
    x = torch.zeros(1, 2)
    with pytest.raises(UserError, match="linear_scan has no backend 'native'; it has: auto, naive"):
        linear_scan(x, x, torch.zeros(1), backend="native")
