"""What the tests of the ops between matrix products share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from statetrack.kernels import library
from statetrack.testing.inputs import Tensors, draw
from tests.ops.common import assert_all_close

needs_native = pytest.mark.skipif(
    library.WHY_MISSING is not None, reason=f"no native library: {library.WHY_MISSING}"
)


@contextmanager
def poisoned() -> Iterator[None]:
    """New memory is full of NaN, so a kernel that leaves something out is found out."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.ones(1).new_empty(3).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """That many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_all(
    op: Callable[..., Any],
    inputs: Tensors,
    dtype: torch.dtype,
    view: Callable[[Tensor], Tensor] = lambda x: x,
    **options: Any,
) -> Tensors:
    """Every output and the gradient of every input, for a loss of fixed weights."""
    leaves = {name: x.to(dtype, copy=True).requires_grad_() for name, x in inputs.items()}
    outputs = _flat(op(**{name: view(x) for name, x in leaves.items()}, **options))
    normal = draw(123)
    loss = sum((normal(1, *y.shape)[0] * y.double()).sum() for y in outputs)
    assert isinstance(loss, Tensor)
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return {
        **{f"output {i}": y.detach() for i, y in enumerate(outputs)},
        **{f"d{name}": g for name, g in zip(leaves, gradients, strict=True)},
    }


def _flat(outputs: Any) -> list[Tensor]:
    if isinstance(outputs, Tensor):
        return [outputs]
    return [y for part in outputs for y in _flat(part)]


def assert_native_is_right(
    op: Callable[..., Any], inputs: Tensors, tolerance: float = 1e-6, **options: Any
) -> None:
    """At every level, on contiguous inputs and on strided ones, against naive float64."""
    oracle = run_all(op, inputs, torch.float64, backend="naive", **options)
    for level in library.LEVELS:
        with library.forced(level), poisoned():
            for view in (lambda x: x, strided):
                got = run_all(op, inputs, torch.float32, view, backend="native", **options)
                assert_all_close(got, oracle, tolerance)


def strided(x: Tensor) -> Tensor:
    """The same numbers as a slice of something wider in the last dimension."""
    wide = torch.cat([torch.full_like(x[..., :1], torch.nan), x, torch.ones_like(x)], -1)
    return wide[..., 1 : 1 + x.shape[-1]]


def assert_threads_do_not_matter(op: Callable[..., Any], inputs: Tensors, **options: Any) -> None:
    """The same bits with one thread and with two."""
    results = []
    for count in (1, 2):
        with threads(count):
            results.append(run_all(op, inputs, torch.float32, backend="native", **options))
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def assert_compiles(op: Callable[..., Any], inputs: Tensors, **options: Any) -> None:
    """Forward and backward in one graph each, with the same numbers."""
    torch.compiler.reset()
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager")
    expected = run_all(op, inputs, torch.float32, backend="native", **options)
    got = run_all(compiled, inputs, torch.float32, backend="native", **options)
    assert_all_close(got, expected, 1e-7)
