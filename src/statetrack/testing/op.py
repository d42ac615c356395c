"""Check a differentiable function of tensors against a float64 reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from statetrack.config import unknown
from statetrack.testing.case import TOLERANCES, error, gradients, tensors
from statetrack.testing.check import Check, Measured, op_check
from statetrack.testing.inputs import draw
from statetrack.testing.report import Report


class OpCase:
    """An op with its inputs, and the outputs and gradients of the reference in float64."""

    def __init__(
        self,
        op: Callable[..., Any],
        inputs: Mapping[str, Tensor],
        reference: Callable[..., Any],
        dtype: torch.dtype,
        tolerance: float,
    ) -> None:
        self.op, self.tolerance = op, tolerance
        self.leaves = _leaves(inputs, dtype)
        exact = _leaves(self.leaves, torch.float64)  # the numbers that the op gets, rounded
        self.outputs = tensors(reference(**exact))
        self.gradients = self.slopes(self.outputs, exact)

    def slopes(self, outputs: list[Tensor], inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The gradients of a weighted sum of all outputs, by the name of the input."""
        normal = draw(5)
        terms = [(normal(*o.shape) * o.double()).sum() for o in outputs if o.requires_grad]
        names = [name for name, x in inputs.items() if x.requires_grad]
        found = gradients(torch.stack(terms).sum(), [inputs[name] for name in names])
        return dict(zip(names, found, strict=True))

    def compare(self, inputs: Mapping[str, Tensor]) -> Iterator[Measured]:
        """Compare the op on `inputs`, views of the leaves, with the reference.

        Gradients are compared where they are enabled.
        """
        outputs = tensors(self.op(**inputs))
        for n, (actual, expected) in enumerate(zip(outputs, self.outputs, strict=True)):
            yield Measured(f"output {n}", error(actual, expected), self.tolerance)
        if torch.is_grad_enabled():
            for name, slope in self.slopes(outputs, self.leaves).items():
                distance = error(slope, self.gradients[name])
                yield Measured(f"gradient of {name}", distance, self.tolerance)


def _leaves(inputs: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Copy the inputs; those that are not integers get the dtype and require gradients."""
    return {
        name: x.detach().to(dtype, copy=True).requires_grad_() if x.is_floating_point() else x
        for name, x in inputs.items()
    }


@op_check
def values(case: OpCase) -> Iterator[Measured]:
    """Outputs without gradients equal the reference's."""
    with torch.no_grad():
        yield from case.compare(case.leaves)


@op_check
def all_gradients(case: OpCase) -> Iterator[Measured]:
    """Outputs and the gradients of all inputs through all outputs equal the reference's."""
    yield from case.compare(case.leaves)


@op_check
def strided(case: OpCase) -> Iterator[Measured]:
    """Inputs that are strided views give the same outputs and gradients."""
    for enabled in (False, True):
        with torch.set_grad_enabled(enabled):
            views = {
                name: torch.stack([x, x], -1)[..., 0] if x.requires_grad else x
                for name, x in case.leaves.items()
            }
            yield from case.compare(views)


@op_check
def lazy_views(case: OpCase) -> Iterator[Measured]:
    """Views that torch negates lazily, such as imaginary parts of conjugates, are read right."""
    for negated, x in case.leaves.items():
        if not x.requires_grad:
            continue
        for enabled in (False, True):
            with torch.set_grad_enabled(enabled):
                view = torch._neg_view(-x)  # noqa: SLF001  # of any dtype
                assert view.is_neg()
                for measured in case.compare({**case.leaves, negated: view}):
                    yield measured._replace(where=f"{measured.where}, {negated} negated")


@op_check
def inputs_kept(case: OpCase) -> Iterator[Measured]:
    """The inputs are not changed."""
    before = {name: x.detach().clone() for name, x in case.leaves.items()}
    list(case.compare(case.leaves))
    for name, x in case.leaves.items():
        yield Measured(name, error(x, before[name]), 0.0)


@op_check
def same_bits(case: OpCase) -> Iterator[Measured]:
    """The same call twice gives the same outputs and gradients, bit for bit."""
    found = []
    for _ in range(2):
        outputs = tensors(case.op(**case.leaves))
        found.append([*outputs, *case.slopes(outputs, case.leaves).values()])
    for n, (first, second) in enumerate(zip(*found, strict=True)):
        yield Measured(f"tensor {n}", error(second, first), 0.0)


OP_CHECKS: dict[str, Check] = {
    c.name: c for c in (values, all_gradients, strided, lazy_views, inputs_kept, same_bits)
}
"""Every check of an op by its name."""


def check_op(
    op: Callable[..., Any],
    inputs: Mapping[str, Tensor],
    reference: Callable[..., Any],
    *,
    only: Iterable[str] | None = None,
    title: str | None = None,
    dtype: torch.dtype = torch.float32,
    tolerance: float | None = None,
) -> Report:
    """Check an op against a reference in float64: outputs, all gradients, views, determinism.

    Args:
        op: called with the inputs by name; returns a tensor, or tensors in tuples or the like.
        inputs: tensors by name; gradients are taken for all that are not integers.
        reference: the same function, correct in float64; it may be slow.
        only: names of the checks to run, of `OP_CHECKS`; all of them if absent.
        title: the op's name in the report; its `__name__` if absent.
        dtype: the dtype in which the op runs.
        tolerance: relative error that passes; that of the dtype if absent, 1e-4 for float32.

    Returns:
        The report of all checks.

    Raises:
        UserError: `only` names a check that does not exist.

    Example:
        >>> import torch
        >>> from statetrack.testing import check_op
        >>> inputs = {"x": torch.randn(3, 8), "weight": torch.ones(8)}
        >>> def definition(x, weight):
        ...     return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
        >>> from statetrack.ops import rms_norm
        >>> check_op(lambda x, weight: rms_norm(x, weight, eps=1e-6), inputs, definition).failures
        ()
    """
    allowed = TOLERANCES[dtype] if tolerance is None else tolerance
    case = OpCase(op, inputs, reference, dtype, allowed)
    names = list(OP_CHECKS) if only is None else list(only)
    for name in names:
        if name not in OP_CHECKS:
            raise unknown("check", name, OP_CHECKS)
    name = str(getattr(op, "__name__", type(op).__name__))
    return Report(title or name, tuple(OP_CHECKS[name](case) for name in names))
