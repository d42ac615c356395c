"""Native kernels as torch operators: known to the CPU, to tracing, and to autograd.

The gradients of an operator call another operator, so that torch.compile sees one graph in both
directions. That other one has no gradients of its own, and says so: without an answer torch would
take second derivatives for zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from statetrack.errors import UserError

library = torch.library.Library("statetrack", "FRAGMENT")


def observed() -> bool:
    """Whether more than the results of torch's operations counts just now.

    They may be differentiated, compiled, traced, transformed or counted.
    """
    return bool(
        torch.is_grad_enabled()
        or torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
    )


def operator(schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """Define torch.ops.statetrack.<name> by its schema, on the CPU and for tracing.

    Returns what calls it: past torch's dispatcher, which takes longer than a small kernel, if the
    first input is a plain tensor and nobody looks on. Not for operators that
    change their inputs: the dispatcher tells autograd.
    """
    name = schema.partition("(")[0]
    library.define(schema)
    library.impl(name, run, "CPU")
    torch.library.register_fake(f"statetrack::{name}", fake, lib=library)
    registered = getattr(torch.ops.statetrack, name)

    def call(*inputs: Any) -> Any:
        if type(inputs[0]) is Tensor and not observed():
            return run(*inputs)
        return registered(*inputs)

    return call


def differentiable(name: str, setup: Callable[..., None], gradients: Callable[..., Any]) -> None:
    """Give an operator its gradients, and refuse those of <name>_backward, which they call."""
    torch.library.register_autograd(
        f"statetrack::{name}", gradients, setup_context=setup, lib=library
    )

    def refuse(ctx: Any, *grads: Any) -> None:
        raise UserError(f'{name} has no second derivatives in C++: take backend="naive"')

    torch.library.register_autograd(f"statetrack::{name}_backward", refuse, lib=library)


def empty_like(inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """Room for the gradients of a kernel's inputs, in float32; none for an input that is absent."""
    first = next(x for x in inputs if x is not None)
    return tuple(
        first.new_empty((0,) if x is None else x.shape, dtype=torch.float32) for x in inputs
    )
