"""Check ops on a device, with each of their backends, against their definitions in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from statetrack.errors import UserError
from statetrack.kernels import gpu
from statetrack.ops.backends import BACKENDS, NoSuchBackendError
from statetrack.selftest.op_tests import OpTest
from statetrack.selftest.outcome import Outcome, dtype_name, first_line
from statetrack.testing.op import check_op
from statetrack.testing.report import Result


def check_ops(
    device: torch.device, tests: Sequence[OpTest], dtypes: Sequence[torch.dtype]
) -> Iterator[Outcome]:
    """Run tests on a device with every backend; a backend that cannot run there says why.

    Args:
        device: where the ops run; the definitions run on the CPU, in float64.
        tests: those of one op in a row.
        dtypes: of the inputs.
    """
    # fla's autotuner asks for a GPU's driver, also in Triton's interpreter
    left_out = "fla" if gpu.interpreting() else None
    for name, group in groupby(tests, key=lambda test: test.name):
        own = list(group)
        for backend in ("auto", *(name for name in BACKENDS if name != left_out)):
            for dtype in dtypes:
                try:
                    found = [r for test in own for r in _results(test, backend, dtype, device)]
                except NoSuchBackendError:
                    continue
                yield Outcome("op", name, backend, dtype_name(dtype), tuple(found))


def _results(
    test: OpTest, backend: str, dtype: torch.dtype, device: torch.device
) -> Iterator[Result]:
    op = partial(_on_device, device, partial(test.op, backend=backend))
    inputs = {n: x.to(dtype) if x.is_floating_point() else x for n, x in test.inputs.items()}
    try:
        with torch.no_grad():
            op(**inputs)
    except NoSuchBackendError:
        raise
    except UserError as error:
        yield Result(test.case, "unsupported", detail=str(error))
        return
    except Exception as error:  # whatever a kernel raises on a device that it was not tried on
        yield Result(test.case, "failed", detail=first_line(error))
        return
    report = check_op(op, test.inputs, test.definition, only=test.checks, dtype=dtype)
    for r in report.results:
        yield Result(f"{r.check}, {test.case}", r.status, r.error, r.tolerance, r.detail)


def _on_device(device: torch.device, op: Callable[..., Any], **inputs: Tensor) -> Any:
    """Call an op with inputs from the CPU; its outputs go back there, and so do gradients."""
    found = op(**{name: x.to(device) for name, x in inputs.items()})
    return pytree.tree_map_only(Tensor, lambda x: x.cpu(), found)
