"""The backend fla through the dispatcher, on fla's own kernels, against the defining loops."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from statetrack import UserError
from statetrack.layers import MLSTM, DeltaProduct, GatedDeltaNet, Mamba2, Mixer, operations
from statetrack.ops import delta_product, delta_rule, gated_linear_attention
from statetrack.testing.inputs import Tensors, draw
from tests.gpu.fla_kernels import interpreted_fla  # noqa: F401
from tests.ops.common import assert_all_close, assert_close, run
from tests.ops.inputs import delta_product_inputs, delta_rule_inputs, linear_attention_inputs
from tests.peers.common import logits_and_gradients, random_weights

pytestmark = [
    pytest.mark.usefixtures("interpreted_fla"),
    # above the diagonals of chunks, which the kernels mask afterwards
    pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning"),
]

Op = Callable[..., Any]
HALF = torch.float16
TOLERANCE = 3e-3  # matrices are rounded to float16 several times, by 5e-4 each
SHORT, LONG = 9, 67  # a loop over tokens, if fla has one; a chunk of 64 and a part of one

CASES: dict[str, tuple[Op, Callable[..., Tensors]]] = {
    "delta_rule": (delta_rule, delta_rule_inputs),
    "delta_rule-g": (delta_rule, partial(delta_rule_inputs, gate="g")),
    "delta_rule-decay": (delta_rule, partial(delta_rule_inputs, gate="decay")),
    "product": (
        partial(delta_product, num_householder=2),
        partial(delta_product_inputs, n=2),
    ),
    "product-g": (
        partial(delta_product, num_householder=3),
        partial(delta_product_inputs, n=3, gate="g"),
    ),
    "product-decay": (
        partial(delta_product, num_householder=2),
        partial(delta_product_inputs, n=2, gate="decay"),
    ),
    "attention": (gated_linear_attention, linear_attention_inputs),
    "attention-g": (gated_linear_attention, partial(linear_attention_inputs, gate="g")),
    "attention-decay": (gated_linear_attention, partial(linear_attention_inputs, gate="decay")),
    "gla-g": (
        gated_linear_attention,
        partial(linear_attention_inputs, gate="g", per_channel=True),
    ),
    "gla-decay": (
        gated_linear_attention,
        partial(linear_attention_inputs, gate="decay", per_channel=True),
    ),
}
GRADIENTS = [(name, T) for name in CASES for T in (SHORT, LONG) if (name, T) != ("gla-decay", LONG)]


def mixed(inputs: Tensors, half: str = "qkv") -> Tensors:
    """The inputs named in `half` in half precision, the others in float32."""
    return {name: x.to(HALF if name in half else torch.float32) for name, x in inputs.items()}


def rounded(inputs: Tensors) -> Tensors:
    """Values that the backend gets without rounding, in float64."""
    return {name: x.double() for name, x in mixed(inputs).items()}


def on_fla(op: Op) -> Op:
    """An op of float64 tensors that runs on fla."""

    def call(cu_seqlens: Any = None, output_final_state: bool = True, **inputs: Any) -> Any:
        options = {"cu_seqlens": cu_seqlens, "output_final_state": output_final_state}
        return op(**mixed(inputs), **options, backend="fla")

    return call


@pytest.mark.parametrize(("name", "T"), GRADIENTS)
def test_values_and_gradients(name: str, T: int) -> None:
    op, make = CASES[name]
    inputs = rounded(make(1, T, 2, 16, 18))
    expected = run(op, inputs, torch.float64, backend="naive")
    assert_all_close(run(on_fla(op), inputs, torch.float64), expected, TOLERANCE)


# beyond 64 tokens the backend refuses signed gates on channels that have a gradient
@pytest.mark.parametrize(
    ("name", "lengths"),
    [
        *product(["delta_rule", "product-decay", "attention-decay"], [(7, 1, 5), (3, 66, 1)]),
        ("gla-decay", (7, 1, 5)),
    ],
)
def test_packed_sequences(name: str, lengths: tuple[int, ...]) -> None:
    op, make = CASES[name]
    inputs = rounded(make(1, sum(lengths), 1, 16, 16))
    inputs["initial_state"] = draw(3)(3, 1, 16, 16).float().double()
    ends = torch.tensor([0, *lengths]).cumsum(0)
    expected = run(op, inputs, torch.float64, cu_seqlens=ends, backend="naive")
    actual = run(on_fla(op), inputs, torch.float64, cu_seqlens=ends)
    assert_all_close(actual, expected, TOLERANCE)


@torch.no_grad()
@pytest.mark.parametrize(("name", "T"), [*((name, SHORT) for name in CASES), ("gla-decay", LONG)])
def test_without_gradients(name: str, T: int) -> None:
    """fla has more loops over tokens without a backward pass than with one."""
    op, make = CASES[name]
    inputs = rounded(make(2, T, 1, 16, 16))
    del inputs["initial_state"]
    expected = op(**inputs, scale=-0.5, output_final_state=True, backend="naive")
    actual = op(**mixed(inputs), scale=-0.5, output_final_state=True, backend="fla")
    for y, z in zip(actual, expected, strict=True):
        assert_close(y, z, TOLERANCE)
    alone, state = op(**mixed(inputs), backend="fla")
    assert state is None
    assert alone.dtype == HALF


@pytest.mark.parametrize("gate", ["g", "decay"])
def test_odd_sizes(gate: str) -> None:
    """Those of mLSTM: V = K + 1."""
    inputs = rounded(linear_attention_inputs(1, LONG, 1, 17, 19, gate=gate))
    expected = run(gated_linear_attention, inputs, torch.float64, backend="naive")
    assert_all_close(
        run(on_fla(gated_linear_attention), inputs, torch.float64), expected, TOLERANCE
    )


@pytest.mark.parametrize("name", ["delta_rule-decay", "attention-decay"])
def test_the_gradient_of_gates_that_are_0(name: str) -> None:
    op, make = CASES[name]
    inputs = rounded(make(1, LONG, 1, 16, 16))
    zero = torch.arange(LONG) % 9 == 5
    inputs["decay"][:, zero] = 0.0
    expected = run(op, inputs, torch.float64, backend="naive")["ddecay"]
    actual = run(on_fla(op), inputs, torch.float64)["ddecay"]
    assert expected[:, zero].norm() > 0.1 * expected.norm()
    assert_close(actual[:, zero], expected[:, zero], 0.02)


@torch.no_grad()
def test_nothing_of_a_large_state_survives_a_gate_of_0() -> None:
    op, make = CASES["attention-decay"]
    inputs = rounded(make(1, LONG, 1, 16, 16))
    inputs["decay"][:] = 1.0
    inputs["decay"][:, 40] = 0.0
    inputs["initial_state"] *= 1e4
    expected, _ = op(**inputs, backend="naive")
    actual, _ = op(**mixed(inputs), backend="fla")
    assert_close(actual[:, 40:], expected[:, 40:], TOLERANCE)


@torch.no_grad()
def test_reflections_with_rounded_keys_keep_the_length_of_the_state() -> None:
    k = torch.nn.functional.normalize(draw(4)(1, 1, 1, 16), dim=-1).float()
    assert (k.to(HALF).float().norm() - 1).abs() > 1e-5  # this would be seen after 64 tokens
    k = k.expand(1, 64, 1, 16)
    q = v = torch.zeros_like(k).to(HALF)
    S = draw(5)(1, 1, 16, 16).float()
    _, final = delta_rule(
        q, k, v, torch.full(k.shape[:3], 2.0), initial_state=S, output_final_state=True,
        backend="fla",
    )  # fmt: skip
    assert_close(final, S, 1e-5)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: DeltaProduct(32, num_heads=1, allow_neg_eigval=True, num_householder=2),
        lambda: GatedDeltaNet(32, num_heads=1, allow_neg_gate=True),
        lambda: Mamba2(16, head_dim=16, d_state=16, allow_neg_eigval=True),
        lambda: MLSTM(16, num_heads=1, allow_neg_eigval=True),
    ],
    ids=["delta_product", "gated_delta_net", "mamba2", "mlstm"],
)
def test_layers_under_autocast(layer: Callable[[], Mixer], monkeypatch: pytest.MonkeyPatch) -> None:
    """fla changes outputs and gradients by less than autocast itself does."""
    made = random_weights(layer())
    x = draw(6)(1, 10, made.hidden_size).float()

    def values(autocast: bool) -> Tensors:
        def forward() -> Tensor:
            with torch.autocast("cpu", dtype=HALF, enabled=autocast):
                return made(x)[0].float()

        y, gradients = logits_and_gradients(made, forward)
        return {"y": y} | gradients

    exact, expected = values(autocast=False), values(autocast=True)
    calls = []
    for name in ("delta_product", "gated_linear_attention"):
        op = getattr(operations, name)

        def forced(*args: Any, op: Op = op, **options: Any) -> Any:
            calls.append(op)
            return op(*args, **options | {"backend": "fla"})

        monkeypatch.setattr(operations, name, forced)
    actual = values(autocast=True)
    assert len(calls) == 1
    by_fla = [(actual[name] - expected[name]).norm() for name in exact]
    by_autocast = [(expected[name] - exact[name]).norm() for name in exact]
    assert torch.stack(by_fla).norm() < torch.stack(by_autocast).norm()
    for name, change, bound in zip(exact, by_fla, by_autocast, strict=True):
        assert change < 4 * bound, name


def test_gradients_of_gradients_are_refused() -> None:
    inputs = mixed(delta_rule_inputs(1, 5, 1, 16, 16))
    inputs["v"].requires_grad_()
    o, _ = delta_rule(**inputs, backend="fla")
    with pytest.raises(UserError, match="no gradients of gradients"):
        torch.autograd.grad(o.float().sum(), inputs["v"], create_graph=True)
