"""Half-precision inputs and autocast: only inputs and outputs lose precision, never the state."""

from __future__ import annotations

import pytest
import torch

from statetrack.ops import delta_rule, selective_scan
from statetrack.testing.inputs import Tensors
from tests.ops.common import assert_all_close, assert_close, run
from tests.ops.inputs import delta_rule_inputs, selective_scan_inputs

CASES = [
    pytest.param(delta_rule, delta_rule_inputs(2, 100, 2, 5, 3), {}, id="delta_rule"),
    pytest.param(delta_rule, delta_rule_inputs(2, 100, 2, 5, 3, gate="g"), {}, id="delta_rule-g"),
    pytest.param(
        delta_rule, delta_rule_inputs(2, 100, 2, 5, 3, gate="decay"), {}, id="delta_rule-decay"
    ),
    pytest.param(selective_scan, selective_scan_inputs(2, 100, 3, 4), {}, id="scan-[0,1]"),
    pytest.param(
        selective_scan,
        selective_scan_inputs(2, 100, 3, 4),
        {"allow_neg_eigval": True},
        id="scan-[-1,1]",
    ),
]
BACKENDS = ["naive", "torch"]


def rounded(inputs: Tensors, dtype: torch.dtype) -> Tensors:
    """The values that `dtype` can hold, in float64."""
    return {name: x.to(dtype).double() for name, x in inputs.items()}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("op", "inputs", "options"), CASES)
def test_half_precision_inputs(op, inputs, options, dtype, backend):
    inputs = rounded(inputs, dtype)
    oracle = run(op, inputs, torch.float64, backend="naive", **options)
    got = run(op, inputs, dtype, backend=backend, **options)
    state, expected_state = got.pop("final_state"), oracle.pop("final_state")
    assert state.dtype == torch.float32
    assert_close(state, expected_state, 1e-5, "final_state")
    # all else has been rounded once, on its way out
    assert {x.dtype for x in got.values()} == {dtype}
    assert_all_close(got, oracle, 2 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("op", "inputs", "options"), CASES)
def test_one_double_input_makes_all_arithmetic_double(op, inputs, options, backend):
    oracle, _ = op(**inputs, backend="naive", **options)
    mixed = {name: x if name == "initial_state" else x.float() for name, x in inputs.items()}
    y, state = op(**mixed, output_final_state=True, backend=backend, **options)
    assert y.dtype == torch.float32
    assert state.dtype == torch.float64
    assert_close(y, oracle, 1e-7)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("op", "inputs", "options"), CASES)
def test_autocast_does_not_lower_the_precision_of_the_recurrence(op, inputs, options, backend):
    def under_autocast(**arguments):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return op(**arguments)

    oracle = run(op, inputs, torch.float64, backend="naive", **options)
    got = run(under_autocast, inputs, torch.float32, backend=backend, **options)
    assert got["output"].dtype == got["final_state"].dtype == torch.float32
    assert_all_close(got, oracle, 1e-5)
