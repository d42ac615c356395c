"""What part of a state a program of gpu_kernels.py has; and those kernels at typical sizes.

The sizes are chosen so that no kernel keeps registers in memory, on any GPU that `make test-gpu`
compiles for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import triton

from statetrack.kernels.gpu import KernelExample
from statetrack.ops.recurrence.gpu_kernels import (
    recurrence_backward,
    recurrence_forward,
    recurrence_states,
)

WARP = 512  # elements of a state that a warp has, 16 in a thread


def forward_block(K: int, V: int) -> dict[str, Any]:
    """Return the block of a state [K, V] that a program of the forward pass has, and its warps.

    It is one warp up to K = 64: sums then need no exchange between warps.
    """
    BK = triton.next_power_of_2(K)
    return _block(BK, V, max(WARP, 8 * BK))


def backward_block(K: int, V: int) -> dict[str, Any]:
    """Return the same for the backward pass, in which each block of V has its own part of dk."""
    BK = triton.next_power_of_2(K)
    return _block(BK, V, (4 if BK <= 64 else 8) * WARP)


def _block(BK: int, V: int, most: int) -> dict[str, Any]:
    BV = max(1, min(triton.next_power_of_2(V), most // BK))
    num_warps = min(16, max(1, BK * BV // WARP))
    # a multiplication and an addition may be one instruction: Triton wants to be told
    return {"BK": BK, "BV": BV, "num_warps": num_warps, "enable_fp_fusion": True}


def chunk_size(K: int) -> int:
    """Return the steps between the states that the backward pass keeps.

    Longer chunks take more arithmetic, shorter ones more memory: with K = V = 4 chunk_size(K) the
    states take as much of it as q, k, v and o in float32.
    """
    return 8 if K <= 32 else 16


@dataclass(frozen=True)
class _Call:
    """A call with a gate, given as its logarithm; without beta it is linear attention."""

    B: int
    T: int
    H: int
    K: int
    V: int
    n: int = 1  # Householder factors
    beta: bool = True
    channels: bool = False  # whether each key channel has a gate of its own
    dtype: str = "fp32"

    def examples(self, name: str) -> Iterator[KernelExample]:
        """The kernels of both passes. Work and memory are counted for a token of a head."""
        K, V, n, state = self.K, self.V, self.n, self.K * self.V
        width = 4 if self.dtype == "fp32" else 2  # bytes
        gates = K if self.channels else 1
        error = 4 * n * V if self.beta else 0
        keys = width * (n * K + n * self.beta + gates)  # with beta and the gate
        values = width * n * V
        written = error or values  # u is computed from
        chunk = chunk_size(K)
        kept = 4 * n * state / chunk

        block = forward_block(K, V)
        flops: float = state * (3 + n * (4 if self.beta else 2))
        moved: float = width * (K + V) + keys + values + error
        if self.T == 1:
            yield self._example(f"{name}", recurrence_forward, block, flops, moved + 8 * state)
            return
        yield self._example(f"{name}_forward", recurrence_forward, block, flops, moved)
        again = state * (2 * n + 1)
        moved = keys + written + kept
        yield self._example(f"{name}_states", recurrence_states, block, again, moved)

        block = backward_block(K, V)
        parts = triton.cdiv(V, block["BV"])
        flops = again * (chunk - 1) / 2 + state * (10 + n * (8 if self.beta else 4))
        moved += width * (K + V) + 4 * n * V + 4 * parts * (K + n * K + n * self.beta + gates)
        yield self._example(f"{name}_backward", recurrence_backward, block, flops, moved)

    def _example(
        self, name: str, kernel: Any, block: dict[str, Any], flops: float, moved: float
    ) -> KernelExample:
        tokens = self.B * self.T * self.H
        n = f", n {self.n}" if self.n > 1 else ""
        return KernelExample(
            name=name,
            kernel=kernel,
            arguments={p: self._argument(p, block) for p in kernel.arg_names},
            num_warps=block["num_warps"],
            size=f"B {self.B}, T {self.T}, H {self.H}, K {self.K}, V {self.V}{n}, {self.dtype}",
            flops=tokens * flops,
            bytes=tokens * moved,
            programs=self.B * self.H * triton.cdiv(self.V, block["BV"]),
        )

    def _argument(self, parameter: str, block: dict[str, Any]) -> Any:
        """The value of a constant, or the type."""
        constants = {
            "bounds": None,
            "K": self.K,
            "V": self.V,
            "FACTORS": self.n,
            "CHANNELS": self.channels,
            "LOG_GATE": True,
            "CHUNK": chunk_size(self.K),
            "BK": block["BK"],
            "BV": block["BV"],
        }
        if not self.beta:
            constants |= dict.fromkeys(("beta", "error", "dbeta"))
        if self.T == 1:
            constants["error"] = None
        if parameter in constants:
            return constants[parameter]
        if parameter == "scale":
            return "fp32"
        if parameter in ("T", "H", "all_tokens") or parameter.endswith("_token"):
            return "i32"
        given = {"q", "k", "v", "beta", "gate", "o", "d_o"} | (set() if self.beta else {"u"})
        return f"*{self.dtype if parameter in given else 'fp32'}"


def examples() -> list[KernelExample]:
    """List the kernels, for the heads of language models and of small experiments."""
    calls = {
        "delta_rule": _Call(8, 2048, 16, 64, 64),
        "delta_rule_small": _Call(256, 256, 4, 8, 8),
        "delta_product": _Call(8, 2048, 8, 128, 128, n=2),
        "gated_linear_attention": _Call(
            8, 2048, 4, 128, 256, beta=False, channels=True, dtype="bf16"
        ),
        "delta_rule_step": _Call(256, 1, 16, 64, 64),
    }
    found = [example for name, call in calls.items() for example in call.examples(name)]
    # the smallest of the kernels once: each of them takes seconds to compile
    return [x for x in found if x.kernel is not recurrence_states or x.name == "delta_rule_states"]
