"""The chunkwise delta rule against the naive loop in float64, gradients included."""

from __future__ import annotations

import pytest
import torch

from statetrack.ops import delta_rule
from statetrack.ops.recurrence import chunk_delta as chunk
from statetrack.testing.inputs import draw, unit
from tests.ops.common import assert_all_close, assert_close, run
from tests.ops.inputs import delta_rule_inputs

SHAPES = [
    pytest.param((B, T, H, K, V), id=f"B{B}-T{T}-H{H}-K{K}-V{V}")
    for B, T, H, K, V in [
        (1, 1, 1, 1, 1),
        (2, 1, 3, 5, 7),
        (1, 2, 1, 7, 1),
        (2, 31, 3, 5, 7),
        (1, 32, 1, 33, 5),
        (2, 33, 1, 1, 3),
        (1, 40, 3, 7, 33),
        (3, 63, 1, 16, 16),
        (1, 100, 2, 5, 5),
        (1, 257, 3, 7, 2),
    ]
]
GATES = [
    pytest.param(None, id="no-gate"),
    pytest.param("g", id="g"),
    pytest.param("decay", id="decay"),
]


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("shape", SHAPES)
def test_torch_agrees_with_naive(shape, gate):
    inputs = delta_rule_inputs(*shape, gate=gate)
    oracle = run(delta_rule, inputs, torch.float64, backend="naive")
    double = run(delta_rule, inputs, torch.float64, backend="torch")
    single = run(delta_rule, inputs, torch.float32, backend="torch")
    assert_all_close(double, oracle, 1e-10)
    assert_all_close(single, oracle, 1e-5)
    assert single["output"].dtype == single["final_state"].dtype == torch.float32


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_the_chunk_size_does_not_matter(monkeypatch, size, gate):
    inputs = delta_rule_inputs(2, 23, 2, 4, 3, gate=gate)
    oracle = run(delta_rule, inputs, torch.float64, backend="naive")
    monkeypatch.setattr(chunk, "MAX_CHUNK", size)
    assert_all_close(run(delta_rule, inputs, torch.float64, backend="torch"), oracle, 1e-10)


@pytest.mark.parametrize("backend", ["naive", "torch"])
def test_auto_defaults_and_missing_arguments(backend):
    inputs = delta_rule_inputs(2, 40, 2, 4, 3)
    zero = torch.zeros_like(inputs.pop("initial_state"))
    o, state = delta_rule(**inputs, initial_state=zero, scale=0.5, backend=backend)
    assert state is None
    default, final = delta_rule(**inputs, output_final_state=True)
    assert final.shape == (2, 2, 4, 3)
    assert_close(default, o, 1e-12)


@pytest.mark.parametrize("backend", ["naive", "torch"])
def test_scale_multiplies_the_output_and_not_the_state(backend):
    inputs = delta_rule_inputs(1, 40, 2, 9, 3)
    plain, state = delta_rule(**inputs, scale=1.0, output_final_state=True, backend=backend)
    scaled, same = delta_rule(**inputs, scale=-3.0, output_final_state=True, backend=backend)
    default, _ = delta_rule(**inputs, backend=backend)
    assert_close(scaled, -3 * plain, 1e-12)
    assert_close(default, plain / 3, 1e-12)
    assert torch.equal(same, state)


@pytest.mark.parametrize("backend", ["naive", "torch"])
def test_g_is_the_logarithm_of_decay(backend):
    inputs = delta_rule_inputs(2, 50, 2, 4, 3, gate="g")
    g = inputs.pop("g")
    o, state = delta_rule(**inputs, g=g, output_final_state=True, backend=backend)
    inputs["decay"] = g.exp()
    same, same_state = delta_rule(**inputs, output_final_state=True, backend=backend)
    assert_close(o, same, 1e-12)
    assert_close(state, same_state, 1e-12)


@pytest.mark.parametrize("backend", ["naive", "torch"])
def test_a_gate_of_zero_forgets_what_came_before(backend):
    inputs = delta_rule_inputs(1, 40, 1, 4, 3)
    inputs["decay"] = torch.ones(1, 40, 1).double()
    inputs["decay"][:, 25] = 0.0
    result = run(delta_rule, inputs, torch.float64, backend=backend)
    after = {name: x[:, 25:] for name, x in inputs.items() if name != "initial_state"}
    _, expected = delta_rule(**after, output_final_state=True, backend="naive")
    assert_close(result["final_state"], expected, 1e-12)
    # yet the gate itself still has a gradient: opening it would bring the past back
    assert result["ddecay"][0, 25, 0].abs() > 1e-6


@pytest.mark.parametrize("backend", ["naive", "torch"])
@pytest.mark.parametrize(("beta", "power"), [(0.0, 0), (2.0, 1)], ids=["identity", "reflection"])
def test_beta_at_its_ends_is_the_identity_or_a_reflection(backend, beta, power):
    T = 41  # odd
    key = torch.tensor([0.0, 1.0, 0.0])
    k = key.expand(1, T, 1, 3)
    v = torch.zeros(1, T, 1, 2)
    start = draw(0)(1, 1, 3, 2).float()
    betas = torch.full((1, T, 1), beta)
    _, state = delta_rule(
        k, k, v, betas, initial_state=start, output_final_state=True, backend=backend
    )
    mirror = torch.eye(3) - 2 * power * torch.outer(key, key)
    assert torch.equal(state, mirror @ start)


@pytest.mark.parametrize("gate", [None, "decay"], ids=["no-gate", "decay"])
def test_nearly_equal_keys_with_beta_near_two_at_4096_tokens(gate):
    """The worst case for the triangular solve: its matrix is full of entries near 2."""
    T, H, K, V = 4096, 2, 8, 8
    normal = draw(0)
    inputs = {
        "q": normal(1, T, H, K),
        "k": unit(normal(1, 1, H, K) + 0.02 * normal(1, T, H, K)),
        "v": normal(1, T, H, V),
        "beta": (2 - 0.01 * normal(1, T, H).abs()).float().double(),
        "initial_state": normal(1, H, K, V),
    }
    if gate:
        inputs["decay"] = (1 - 1e-3 * normal(1, T, H).abs()).float().double()
        inputs["decay"][:, ::7] *= -1
    oracle = run(delta_rule, inputs, torch.float64, backend="naive")
    assert_all_close(run(delta_rule, inputs, torch.float32, backend="torch"), oracle, 1e-4)


@pytest.mark.parametrize("backend", ["naive", "torch"])
def test_state_of_one_call_is_where_the_next_goes_on(backend):
    inputs = delta_rule_inputs(2, 77, 2, 5, 3, gate="decay")
    start = inputs.pop("initial_state")
    options = {"output_final_state": True, "backend": backend}
    o, state = delta_rule(**inputs, initial_state=start, **options)
    for cut in (1, 32, 40, 76):
        head = {name: x[:, :cut] for name, x in inputs.items()}
        tail = {name: x[:, cut:] for name, x in inputs.items()}
        first, middle = delta_rule(**head, initial_state=start, **options)
        second, end = delta_rule(**tail, initial_state=middle, **options)
        assert_close(torch.cat([first, second], 1), o, 1e-12)
        assert_close(end, state, 1e-12)


@pytest.mark.parametrize("backend", ["naive", "torch"])
def test_inputs_stay_as_they_were(backend):
    inputs = delta_rule_inputs(1, 40, 2, 4, 3, gate="decay")
    before = {name: x.clone() for name, x in inputs.items()}
    delta_rule(**inputs, output_final_state=True, backend=backend)
    assert all(torch.equal(before[name], inputs[name]) for name in inputs)
