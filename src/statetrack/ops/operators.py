"""Native kernels as torch operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

library = torch.library.Library("statetrack", "FRAGMENT")


def operator(schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Define torch.ops.statetrack.<name> by its schema, on the CPU and for tracing."""
    name = schema.partition("(")[0]
    library.define(schema)
    library.impl(name, run, "CPU")
    torch.library.register_fake(f"statetrack::{name}", fake, lib=library)


def differentiable(name: str, setup: Callable[..., None], gradients: Callable[..., Any]) -> None:
    """Give an operator its gradients, which call another operator so that both can be traced."""
    torch.library.register_autograd(
        f"statetrack::{name}", gradients, setup_context=setup, lib=library
    )
