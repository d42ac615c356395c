"""The arithmetic of the backend fla, with the package's naive functions in its kernels' place.

In float32, so that nothing is hidden by rounding. Arguments are bound to the kernels' own
signatures.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fla.ops.delta_rule.naive import delta_rule_recurrence
from fla.ops.gated_delta_product.naive import naive_recurrent_gated_delta_product
from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
from fla.ops.gla.naive import naive_recurrent_gla
from fla.ops.simple_gla.naive import naive_recurrent_simple_gla
from torch import Tensor

from statetrack.kernels import gpu
from statetrack.ops import delta_product, delta_rule, gated_linear_attention
from statetrack.ops.recurrence import fla as adapter
from statetrack.ops.recurrence import run as dispatch
from statetrack.testing.inputs import Tensors, draw
from tests.ops.common import assert_all_close, assert_close, run
from tests.ops.inputs import delta_product_inputs, delta_rule_inputs, linear_attention_inputs

Op = Callable[..., Any]
KERNELS = vars(adapter.kernels())


def plain_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, scale: float, initial_state: Any
) -> Any:
    """Its naive function has heads before tokens, and a scale of its own."""
    q = q * (scale * q.shape[-1] ** 0.5)
    o, state = delta_rule_recurrence(*(x.transpose(1, 2) for x in (q, k, v, beta)), initial_state)
    return o.transpose(1, 2), state


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Any, beta: Tensor, scale: float, initial_state: Any
) -> Any:
    g = torch.zeros_like(beta) if g is None else g
    return naive_recurrent_gated_delta_rule(q, k, v, beta, g, scale, initial_state, True)


def product(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Any,
    beta: Tensor,
    scale: float,
    initial_state: Any,
    num_householder: int,
) -> Any:
    return naive_recurrent_gated_delta_product(
        q, k, v, g, beta, scale, None, initial_state, True, num_householder
    )


def simple_gla(
    q: Tensor, k: Tensor, v: Tensor, scale: float, initial_state: Any, g: Any = None
) -> Any:
    g = torch.zeros_like(q[..., 0]) if g is None else g
    return naive_recurrent_simple_gla(q, k, v, g, scale, initial_state)


def gla(
    q: Tensor, k: Tensor, v: Tensor, scale: float, initial_state: Any, g: Any = None, gk: Any = None
) -> Any:
    """The recurrent kernel calls the gate gk, the chunked one g."""
    q = q * (scale * q.shape[-1] ** 0.5)  # the naive function has a scale of its own
    return naive_recurrent_gla(q, k, v, g if gk is None else gk, initial_state, True)


NAIVE: dict[str, Op] = {
    "chunk_delta_rule": plain_delta_rule,
    "fused_recurrent_delta_rule": plain_delta_rule,
    "chunk_gated_delta_rule": gated_delta_rule,
    "fused_recurrent_gated_delta_rule": gated_delta_rule,
    "chunk_gated_delta_product": product,
    "chunk_gla": gla,
    "fused_recurrent_gla": gla,
    "chunk_simple_gla": simple_gla,
    "fused_recurrent_simple_gla": simple_gla,
}


def stand_in(name: str, called: list[str]) -> Op:
    """A naive function with the signature of a kernel."""
    signature = inspect.signature(KERNELS[name])

    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        assert "kwargs" not in given
        called.append(name)
        state = given["initial_state"]
        if state is not None:
            assert state.dtype == torch.float32
        output_final_state = given.pop("output_final_state")
        ends = given.pop("cu_seqlens")
        if ends is None:
            o, final = NAIVE[name](**given)
            return o, final if output_final_state else None
        parts = []
        n = given.get("num_householder", 1)
        for i, (first, last) in enumerate(pairwise(ends.tolist())):
            part = {"initial_state": None if state is None else state[i : i + 1]}
            for key, x in given.items():
                if isinstance(x, Tensor) and key != "initial_state":
                    factor = n if key in ("k", "v", "beta") else 1
                    part[key] = x[:, factor * first : factor * last]
            parts.append(NAIVE[name](**given | part))
        final = torch.cat([final for _, final in parts])
        return torch.cat([o for o, _ in parts], 1), final if output_final_state else None

    return call


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that were called; they get tensors of any device and dtype."""
    names: list[str] = []
    stand_ins = SimpleNamespace(**{name: stand_in(name, names) for name in KERNELS})
    monkeypatch.setattr(adapter, "kernels", lambda: stand_ins)
    monkeypatch.setattr(adapter, "LEAST_GATE", 2.0**-40)  # their gradients have no errors
    monkeypatch.setattr(dispatch, "unfit_fla", lambda *_: {})
    monkeypatch.setattr(gpu, "refusal", lambda *_: None)
    return names


def products(n: int, gate: str | None = None) -> tuple[Op, Op]:
    return partial(delta_product, num_householder=n), partial(delta_product_inputs, n=n, gate=gate)


def attention(gate: str | None = None, per_channel: bool = False) -> tuple[Op, Op]:
    make = partial(linear_attention_inputs, gate=gate, per_channel=per_channel)
    return gated_linear_attention, make


# with gradients: the op, its inputs, the kernel for up to 64 tokens and that for more
CASES: dict[str, tuple[Op, Op, str, str]] = {
    "delta_rule": (
        delta_rule, delta_rule_inputs, "fused_recurrent_delta_rule", "chunk_delta_rule"
    ),
    "delta_rule-g": (
        delta_rule, partial(delta_rule_inputs, gate="g"), *["chunk_gated_delta_rule"] * 2
    ),
    "delta_rule-decay": (
        delta_rule, partial(delta_rule_inputs, gate="decay"), *["chunk_gated_delta_rule"] * 2
    ),
    "product-of-1": (*products(1), "fused_recurrent_delta_rule", "chunk_delta_rule"),
    "product": (*products(2), *["chunk_gated_delta_product"] * 2),
    "product-g": (*products(3, "g"), *["chunk_gated_delta_product"] * 2),
    "product-decay": (*products(2, "decay"), *["chunk_gated_delta_product"] * 2),
    "attention": (*attention(), *["chunk_simple_gla"] * 2),
    "attention-g": (*attention("g"), *["chunk_simple_gla"] * 2),
    "attention-decay": (*attention("decay"), *["chunk_simple_gla"] * 2),
    "gla-g": (*attention("g", per_channel=True), "fused_recurrent_gla", "chunk_gla"),
    "gla-decay": (*attention("decay", per_channel=True), "fused_recurrent_gla", "chunk_gla"),
}  # fmt: skip
WITHOUT_GRADIENTS = {
    "delta_rule": "fused_recurrent_delta_rule",
    "delta_rule-decay": "fused_recurrent_gated_delta_rule",
    "product": "fused_recurrent_gated_delta_rule",
    "product-g": "fused_recurrent_gated_delta_rule",
    "product-decay": "fused_recurrent_gated_delta_rule",
    "attention": "fused_recurrent_simple_gla",
    "attention-decay": "fused_recurrent_simple_gla",
    "gla-decay": "fused_recurrent_gla",
}


def check(op: Op, inputs: Tensors, **options: Any) -> None:
    inputs = {name: x.float().double() for name, x in inputs.items()}
    expected = run(op, inputs, torch.float64, backend="naive", **options)
    assert_all_close(run(op, inputs, torch.float32, backend="fla", **options), expected, 2e-5)


@pytest.mark.parametrize("T", [1, 64, 65])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str, T: int, called: list[str]) -> None:
    op, make, short, long = CASES[name]
    check(op, make(2, T, 3, 6, 5), scale=-0.3)
    assert called == [short if T <= 64 else long]


@pytest.mark.parametrize("name", CASES)
def test_packed_sequences(name: str, called: list[str]) -> None:
    op, make, _, long = CASES[name]
    inputs = make(1, 80, 2, 4, 3)
    inputs["initial_state"] = draw(3)(4, 2, 4, 3)
    check(op, inputs, cu_seqlens=torch.tensor([0, 1, 67, 72, 80]))
    assert called == [long]


@torch.no_grad()
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", WITHOUT_GRADIENTS)
def test_without_gradients(name: str, packed: bool, called: list[str]) -> None:
    op, make, _, _ = CASES[name]
    inputs = make(1, 40, 2, 4, 3)
    options: dict[str, Any] = {"output_final_state": True}
    if packed:
        inputs["initial_state"] = draw(3)(2, 2, 4, 3)
        options["cu_seqlens"] = torch.tensor([0, 13, 40])
    expected = op(**inputs, **options, backend="naive")
    for y, z in zip(
        op(**{key: x.float() for key, x in inputs.items()}, **options, backend="fla"),
        expected,
        strict=True,
    ):
        assert_close(y, z, 2e-5)
    assert called == [WITHOUT_GRADIENTS[name]]


def test_no_state(called: list[str]) -> None:
    """Neither given nor asked for."""
    for op, make, _, _ in CASES.values():
        inputs = make(2, 7, 2, 4, 4)
        del inputs["initial_state"]
        o, state = op(**{name: x.float() for name, x in inputs.items()}, backend="fla")
        assert state is None
        assert_close(o, op(**inputs, backend="naive")[0], 2e-5)


def test_a_learned_scale(called: list[str]) -> None:
    inputs = delta_rule_inputs(1, 70, 2, 4, 4)
    inputs["scale"] = torch.tensor(0.7, dtype=torch.float64)
    check(delta_rule, inputs)


@pytest.mark.parametrize("name", ["delta_rule", "product-decay"])
def test_rounded_keys_have_the_eigenvalues_of_exact_ones(name: str, called: list[str]) -> None:
    """1 - beta |k|^2 of each factor, where k is rounded to the dtype of v."""
    op, make, _, _ = CASES[name]
    inputs = {key: x.float() for key, x in make(1, 70, 1, 16, 4).items()}
    inputs["v"] = inputs["v"].bfloat16()
    inputs["k"][:, 3] = 0.0  # padding
    given: dict[str, Tensor] = {}
    stand_ins = adapter.kernels()
    kernel = CASES[name][3]

    def record(*args: Any, **kwargs: Any) -> Any:
        given.update(inspect.signature(KERNELS[kernel]).bind(*args, **kwargs).arguments)
        return given["v"][:, :70], given["initial_state"]

    setattr(stand_ins, kernel, record)
    op(**inputs, backend="fla")
    assert given["k"].dtype == torch.bfloat16
    wanted = inputs["beta"] * inputs["k"].square().sum(-1)
    torch.testing.assert_close(given["beta"] * given["k"].float().square().sum(-1), wanted)
