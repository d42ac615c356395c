"""Single steps in place are the ops at T = 1, step after step."""

from __future__ import annotations

import pytest
import torch

from statetrack.errors import UserError
from statetrack.kernels import library
from statetrack.ops import (
    delta_product,
    delta_product_step,
    delta_rule,
    delta_rule_step,
    gated_linear_attention,
    gated_linear_attention_step,
    selective_scan_step,
)
from tests.ops.common import assert_close
from tests.ops.inputs import delta_product_inputs, delta_rule_inputs, linear_attention_inputs

pytestmark = pytest.mark.native

T = 5
SHAPES = [
    (1, 1, 1, 1),
    (2, 3, 5, 2),
    (1, 2, 32, 32),
    (1, 1, 9, 70),
    (3, 1, 70, 40),
    (20, 4, 64, 64),
]
BACKENDS = [*library.LEVELS, "torch"]


@pytest.fixture(params=BACKENDS)
def backend(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(library, "WHY_MISSING", "not built")
        yield
    else:
        with library.forced(request.param):
            yield


def steps(step, inputs, state):
    outputs = []
    for t in range(T):
        token = {name: x[:, t].float() for name, x in inputs.items()}
        outputs.append(step(state, **token))
    return torch.stack(outputs, 1)


def check(op, step, inputs, per_token=(), **options):
    """The op over T tokens in float64, and T single steps from the same state."""
    state = inputs.pop("initial_state").float()
    expected, final = op(
        **inputs, initial_state=state, output_final_state=True, backend="naive", **options
    )
    n = options.get("num_householder", 1)
    tokens = {
        name: x.unflatten(1, (T, n)) if name in per_token else x for name, x in inputs.items()
    }
    assert_close(steps(step, tokens, state), expected, 1e-6)
    assert_close(state, final, 1e-6)


@pytest.mark.parametrize("gate", [None, "g", "decay"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_delta_rule_step(shape, gate, backend):
    B, *rest = shape
    check(delta_rule, delta_rule_step, delta_rule_inputs(B, T, *rest, gate=gate))


@pytest.mark.parametrize("gate", [None, "decay"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_delta_product_step(shape, gate, backend):
    B, *rest = shape
    inputs = delta_product_inputs(B, T, *rest, 3, gate=gate)
    many = ("k", "v", "beta")
    check(delta_product, delta_product_step, inputs, many, num_householder=3)


@pytest.mark.parametrize("per_channel", [False, True], ids=["per-head", "per-channel"])
@pytest.mark.parametrize("gate", [None, "g", "decay"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gated_linear_attention_step(shape, gate, per_channel, backend):
    B, *rest = shape
    inputs = linear_attention_inputs(B, T, *rest, gate=gate, per_channel=per_channel)
    check(gated_linear_attention, gated_linear_attention_step, inputs)


def token(dtype=torch.float32):
    inputs = delta_rule_inputs(2, 1, 3, 4, 5)
    state = inputs.pop("initial_state").float()
    return state, {name: x[:, 0].to(dtype) for name, x in inputs.items()}


def test_the_output_has_the_type_of_v():
    state, inputs = token(torch.bfloat16)
    assert delta_rule_step(state, **inputs).dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore")  # of the compiler itself
def test_compiles_with_its_change_of_the_state():
    state, inputs = token()
    expected_state = state.clone()
    expected = delta_rule_step(expected_state, **inputs)
    torch._dynamo.reset()
    compiled = torch.compile(delta_rule_step, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(state, **inputs), expected)
    assert torch.equal(state, expected_state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s, i: (s.double(), i), "updates its state in place: a contiguous float32"),
        (lambda s, i: (s.mT.contiguous().mT, i), "updates its state in place"),
        (lambda s, i: (s, {**i, "q": i["q"][:, :2]}), "q must have shape"),
        (lambda s, i: (s, {**i, "k": i["k"][..., :2]}), "k must have shape"),
        (lambda s, i: (s, {**i, "beta": i["beta"][:1]}), "beta must have shape"),
        (lambda s, i: (s, {**i, "g": i["beta"], "decay": i["beta"]}), "not both"),
        (lambda s, i: (s, {**i, "decay": i["k"]}), "the gate must have shape"),
    ],
)
def test_what_does_not_fit(change, message):
    state, inputs = change(*token())
    with pytest.raises(UserError, match=message):
        delta_rule_step(state, **inputs)


def test_a_product_needs_its_factors():
    state, inputs = token()
    with pytest.raises(UserError, match=r"k must be \[B, n, H, K\]"):
        delta_product_step(state, **inputs)
    none = {name: x if name == "q" else x[:, None][:, :0] for name, x in inputs.items()}
    with pytest.raises(UserError, match="n >= 1"):
        delta_product_step(state, **none)


@pytest.mark.parametrize("name", ["state", "q", "beta", "scale"])
def test_gradients_are_refused(backend, name):
    state, inputs = token()
    leaves = {"state": state, "scale": torch.tensor(0.5), **inputs}
    leaves[name].requires_grad_()
    before = state.detach().clone()
    with pytest.raises(UserError, match="delta_rule_step has no gradients"):
        delta_rule_step(**leaves)
    assert torch.equal(state, before)
    with torch.no_grad():
        delta_rule_step(**leaves)


def test_autograd_knows_that_the_state_changed():
    """A step after something was computed from the state must not falsify its gradients."""
    inputs = {k: x.float()[:, 0] for k, x in delta_rule_inputs(2, 1, 3, 4, 5).items()}
    inputs.pop("initial_state")
    state = torch.randn(2, 3, 4, 5)
    weight = torch.ones_like(state).requires_grad_()
    loss = (weight * state).sum()
    delta_rule_step(state, **inputs)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_a_scan_step_tells_autograd_of_its_change(backend):
    state, x, y = torch.zeros(2, 3, 4), torch.ones(2, 3), torch.ones(2, 4)
    before = state._version
    with torch.no_grad():
        selective_scan_step(state, x, x, -torch.ones(3, 4), y, y, backend=backend)
    assert state._version > before
