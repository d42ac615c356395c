"""The ops, at sizes that are awkward for kernels, in both ranges, with what defines them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from statetrack.ops import (
    cross_entropy,
    delta_product,
    delta_product_step,
    delta_rule,
    delta_rule_step,
    gated_linear_attention,
    gated_linear_attention_step,
    rms_norm,
    selective_scan,
    selective_scan_step,
    short_conv,
    slstm,
    softplus,
    swiglu,
)
from statetrack.ops.linear_scan import linear_scan
from statetrack.selftest.inputs import (
    delta_product_inputs,
    delta_rule_inputs,
    linear_attention_inputs,
    selective_scan_inputs,
)
from statetrack.testing.inputs import Tensors, draw

RANGES = {False: "[0,1]", True: "[-1,1]"}
FACTORS = 2  # Householder factors of a token
PACKED = torch.tensor([0, 1, 12, 30])


@dataclass(frozen=True)
class OpTest:
    """An op at one size."""

    name: str  # such as "delta_rule [-1,1]"
    case: str  # the size in words
    op: Callable[..., Any]  # of `inputs` by name, and `backend`
    definition: Callable[..., Any]  # of `inputs` by name
    inputs: Tensors
    checks: Sequence[str] = ("values", "all_gradients")  # of `statetrack.testing.op`


def op_tests(quick: bool) -> list[OpTest]:
    """List the tests of all ops, those of one op in a row."""
    # a single token, odd sizes, and three chunks of 64; heads of 16 and more, which fla needs
    heads = [(2, 21, 2, 3, 5), (1, 9, 1, 16, 16)]
    channels = [(2, 21, 5, 3)]
    lengths = [9]
    if not quick:
        heads = [(2, 1, 2, 3, 5), (2, 70, 3, 5, 3), (1, 130, 2, 64, 64)]
        channels = [(2, 1, 5, 3), (2, 70, 37, 5), (1, 130, 64, 16)]
        lengths = [1, 70]
    found = [test for shape in heads for test in (*_recurrences(*shape), *_steps(*shape))]
    found += [test for shape in channels for test in _scans(*shape)]
    found += [test for length in lengths for test in _others(length)]
    found += _packed()
    order = {name: n for n, name in enumerate(dict.fromkeys(test.name for test in found))}
    return sorted(found, key=lambda test: order[test.name])


def _sequence(name: str, op: Callable[..., Any], case: str, inputs: Tensors) -> OpTest:
    """A recurrence over a sequence, with its final state."""
    run = partial(op, output_final_state=True)
    return OpTest(name, case, run, partial(run, backend="naive"), inputs)


def _step(
    name: str,
    step: Callable[..., Any],
    op: Callable[..., Any],
    case: str,
    inputs: Tensors,
    tokens: str,
) -> OpTest:
    """One token, which changes the state in place: the op on a sequence of length 1.

    `tokens` names the inputs [B, 1, ...] that a step takes without the length.
    """

    def run(initial_state: Tensor, backend: str, **inputs: Tensor) -> tuple[Tensor, Tensor]:
        state = initial_state.float().clone()
        token = {n: x[:, 0] if n in tokens.split() else x for n, x in inputs.items()}
        return step(state, **token, backend=backend)[:, None], state

    definition = partial(op, output_final_state=True, backend="naive")
    return OpTest(name, case, run, definition, inputs, checks=("values",))


def _recurrences(B: int, T: int, H: int, K: int, V: int) -> Iterator[OpTest]:
    shape = (B, T, H, K, V)
    case = _words("BTHKV", shape)
    for signed, title in RANGES.items():
        inputs = delta_rule_inputs(*shape)
        inputs["beta"] = inputs["beta"] if signed else inputs["beta"] / 2
        yield _sequence(f"delta_rule {title}", delta_rule, case, inputs)
    for gate in ("g", "decay"):
        inputs = delta_rule_inputs(*shape, gate=gate)
        yield _sequence(f"delta_rule with {gate}", delta_rule, case, inputs)
    product = partial(delta_product, num_householder=FACTORS)
    for kind in (None, "g", "decay"):
        name = f"delta_product with {kind}" if kind else "delta_product"
        yield _sequence(name, product, case, delta_product_inputs(*shape, FACTORS, gate=kind))
    for gate in ("g", "decay"):
        for per_channel in (False, True):
            inputs = linear_attention_inputs(*shape, gate=gate, per_channel=per_channel)
            name = f"gated_linear_attention, {gate} of {'channels' if per_channel else 'heads'}"
            yield _sequence(name, gated_linear_attention, case, inputs)


def _steps(B: int, T: int, H: int, K: int, V: int) -> Iterator[OpTest]:
    shape = (B, 1, H, K, V)
    case = _words("BTHKV", shape)
    tokens = "q k v beta g decay"
    inputs = delta_rule_inputs(*shape, gate="decay")
    yield _step("delta_rule_step", delta_rule_step, delta_rule, case, inputs, tokens)
    inputs = delta_product_inputs(*shape, FACTORS, gate="g")
    product = partial(delta_product, num_householder=FACTORS)
    yield _step("delta_product_step", delta_product_step, product, case, inputs, "q g")
    inputs = linear_attention_inputs(*shape, gate="g", per_channel=True)
    step, op = gated_linear_attention_step, gated_linear_attention
    yield _step("gated_linear_attention_step", step, op, case, inputs, tokens)


def _scans(B: int, T: int, D: int, N: int) -> Iterator[OpTest]:
    for signed, title in RANGES.items():
        scan = partial(selective_scan, allow_neg_eigval=signed)
        inputs = selective_scan_inputs(B, T, D, N)
        yield _sequence(f"selective_scan {title}", scan, _words("BTDN", (B, T, D, N)), inputs)
        step = partial(selective_scan_step, allow_neg_eigval=signed)
        inputs = selective_scan_inputs(B, 1, D, N)
        case = _words("BTDN", (B, 1, D, N))
        yield _step(f"selective_scan_step {title}", step, scan, case, inputs, "u delta B C z")


def _packed() -> Iterator[OpTest]:
    """Three sequences in one row."""
    case = "packed sequences of 1, 11 and 18 tokens"
    normal = draw(1)
    more = {"initial_state": normal(3, 2, 5, 3), "cu_seqlens": PACKED}
    inputs = delta_rule_inputs(1, 30, 2, 5, 3, gate="g") | more
    yield _sequence("delta_rule with g", delta_rule, case, inputs)
    inputs = linear_attention_inputs(1, 30, 2, 5, 3, gate="decay", per_channel=True) | more
    name = "gated_linear_attention, decay of channels"
    yield _sequence(name, gated_linear_attention, case, inputs)
    more = {"initial_state": normal(3, 5, 3), "cu_seqlens": PACKED}
    inputs = selective_scan_inputs(1, 30, 5, 3) | more
    for signed, title in RANGES.items():
        scan = partial(selective_scan, allow_neg_eigval=signed)
        yield _sequence(f"selective_scan {title}", scan, case, inputs)
    inputs = {"x": normal(1, 30, 6), "weight": normal(6, 4), "window": normal(3, 3, 6)}
    yield _plain(
        "short_conv", partial(short_conv, silu=True), case, inputs | {"cu_seqlens": PACKED}
    )


def _plain(name: str, op: Callable[..., Any], case: str, inputs: Tensors) -> OpTest:
    return OpTest(name, case, op, partial(op, backend="naive"), inputs)


def _others(T: int) -> Iterator[OpTest]:
    """What is no recurrence of a linear RNN."""
    normal = draw(T)
    case = _words("BT", (2, T))
    conv = partial(short_conv, silu=True, sizes=[6, 4], head_sizes=[3, 0])
    inputs = {"x": normal(2, T, 10), "weight": normal(10, 4), "bias": normal(10)}
    yield _plain("short_conv", conv, case, {**inputs, "window": normal(2, 3, 10)})
    yield _plain("rms_norm", rms_norm, case, {"x": normal(2, T, 37), "weight": normal(37)})
    yield _plain("swiglu", swiglu, case, {"x": normal(2, T, 74)})
    yield _plain("softplus", softplus, case, {"x": normal(2, T, 37)})
    targets = torch.arange(2 * T) % 7
    targets[0] = -100  # not counted
    yield _plain(
        "cross_entropy", cross_entropy, case, {"logits": normal(2 * T, 7), "targets": targets}
    )
    inputs = {"a": normal(2, T, 5).tanh(), "b": normal(2, T, 5), "h0": normal(2, 5)}
    yield _plain("linear_scan", linear_scan, case, inputs)
    state = {"h": normal(2, 2, 3), "c": normal(2, 2, 3), "n": normal(2, 2, 3).abs() + 1}
    inputs = {"x": normal(2, T, 2, 4, 3), "R": normal(2, 4, 3, 3), **state, "m": normal(2, 2, 3)}
    yield _plain("slstm", _slstm, case, inputs)


def _slstm(x: Tensor, R: Tensor, backend: str, **state: Tensor) -> Any:
    initial = (state["h"], state["c"], state["n"], state["m"])
    return slstm(x, R, initial_state=initial, output_final_state=True, backend=backend)


def _words(names: str, sizes: Sequence[int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in zip(names, sizes, strict=True))
