"""A launch of a Triton kernel: run it, or describe it for compiling ahead of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from statetrack.kernels.gpu import KernelExample

_TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int64: "i64"}


@dataclass(frozen=True)
class Launch:
    """A kernel, its number of programs and warps, and its arguments by name."""

    kernel: Any  # triton.JITFunction
    programs: int
    num_warps: int
    arguments: dict[str, Any]

    def run(self) -> None:
        """Launch the kernel. Products and sums are fused, which Triton 3.10 no longer assumes."""
        grid = self.kernel[(self.programs,)]
        grid(**self.arguments, num_warps=self.num_warps, enable_fp_fusion=True)

    def example(self, name: str, size: str, flops: float, bytes: float) -> KernelExample:
        """Describe the launch; its tensors may be on the meta device.

        Integers that Triton would treat alone when it launches are described so: 1 is a constant,
        and the type of multiples of 16 ends in ":16".
        """
        arguments = {
            p.name: self.arguments[p.name] if p.is_constexpr else _described(self.arguments[p.name])
            for p in self.kernel.params
        }
        warps, programs = self.num_warps, self.programs
        return KernelExample(name, self.kernel, arguments, warps, size, flops, bytes, programs)


def _described(value: Any) -> Any:
    """The Triton type of an argument, or its value if Triton compiles for that value alone."""
    if isinstance(value, Tensor):
        return f"*{_TYPES[value.dtype]}"
    if isinstance(value, float):
        return "fp32"
    if value is None or value == 1:
        return value
    kind = "i32" if -(2**31) <= value < 2**31 else "i64"
    return kind if value % 16 else f"{kind}:16"
