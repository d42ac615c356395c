"""The rows: what is measured, at which size, against whom, and what is expected.

Flops are those of the recurrent form, whatever a candidate really does: a product of the state
(K x V numbers) with a vector, or a rank-1 update of it, is 2 K V; gates, which only scale, and
exponentials are not counted.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.ops import decode, peers, training_step
from benchmarks.ops.candidates import Candidate, Row, differentiated
from benchmarks.timing import Tensors
from statetrack.ops import delta_product, delta_rule, gated_linear_attention, selective_scan


def delta_rule_flops(tokens: int, heads: int, K: int, V: int, factors: int = 1) -> float:
    """Forward: S k and k u^T for each factor, S^T q. Backward: 5 products a factor, and 2."""
    return float(tokens * heads * K * V * ((4 * factors + 2) + (10 * factors + 4)))


def linear_attention_flops(tokens: int, heads: int, K: int, V: int) -> float:
    """Forward: k v^T, S^T q. Backward: the state again, its gradient, dq, dk, dv."""
    return float(tokens * heads * K * V * (4 + 10))


def selective_scan_flops(tokens: int, channels: int, N: int) -> float:
    """Forward: delta A, a h + (delta u) B, C h. Backward: the states again, and seven sums."""
    return float(tokens * channels * N * (6 + 18))


DELTA_FORMULA = "6 K V forward, 14 K V backward per token and head"


def _matrix_inputs(
    batch: int, length: int, heads: int, size: int, *, factors: int = 1, beta: bool, gate: bool
) -> Tensors:
    """Unit keys, beta over the whole of [0, 2], gates from 0.9 to 1."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    steps = length * factors
    inputs = {
        "q": F.normalize(normal(batch, length, heads, size), dim=-1),
        "k": F.normalize(normal(batch, steps, heads, size), dim=-1),
        "v": normal(batch, steps, heads, size),
        "d_o": normal(batch, length, heads, size),
    }
    if beta:
        inputs["beta"] = 2 * uniform(batch, steps, heads)
    if gate:
        inputs["g"] = (0.9 + 0.1 * uniform(batch, length, heads)).log()
    return inputs


def _scan_inputs(batch: int, length: int, channels: int, N: int) -> Tensors:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return {
        "u": normal(batch, length, channels),
        "delta": F.softplus(normal(batch, length, channels) - 2),
        "A": -torch.arange(1, N + 1, dtype=torch.float64).expand(channels, N),
        "B": normal(batch, length, N),
        "C": normal(batch, length, N),
        "d_o": normal(batch, length, channels),
    }


def _first(op, **options):  # type: ignore[no-untyped-def]
    """An op of ours without its final state."""
    return lambda **inputs: op(**inputs, **options)[0]


def _backends(op, **options):  # type: ignore[no-untyped-def]
    """The oracle, and ours as they come: the best backend, and plain torch."""
    oracle = differentiated(_first(op, backend="naive", **options))
    ours = Candidate("statetrack", differentiated(_first(op, **options)))
    plain = Candidate("statetrack, torch", differentiated(_first(op, backend="torch", **options)))
    return oracle, ours, plain


def _delta_row(
    name: str, shape: tuple[int, int, int, int], small_length: int, chunks: tuple[int, ...],
    ratio: float, share: float,
) -> Row:  # fmt: skip
    batch, length, heads, size = shape
    oracle, ours, plain = _backends(delta_rule)
    return Row(
        name,
        f"delta rule, B{batch} T{length} H{heads} d{size}",
        lambda small: _matrix_inputs(
            *((2, small_length, 2, size) if small else shape), beta=True, gate=False
        ),
        oracle,
        (
            ours,
            plain,
            Candidate(
                "fla delta_rule_chunkwise",
                differentiated(peers.fla_delta_rule, "q k v beta o"),
                "fla",
                chunks,
            ),
            Candidate(
                "transformers chunk_gated_delta_rule",
                differentiated(peers.hf_delta_rule),
                "hf",
                chunks,
            ),
        ),
        delta_rule_flops(batch * length, heads, size, size),
        DELTA_FORMULA,
        share,
        {"fla delta_rule_chunkwise": ratio},
    )


def _gated_row() -> Row:
    batch, length, heads, size = shape = (4, 2048, 8, 64)
    oracle, ours, plain = _backends(delta_rule)
    chunks = (16, 32, 64)
    return Row(
        "gated-delta-rule",
        f"gated delta rule, B{batch} T{length} H{heads} d{size}",
        lambda small: _matrix_inputs(
            *((2, 128, 2, size) if small else shape), beta=True, gate=True
        ),
        oracle,
        (
            ours,
            plain,
            Candidate(
                "fla naive_chunk_gated_delta_rule",
                differentiated(peers.fla_gated_delta_rule),
                "fla",
                chunks,
            ),
            Candidate(
                "transformers chunk_gated_delta_rule",
                differentiated(peers.hf_gated_delta_rule),
                "hf",
                chunks,
            ),
        ),
        delta_rule_flops(batch * length, heads, size, size),
        DELTA_FORMULA,
        0.70,
        {"fla naive_chunk_gated_delta_rule": 10, "transformers chunk_gated_delta_rule": 10},
    )


def _product_row() -> Row:
    batch, length, heads, size = shape = (256, 40, 4, 32)
    n = 3
    oracle, ours, plain = _backends(delta_product, num_householder=n)
    return Row(
        "delta-product",
        f"delta product of {n}, B{batch} T{length} H{heads} d{size}",
        lambda small: _matrix_inputs(
            *((2, 40, 2, size) if small else shape), factors=n, beta=True, gate=False
        ),
        oracle,
        (
            ours,
            plain,
            Candidate(
                "fla delta_rule_chunkwise, 3 T steps",
                differentiated(peers.fla_delta_product, "q k v beta o", num_householder=n),
                "fla",
                (8, 10, 12, 15, 20, 30),
            ),
        ),
        delta_rule_flops(batch * length, heads, size, size, n),
        "(4 n + 2) K V forward, (10 n + 4) K V backward per token and head",
        0.65,
        {"fla delta_rule_chunkwise, 3 T steps": 12},
    )


def _attention_row() -> Row:
    batch, length, heads, size = shape = (4, 2048, 8, 64)
    oracle, ours, plain = _backends(gated_linear_attention)
    chunks = (32, 64, 128)
    return Row(
        "linear-attention",
        f"gated linear attention, scalar decay, B{batch} T{length} H{heads} d{size}",
        lambda small: _matrix_inputs(
            *((2, 256, 2, size) if small else shape), beta=False, gate=True
        ),
        oracle,
        (
            ours,
            plain,
            Candidate(
                "fla naive_chunk_simple_gla",
                differentiated(peers.fla_linear_attention),
                "fla",
                chunks,
            ),
            Candidate(
                "transformers mamba2_chunk_scan",
                differentiated(peers.hf_linear_attention),
                "hf",
                chunks,
            ),
        ),
        linear_attention_flops(batch * length, heads, size, size),
        "4 K V forward, 10 K V backward per token and head",
        0.70,
        {"fla naive_chunk_simple_gla": 4, "transformers mamba2_chunk_scan": 4},
    )


def _scan_row(negative: bool) -> Row:
    batch, length, channels, N = shape = (256, 40, 256, 16)
    oracle, ours, plain = _backends(selective_scan, allow_neg_eigval=negative)
    interval = "[-1,1]" if negative else "[0,1]"
    pscan = Candidate(
        "mambapy pscan",
        differentiated(peers.mambapy_selective_scan, allow_neg_eigval=negative),
        "hf",
    )
    others: tuple[Candidate, ...] = (pscan,)
    if not negative:  # transformers has no other range
        loop = differentiated(peers.hf_selective_scan, "u delta B C o")
        others = (pscan, Candidate("transformers mamba_selective_scan", loop, "hf"))
    return Row(
        f"selective-scan{'-negative' if negative else ''}",
        f"selective scan {interval}, B{batch} T{length} D{channels} N{N}",
        lambda small: _scan_inputs(*((2, 40, 16, N) if small else shape)),
        oracle,
        (ours, plain, *others),
        selective_scan_flops(batch * length, channels, N),
        "6 N forward, 18 N backward per token and channel",
        None,
        {c.name: 30.0 for c in others},
    )


def _decode_row(batch: int, heads: int, size: int) -> Row:
    length = 64

    def inputs(small: bool) -> Tensors:
        drawn = _matrix_inputs(2 if small else batch, length, heads, size, beta=True, gate=False)
        drawn["S"] = drawn.pop("d_o")[:, :1, :, :, None] * drawn["k"][:, :1, :, None, :]
        drawn["S"] = drawn["S"][:, 0]
        return drawn

    return Row(
        f"decode-{batch}",
        f"decode {length} tokens of the delta rule, B{batch} H{heads} d{size}",
        inputs,
        decode.oracle,
        (Candidate("statetrack", decode.ours), Candidate("torch bmm in place", decode.bmm)),
        float(batch * length * heads * 6 * size * size),
        "6 K V per token and head, forward only",
        None,
        {"torch bmm in place": 2},
    )


def _training_row() -> Row:
    batch, length = 256, 40
    return Row(
        "training-step",
        f"training step, 2-layer DeltaNet d128 H4, SwiGLU, AdamW, B{batch} T{length}",
        lambda small: training_step.draw(*((4, 40) if small else (batch, length))),
        training_step.plain(training_step.definition),
        (
            Candidate("statetrack", training_step.ours),
            Candidate(
                "fla delta_rule_chunkwise and F.conv1d",
                training_step.plain(peers.fla_delta_rule),
                "fla",
                (20,),
            ),
        ),
        training_step.flops(batch, length),
        "6 per token and weight of a product, the delta rule's and the convolution's",
        0.65,
        {"fla delta_rule_chunkwise and F.conv1d": 1.9},
    )


ROWS = {
    row.name: row
    for row in (
        _delta_row("delta-rule-short", (256, 40, 4, 32), 40, (8, 10, 20, 40), 9, 0.80),
        _delta_row("delta-rule-long", (4, 2048, 8, 64), 128, (16, 32, 64), 12, 0.80),
        _gated_row(),
        _product_row(),
        _scan_row(negative=False),
        _scan_row(negative=True),
        _attention_row(),
        _decode_row(1, 8, 64),
        _decode_row(256, 4, 32),
        _training_row(),
    )
}


def long_rows(length: int, environment: str | None) -> tuple[Tensors, list[Candidate]]:
    """The delta rule at B1 H8 d64 for any multiple of 64: inputs, and who can do it here."""
    inputs = _matrix_inputs(1, length, 8, 64, beta=True, gate=False)
    found = ROWS["delta-rule-long"].candidates
    chunks = {"fla": (32,), "hf": (64,)}
    return inputs, [
        replace(c, chunks=chunks.get(c.environment or "", (None,)))
        for c in found
        if c.environment in (None, environment)
    ]
