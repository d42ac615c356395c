"""Checks of `transitions`: the matrices A(x) of a linear RNN and the range of their eigenvalues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from statetrack.testing.case import Case
from statetrack.testing.check import Measured, float32_check
from statetrack.testing.inputs import draw

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}  # absolute error, by the exact dtype


def transitions(layer: Any, x: Tensor) -> Any:
    """Return A(x) of a layer; raise if it has none."""
    found = layer.transitions(x)
    if found is None:
        raise AssertionError("transitions(x) is None: no linear RNN")
    return found


def extreme(case: Case) -> Any:
    """Return the layer with weights so large that gates saturate."""
    layer, normal = case.build(), draw(23)
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(normal(*p.shape).to(p.dtype).to(p.device)).mul_(10)
    return layer


@float32_check
@torch.no_grad()
def eigenvalues(case: Case) -> Iterator[Measured]:
    """`eigvals()` are the eigenvalues of `dense()`, and their real parts lie within `bounds`."""
    case = case.at()  # the decorator's case is float32; this one has the exact dtype
    tolerance = TOLERANCE[case.exact]
    found = transitions(case.layer, case.x(2, 6))
    values, expected = found.eigvals(), torch.linalg.eigvals(found.dense())
    # every eigenvalue of one must be near some eigenvalue of the other
    distances = (values[..., :, None] - expected[..., None, :]).abs()
    for side, nearest in (("eigvals()", distances.amin(-1)), ("dense()", distances.amin(-2))):
        yield Measured(f"an eigenvalue of {side} alone", float(nearest.max()), tolerance)
    # that alone would miss a wrong multiplicity
    traces = found.dense().diagonal(dim1=-2, dim2=-1).sum(-1)
    yield Measured("trace", float((values.sum(-1) - traces).abs().max()), tolerance)
    for label, layer in (("", case.layer), (", with large weights", extreme(case))):
        found = transitions(layer, case.x(4, 64))
        low, high = found.bounds
        real = found.eigvals().real
        beyond = max(low - float(real.min()), float(real.max()) - high, 0.0)
        yield Measured(f"beyond [{low:g}, {high:g}]{label}", beyond, tolerance)


@float32_check
@torch.no_grad()
def negative_eigenvalues(case: Case) -> Iterator[Measured]:
    """If `bounds` begin at -1, large weights bring eigenvalues below -0.9."""
    case = case.at()  # in the exact dtype
    found = transitions(extreme(case), case.x(4, 64))
    least = float(found.eigvals().real.min())
    above = max(least + 0.9, 0.0) if found.bounds[0] == -1 else 0.0  # how far above -0.9
    yield Measured(f"least eigenvalue {least:.3f}", above, 0.0)
