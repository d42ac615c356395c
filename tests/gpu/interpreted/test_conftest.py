"""The scan that stands in for the interpreter's own, which takes every number alone."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import ScanOps

from tests.gpu.interpreted.conftest import OWN_SCAN, scan_slices


@triton.jit
def combine(a_left, b_left, a_right, b_right):
    return a_right * a_left, a_right * b_left + b_right


@triton.jit
def scan_kernel(a, b, products, sums, AXIS: tl.constexpr, REVERSE: tl.constexpr):
    i = tl.arange(0, 4)[:, None, None] * 16
    at = i + tl.arange(0, 2)[None, :, None] * 8 + tl.arange(0, 8)[None, None, :]
    inputs = tl.load(a + at), tl.load(b + at)
    product, total = tl.associative_scan(inputs, AXIS, combine, REVERSE)
    tl.store(products + at, product)
    tl.store(sums + at, total)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_is_the_interpreters_scan(axis, reverse, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 4, 2, 8, generator=generator)
    results = []
    for scan in (OWN_SCAN, scan_slices):
        monkeypatch.setattr(ScanOps, "generic_scan", scan)
        found = torch.full((2, *a.shape), torch.nan)
        scan_kernel[(1,)](a, b, *found, axis, reverse)
        results.append(found)
    assert torch.equal(*results)
    length = a.shape[axis]
    order = range(length - 1, -1, -1) if reverse else range(length)
    total = torch.zeros_like(a.select(axis, 0))
    for t in order:
        total = a.select(axis, t) * total + b.select(axis, t)
        assert torch.allclose(results[1][1].select(axis, t), total)
