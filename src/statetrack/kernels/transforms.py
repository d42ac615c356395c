"""What surrounds a call: autograd modes, function transforms, tracing; and gradients of gradients.

Native kernels, and the autograd functions of the torch backend, serve ordinary reverse mode. Under
every other transform an op is composed of differentiable torch operations instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext


def transformed(*grads: Any) -> bool:
    """Whether a `torch.func` transform or forward-mode differentiation is active.

    In a backward pass, `grads` are the gradients it got: they may be batches of gradients
    (`is_grads_batched`), which count as a transform.
    """
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return True
    if torch.compiler.is_compiling():  # there are no such batches, and no way to ask
        return False
    is_batch = torch._C._functorch.is_legacy_batchedtensor
    return any(is_batch(g) for g in _flat(grads) if g is not None)


def observed() -> bool:
    """Whether autograd, a transform, tracing or a mode acts on torch's operations."""
    return bool(
        torch.is_grad_enabled()
        or torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch._C._len_torch_dispatch_stack()
        or (torch._C._len_torch_function_stack() and _function_modes())
        or transformed()
    )


def _function_modes() -> bool:
    """Whether a mode sees torch's functions; one that only sets the default device does not."""
    stack = _get_current_function_mode_stack()
    return any(type(mode) is not DeviceContext for mode in stack)


def gradients_through(
    function: Callable[..., Any], inputs: Sequence[Any], grads: Sequence[Any]
) -> list[Tensor | None]:
    """Gradients of `function(*inputs)` that can be differentiated again.

    Args:
        function: composed of differentiable torch operations.
        inputs: its arguments, of which some are tensors.
        grads: the gradient of each of its outputs, None where there is none.

    Returns:
        A gradient for each input, None for those that require none.
    """
    with torch.enable_grad():
        # views: one input may be computed from another, and only direct dependence counts
        own = [x.view_as(x) if _requires_grad(x) else x for x in inputs]
        outputs = _flat(function(*own))
    pairs = [(y, g) for y, g in zip(outputs, _flat(grads), strict=False) if g is not None]
    wanted = [x for x in own if _requires_grad(x)]
    found = torch.autograd.grad(
        [y for y, _ in pairs],
        wanted,
        [g for _, g in pairs],
        create_graph=torch.is_grad_enabled(),
        allow_unused=True,
    )
    remaining = iter(found)
    return [next(remaining) if _requires_grad(x) else None for x in own]


def _requires_grad(x: Any) -> bool:
    return isinstance(x, Tensor) and x.requires_grad


def _flat(values: Any) -> list[Any]:
    """The tensors of nested lists and tuples, in order."""
    if not isinstance(values, (list, tuple)):
        return [values]
    return [x for value in values for x in _flat(value)]
