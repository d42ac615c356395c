"""What a row of the benchmark is: a computation, who can do it, and what is expected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from benchmarks.timing import Tensors

# Does the work once, from inputs that lie ready, and returns all that must be right.
Call = Callable[[], Tensors]


@dataclass(frozen=True)
class Candidate:
    """Somebody who can do the work of a row."""

    name: str
    prepare: Callable[[Tensors, int | None], Call]  # (inputs, chunk size) -> call
    environment: str | None = None  # where its package is installed; None: everywhere
    chunks: tuple[int | None, ...] = (None,)  # the chunk sizes to choose the best one from


@dataclass(frozen=True)
class Row:
    """One computation at one size. The first candidate is ours."""

    name: str
    title: str
    inputs: Callable[[bool], Tensors]  # float64; (True) small ones, for the check, or (False) not
    oracle: Callable[[Tensors, int | None], Call]  # the definition, which float64 inputs get
    candidates: tuple[Candidate, ...]
    flops: float  # of one call on the full inputs
    formula: str  # of these flops
    share: float | None = None  # the least share of the sgemm rate expected of ours
    ratios: dict[str, float] = field(default_factory=dict)  # name -> least time / our time

    @property
    def environments(self) -> list[str]:
        """Where candidates of this row live besides here."""
        return sorted({c.environment for c in self.candidates if c.environment})


def differentiated(
    run: Callable[..., Tensor], transposed: str = "", **options: object
) -> Callable[[Tensors, int | None], Call]:
    """Forward and backward of an op: its output and the gradient of every input.

    `transposed` names what the op wants with time and heads (or channels) exchanged, "o" for its
    output: each gets the layout it is written for, before the clock starts.
    """
    names = set(transposed.split())

    def exchange(name: str, x: Tensor) -> Tensor:
        return x.transpose(1, 2) if name in names else x

    def prepare(inputs: Tensors, chunk: int | None) -> Call:
        leaves = {
            name: exchange(name, x).contiguous().clone().requires_grad_()
            for name, x in inputs.items()
            if name != "d_o"
        }
        d_o = exchange("o", inputs["d_o"]).contiguous()
        chosen = {} if chunk is None else {"chunk_size": chunk}

        def call() -> Tensors:
            o = run(**leaves, **options, **chosen)
            grads = torch.autograd.grad(o, list(leaves.values()), d_o)
            found = {f"d{n}": exchange(n, g) for n, g in zip(leaves, grads, strict=True)}
            return {"o": exchange("o", o.detach()), **found}

        return call

    return prepare
