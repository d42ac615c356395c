"""Single steps by the Triton kernel, in its interpreter: the ops at T = 1, step after step."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from statetrack.errors import UserError
from statetrack.ops import (
    delta_product,
    delta_product_step,
    delta_rule,
    delta_rule_step,
    gated_linear_attention,
    gated_linear_attention_step,
)
from tests.ops.common import assert_close
from tests.ops.inputs import delta_product_inputs, delta_rule_inputs, linear_attention_inputs

T = 3
SHAPES = pytest.mark.parametrize(  # B, H, K, V
    "shape", [(1, 1, 1, 1), (2, 1, 3, 5), (1, 2, 20, 16)], ids=str
)
GATES = pytest.mark.parametrize("gate", [None, "g", "decay"])


def check(op, step, inputs, factors: int = 1) -> None:
    """The op over T tokens in float64, and T single steps from the same state."""
    state = inputs.pop("initial_state").float()
    expected, final = op(**inputs, initial_state=state, output_final_state=True, backend="naive")
    if factors > 1:
        per_factor = {name: inputs[name].unflatten(1, (T, factors)) for name in ("k", "v", "beta")}
        inputs = {**inputs, **per_factor}
    outputs = []
    for t in range(T):
        token = {name: x[:, t].float() for name, x in inputs.items()}
        outputs.append(step(state, **token, backend="triton"))
    assert_close(torch.stack(outputs, 1), expected, 1e-6)
    assert_close(state, final, 1e-6)


@GATES
@SHAPES
def test_delta_rule_step(shape, gate):
    B, *rest = shape
    check(delta_rule, delta_rule_step, delta_rule_inputs(B, T, *rest, gate=gate))


@GATES
@SHAPES
def test_delta_product_step(shape, gate):
    B, *rest = shape
    inputs = delta_product_inputs(B, T, *rest, 2, gate=gate)
    check(partial(delta_product, num_householder=2), delta_product_step, inputs, factors=2)


@pytest.mark.parametrize("per_channel", [False, True], ids=["per-head", "per-channel"])
@GATES
@SHAPES
def test_gated_linear_attention_step(shape, gate, per_channel):
    B, *rest = shape
    inputs = linear_attention_inputs(B, T, *rest, gate=gate, per_channel=per_channel)
    check(gated_linear_attention, gated_linear_attention_step, inputs)


def token(dtype=torch.float32):
    inputs = delta_rule_inputs(2, 1, 3, 4, 5)
    state = inputs.pop("initial_state").float()
    return state, {name: x[:, 0].to(dtype) for name, x in inputs.items()}


def test_bfloat16_inputs():
    state, inputs = token(torch.bfloat16)
    expected_state = state.clone()
    expected = delta_rule_step(expected_state, **inputs, backend="torch")
    o = delta_rule_step(state, **inputs, backend="triton")
    assert o.dtype == torch.bfloat16
    assert_close(o, expected, 1e-2)
    assert_close(state, expected_state, 1e-6)


def test_strided_inputs():
    state, inputs = token()
    expected_state = state.clone()
    expected = delta_rule_step(expected_state, **inputs, backend="triton")
    views = {name: torch.stack([x, x], -1)[..., 0] for name, x in inputs.items()}
    assert torch.equal(delta_rule_step(state, **views, backend="triton"), expected)
    assert torch.equal(state, expected_state)


def test_more_key_channels_than_a_whole_sequence_may_have():
    inputs = delta_rule_inputs(1, 1, 1, 300, 9)
    state = inputs.pop("initial_state").float()
    inputs = {name: x[:, 0].float() for name, x in inputs.items()}
    expected_state = state.clone()
    expected = delta_rule_step(expected_state, **inputs, backend="torch")
    assert_close(delta_rule_step(state, **inputs, backend="triton"), expected, 1e-6)
    assert_close(state, expected_state, 1e-6)


def test_gradients_are_refused_and_autograd_knows_that_the_state_changed():
    state, inputs = token()
    with pytest.raises(UserError, match="delta_rule_step has no gradients"):
        delta_rule_step(state, **{**inputs, "q": inputs["q"].requires_grad_()}, backend="triton")
    inputs["q"].requires_grad_(False)
    weight = torch.ones_like(state).requires_grad_()
    loss = (weight * state).sum()
    delta_rule_step(state, **inputs, backend="triton")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.filterwarnings("ignore")  # of the compiler itself
def test_compiles_with_its_change_of_the_state():
    state, inputs = token()
    expected_state = state.clone()
    step = partial(delta_rule_step, backend="triton")
    expected = step(expected_state, **inputs)
    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(state, **inputs), expected)
    assert torch.equal(state, expected_state)
