"""Triton's interpreter, made fast enough for scans of our own and for whole layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction, ScanOps

OWN_SCAN = ScanOps.generic_scan


def scan_slices(self: Any, inputs: Any) -> list[Any]:
    """A scan that combines slices of tensors; the interpreter's own takes every number alone."""
    slices = [np.moveaxis(x.handle.data, self.axis, 0) for x in inputs]
    dtypes = [x.dtype for x in inputs]
    total = [x[0] for x in slices]
    outputs = [[x] for x in total]
    for here in zip(*(x[1:] for x in slices), strict=True):
        pairs = [*zip(total, dtypes, strict=True), *zip(here, dtypes, strict=True)]
        found = self.combine_fn.fn(*(self.to_tensor(x, dtype) for x, dtype in pairs))
        total = [x.handle.data for x in (found if isinstance(found, tuple) else (found,))]
        for output, x in zip(outputs, total, strict=True):
            output.append(x)
    whole = [np.moveaxis(np.stack(output), 0, self.axis) for output in outputs]
    return [
        self.to_tensor(np.ascontiguousarray(x), dtype)
        for x, dtype in zip(whole, dtypes, strict=True)
    ]


def call_device_function(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function inside of a kernel; the interpreter's own prepares Triton at every call."""
    if tl.core.is_builtin(tl.load) or tl.core.is_builtin(tl.core.load):
        interpreter._patch_lang(self.fn)
    return self.rewrite()(*args, **kwargs)


@pytest.fixture(autouse=True)
def fast_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScanOps, "generic_scan", scan_slices)
    monkeypatch.setattr(InterpretedFunction, "__call__", call_device_function)
