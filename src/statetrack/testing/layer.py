"""Check a sequence layer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import replace
from types import NoneType
from typing import Any

import torch

from statetrack.config import at_least, unknown
from statetrack.errors import UserError, check_type
from statetrack.testing.case import Case
from statetrack.testing.check import Check
from statetrack.testing.checks import CHECKS
from statetrack.testing.report import Report, Result


def check_layer(
    factory: Callable[[], Any],
    *,
    only: Collection[str] | None = None,
    title: str | None = None,
    unsupported: Mapping[str, str] | None = None,
    exact: torch.dtype = torch.float64,
    perturb: float = 0.3,
) -> Report:
    """Check that a sequence layer computes the same numbers however it is called.

    The layer is an `nn.Module` with inputs x [B, T, hidden_size] and

    - `forward(x, state=None, *, mask=None, cu_seqlens=None) -> (y, state)`: `mask` [B, T] is False
      for padding, `cu_seqlens` [N + 1] are the bounds of N sequences packed into one row;
    - `step(x_t, state) -> (y_t, state)` for one token x_t [B, hidden_size];
    - `init_state(batch)`: the state before the first token. A state is a tensor, or tensors in
      nested tuples, lists or dictionaries, with the batch as their first dimension;
    - `hidden_size`;
    - `decoder(batch)`, if it has one: an object whose `step` gives what the layer's `step` gives;
    - `transitions(x)`, if it is a linear RNN: an object like `statetrack.layers.Transition`;
    - `unsupported`, if it fails some checks by design: a mapping from names of checks to reasons.

    Args:
        factory: builds the layer. It is called many times, each time with the same random seed.
        only: names of the checks to run, of `CHECKS`; all of them if absent.
        title: the layer's name in the report; the name of its class if absent.
        unsupported: replaces the layer's own `unsupported`.
        exact: dtype of the exact runs; torch.float32 for a layer that always computes in float32.
        perturb: standard deviation of noise that is added to all parameters, so that none keeps a
            special value such as 0 or 1; 0 to check the weights that the factory gives.

    Returns:
        The report: every check passed or failed, with the largest measured error, or is declared
        unsupported, as `decoder` is for a layer without one. A check that is declared unsupported
        but passes counts as failed, so that declarations stay true; slow checks are not run where
        they are declared unsupported.

    Raises:
        UserError: `only` or `unsupported` names a check that does not exist.

    Example:
        >>> from statetrack import DeltaNet
        >>> from statetrack.testing import check_layer
        >>> report = check_layer(lambda: DeltaNet(12, num_heads=2), only=["chunks", "steps"])
        >>> report.raise_for_failures()
        >>> report.summary()
        'DeltaNet: 2 passed'
    """
    if not callable(factory):
        raise UserError(f"factory must be a function; got {type(factory).__name__}")
    check_type("exact", exact, torch.dtype, "a torch.dtype")
    at_least("perturb", perturb, 0)
    check_type("title", title, (str, NoneType), "a text")
    check_type("only", only, (Sequence, Set, Mapping, NoneType), "a list of names of checks")
    check_type("unsupported", unsupported, (Mapping, NoneType), "reasons by the names of checks")
    case = Case(factory, exact, float(perturb))
    layer = case.layer
    declared = getattr(layer, "unsupported", {}) if unsupported is None else unsupported
    if not hasattr(layer, "decoder"):
        declared = {"decoder": "the layer has no decoder", **declared}
    wanted = list(CHECKS if only is None else only)
    for name in (*wanted, *declared):
        if not isinstance(name, str) or name not in CHECKS:
            raise unknown("check", name, CHECKS)
    results = tuple(
        _run(check, case, declared.get(name)) for name, check in CHECKS.items() if name in wanted
    )
    return Report(title or type(layer).__name__, results)


def _run(check: Check, case: Case, reason: str | None) -> Result:
    """Run a check; `reason` is why it is declared unsupported, if it is."""
    if reason is None:
        return check(case)
    result = None if check.slow else check(case)
    if result is None or result.status == "failed":
        return Result(check.name, "unsupported", detail=reason)
    if case.perturb == 0:  # a declaration holds for the layer, not for all of its weights
        return result
    detail = f"passes, but is declared unsupported: {reason}"
    return replace(result, status="failed", detail=detail)
