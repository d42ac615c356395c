"""The native scan and its single step under torch.compile, as one graph."""

from __future__ import annotations

import pytest
import torch

from statetrack.ops import selective_scan, selective_scan_step
from tests.ops.inputs import selective_scan_inputs
from tests.ops.pointwise import assert_compiles, needs_native

pytestmark = [pytest.mark.native, needs_native]


@pytest.mark.parametrize("switch", [False, True], ids=["[0,1]", "[-1,1]"])
def test_both_directions(switch):
    options = {"allow_neg_eigval": switch, "output_final_state": True}
    assert_compiles(selective_scan, selective_scan_inputs(2, 70, 9, 4), **options)


def test_the_step_and_its_change_of_the_state():
    x = selective_scan_inputs(2, 1, 9, 5)
    token = {name: x[name].float()[:, 0] for name in ("u", "delta", "B", "C", "z")}
    A, state = x["A"].float(), x["initial_state"].float()
    other = state.clone()
    compiled = torch.compile(selective_scan_step, fullgraph=True, backend="aot_eager")
    y = compiled(state, A=A, **token)
    assert torch.equal(y, selective_scan_step(other, A=A, **token))
    assert torch.equal(state, other)
