"""Sequences packed into one row are the same as one call per sequence."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from statetrack.ops import delta_rule, selective_scan
from statetrack.testing.inputs import Tensors, draw
from tests.ops.common import assert_all_close, run
from tests.ops.inputs import delta_rule_inputs, selective_scan_inputs

BOUNDS = [
    pytest.param([0, 9], id="one"),
    pytest.param([0, 1, 2, 3], id="single-tokens"),
    pytest.param([0, 1, 8, 40, 73, 75], id="mixed"),
    pytest.param([0, 40, 41], id="long-short"),
]
BACKENDS = ["naive", "torch"]
SHARED = ("A", "D")  # what belongs to no token and no sequence


def compare(op, inputs: Tensors, bounds: list[int], **options) -> None:
    """Run packed, and with each sequence by itself."""

    def separately(*, output_final_state: bool, **tensors):
        results = []
        for n, (start, end) in enumerate(pairwise(bounds)):
            one = {name: x if name in SHARED else x[:, start:end] for name, x in tensors.items()}
            if "initial_state" in tensors:
                one["initial_state"] = tensors["initial_state"][n : n + 1]
            results.append(op(**one, output_final_state=output_final_state, **options))
        outputs, states = zip(*results, strict=True)
        return torch.cat(outputs, 1), torch.cat(states, 0)

    packed = run(op, inputs, torch.float64, cu_seqlens=torch.tensor(bounds), **options)
    assert_all_close(packed, run(separately, inputs, torch.float64), 1e-11)


@pytest.mark.parametrize("start", [True, False], ids=["state", "no-state"])
@pytest.mark.parametrize("gate", [None, "g", "decay"], ids=["no-gate", "g", "decay"])
@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_delta_rule(backend, bounds, gate, start):
    inputs = delta_rule_inputs(1, bounds[-1], 2, 4, 3, gate=gate)
    inputs["initial_state"] = draw(1)(len(bounds) - 1, 2, 4, 3)
    if not start:
        del inputs["initial_state"]
    compare(delta_rule, inputs, bounds, backend=backend)


@pytest.mark.parametrize("start", [True, False], ids=["state", "no-state"])
@pytest.mark.parametrize("switch", [False, True], ids=["[0,1]", "[-1,1]"])
@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_selective_scan(backend, bounds, switch, start):
    inputs = selective_scan_inputs(1, bounds[-1], 3, 2)
    inputs["initial_state"] = draw(1)(len(bounds) - 1, 3, 2)
    if not start:
        del inputs["initial_state"]
    compare(selective_scan, inputs, bounds, allow_neg_eigval=switch, backend=backend)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_any_integer_type_of_cu_seqlens(dtype):
    inputs = delta_rule_inputs(1, 9, 1, 2, 2)
    del inputs["initial_state"]
    o, _ = delta_rule(**inputs, cu_seqlens=torch.tensor([0, 4, 9], dtype=dtype))
    later = {name: x[:, 4:] for name, x in inputs.items()}
    assert torch.allclose(o[:, 4:], delta_rule(**later)[0])
