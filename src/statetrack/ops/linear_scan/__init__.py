"""The linear recurrence h_t = a_t h_{t-1} + b_t, elementwise."""

from __future__ import annotations

from torch import Tensor

from statetrack.kernels.transforms import transformed
from statetrack.ops.backends import choose
from statetrack.ops.linear_scan.blocked import LinearScan
from statetrack.ops.linear_scan.naive import linear_scan_naive


def linear_scan(a: Tensor, b: Tensor, h0: Tensor, *, backend: str = "auto") -> Tensor:
    """All h_t = a_t h_{t-1} + b_t for a, b [B, T, ...] from h_0 [B, ...], of one number type.

    Under `torch.func` transforms and forward mode both backends are the defining loop.
    """
    if choose("linear_scan", backend, ("naive", "torch"), a, b, h0) == "naive" or transformed():
        return linear_scan_naive(a, b, h0)
    h: Tensor = LinearScan.apply(a, b, h0)
    return h
