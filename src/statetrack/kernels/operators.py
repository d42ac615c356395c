"""Native kernels as torch operators: known to the CPU, to tracing, and to autograd.

The gradients of an operator call another operator, so that torch.compile sees one graph in both
directions. Gradients that are to be differentiated again are computed through the operator's
definition in plain torch instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from statetrack.errors import UserError
from statetrack.kernels.library import pointer
from statetrack.kernels.transforms import gradients_through, observed, transformed

library = torch.library.Library("statetrack", "FRAGMENT")

Gradients = Callable[[Sequence[Any], Sequence[Any], Sequence[Tensor]], Sequence[Tensor | None]]


def is_plain(x: Any) -> bool:
    """Whether a tensor's memory holds its values: no subclass, lazy negation or implied zeros."""
    return type(x) in (Tensor, nn.Parameter) and not x.is_neg() and not x._is_zerotensor()


def operator(schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """Define torch.ops.statetrack.<name> by its schema, on the CPU and for tracing.

    Returns what calls it: past torch's dispatcher, which takes longer than a small kernel, if the
    inputs are plain tensors and nothing observes the call. An operator that changes an input must
    tell autograd itself.
    """
    name = schema.partition("(")[0]

    def on_cpu(*inputs: Any) -> Any:
        for x in inputs:
            if isinstance(x, Tensor):
                pointer(x)  # raises for freed storage, before anything reads it
        return run(*inputs)

    library.define(schema)
    library.impl(name, on_cpu, "CPU")
    torch.library.register_fake(f"statetrack::{name}", fake, lib=library)
    registered = getattr(torch.ops.statetrack, name)

    def call(*inputs: Any) -> Any:
        if observed():
            return registered(*inputs)
        for x in inputs:  # not any(): see library.serves
            if isinstance(x, Tensor) and not is_plain(x):
                return registered(*inputs)
        return on_cpu(*inputs)

    return call


def differentiable(
    name: str, gradients: Gradients, definition: Callable[..., Any], reads: Sequence[int] = ()
) -> None:
    """Give an operator, whose tensors come before its options, its gradients.

    Args:
        name: the operator's. Its gradients call another one, <name>_backward.
        gradients: (gradients of the outputs, inputs, outputs it reads) -> gradients of the tensors
            among the inputs; without a gradient of their own.
        definition: takes the operator's inputs, composed of differentiable torch operations; for
            gradients of gradients and function transforms of the backward pass.
        reads: the outputs that `gradients` reads; the last exists for it alone.
    """

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensors = [x for x in inputs if x is None or isinstance(x, Tensor)]
        ctx.count, ctx.options = len(tensors), inputs[len(tensors) :]
        kept = [output[i] for i in reads]
        ctx.save_for_backward(*tensors, *kept)
        ctx.mark_non_differentiable(*kept[-1:])
        ctx.set_materialize_grads(False)

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        saved = ctx.saved_tensors  # once: activation checkpointing recomputes them at this point
        tensors, kept = saved[: ctx.count], saved[ctx.count :]
        inputs = *tensors, *ctx.options
        if torch.is_grad_enabled() or transformed(*grads):
            return tuple(gradients_through(definition, inputs, grads))
        found = gradients(grads, inputs, kept)
        wanted = [None if x is None else g for x, g in zip(tensors, found, strict=False)]
        return *wanted, *[None] * (len(inputs) - len(wanted))

    torch.library.register_autograd(
        f"statetrack::{name}", backward, setup_context=setup, lib=library
    )

    def refuse(ctx: Any, *grads: Any) -> None:
        raise UserError(f"statetrack::{name}_backward has no gradients of its own")

    torch.library.register_autograd(f"statetrack::{name}_backward", refuse, lib=library)


def function_of_one(
    name: str,
    forward: Callable[[Tensor], Tensor],
    fake: Callable[[Tensor], Tensor],
    backward: Callable[[Tensor, Tensor], Tensor],
    definition: Callable[[Tensor], Tensor],
) -> Callable[[Tensor], Tensor]:
    """Define y = name(x) and its gradient dx = name_backward(dy, x); return what calls the former.

    Args:
        name: of the operator.
        forward: computes y.
        fake: returns an empty y, for tracing.
        backward: computes dx, contiguous and like x.
        definition: y, composed of differentiable torch operations.
    """

    def fake_backward(dy: Tensor, x: Tensor) -> Tensor:
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    def gradients(grads: Sequence[Any], inputs: Sequence[Any], _: Any) -> tuple[Tensor]:
        return (getattr(torch.ops.statetrack, f"{name}_backward")(*grads, *inputs),)

    call = operator(f"{name}(Tensor x) -> Tensor", forward, fake)
    operator(f"{name}_backward(Tensor dy, Tensor x) -> Tensor", backward, fake_backward)
    differentiable(name, gradients, definition)
    return call


def empty_like(inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """Room for the gradients of a kernel's inputs, in float32; none for an input that is absent."""
    first = next(x for x in inputs if x is not None)
    return tuple(
        first.new_empty((0,) if x is None else x.shape, dtype=torch.float32) for x in inputs
    )


def needs_gradients(inputs: Sequence[Any]) -> bool:
    """Whether a forward pass must keep what its backward pass reads."""
    return torch.is_grad_enabled() and any(
        isinstance(x, Tensor) and x.requires_grad for x in inputs
    )
