"""The naive loops against the formulas written another way, and all gradients by differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from statetrack.ops import delta_rule, selective_scan
from statetrack.ops.recurrence import chunk_delta as chunk
from statetrack.ops.selective_scan import blocked
from tests.ops.common import assert_close
from tests.ops.inputs import delta_rule_inputs, selective_scan_inputs

BACKENDS = ["naive", "torch"]


def delta_rule_by_matrices(q, k, v, beta, initial_state, g=None, decay=None):
    """S_t = A_t S_{t-1} + beta_t k_t v_t^T with A_t = a_t (I - beta_t k_t k_t^T), head by head."""
    B, T, H, K = q.shape
    outputs = np.empty((B, T, H, v.shape[-1]))
    states = np.empty((B, H, K, v.shape[-1]))
    for b, h in np.ndindex(B, H):
        S = initial_state[b, h]
        for t in range(T):
            gate = 1.0
            if g is not None:
                gate = math.exp(g[b, t, h])
            if decay is not None:
                gate = decay[b, t, h]
            key, value, strength = k[b, t, h], v[b, t, h], beta[b, t, h]
            A = gate * (np.eye(K) - strength * np.outer(key, key))
            S = A @ S + strength * np.outer(key, value)
            outputs[b, t, h] = S.T @ q[b, t, h] / math.sqrt(K)
        states[b, h] = S
    return outputs, states


def selective_scan_unrolled(u, delta, A, B, C, initial_state, D=None, z=None, *, switch):
    """h_t = sum over s <= t of (a_t ... a_{s+1}) delta_s B_s u_s, one scalar at a time."""
    batch, T, channels = u.shape
    outputs = np.zeros((batch, T, channels))
    states = np.zeros(initial_state.shape)
    for b, d in np.ndindex(batch, channels):
        for n in range(A.shape[1]):
            a = [math.exp(x * A[d, n]) for x in delta[b, :, d]]
            if switch:
                a = [2 * x - 1 for x in a]
            writes = [initial_state[b, d, n], *(delta[b, :, d] * B[b, :, n] * u[b, :, d])]
            for t in range(T):
                states[b, d, n] = sum(
                    math.prod(a[s : t + 1]) * w for s, w in enumerate(writes[: t + 2])
                )
                outputs[b, t, d] += C[b, t, n] * states[b, d, n]
    if D is not None:
        outputs += D * u
    if z is not None:
        outputs *= z / (1 + np.exp(-z))
    return outputs, states


def assert_equals_arrays(result, arrays):
    for actual, expected in zip(result, arrays, strict=True):
        assert_close(actual, torch.from_numpy(expected), 1e-12)


@pytest.mark.parametrize("gate", [None, "g", "decay"], ids=["no-gate", "g", "decay"])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1, 1), (2, 6, 3, 5, 2), (1, 17, 1, 2, 7)], ids=["least", "wide-k", "wide-v"]
)
def test_delta_rule_is_what_its_docstring_says(shape, gate):
    inputs = delta_rule_inputs(*shape, gate=gate)
    result = delta_rule(**inputs, output_final_state=True, backend="naive")
    arrays = {name: x.numpy() for name, x in inputs.items()}
    assert_equals_arrays(result, delta_rule_by_matrices(**arrays))


def test_delta_rule_takes_keys_as_they_are():
    inputs = delta_rule_inputs(1, 9, 2, 3, 4)
    inputs["k"] = 1.5 * inputs["k"]
    arrays = {name: x.numpy() for name, x in inputs.items()}
    for backend in BACKENDS:
        result = delta_rule(**inputs, output_final_state=True, backend=backend)
        assert_equals_arrays(result, delta_rule_by_matrices(**arrays))


@pytest.mark.parametrize("switch", [False, True], ids=["[0,1]", "[-1,1]"])
@pytest.mark.parametrize("extras", [True, False], ids=["D-and-z", "plain"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 9, 3, 5)], ids=["least", "odd"])
def test_selective_scan_is_what_its_docstring_says(shape, extras, switch):
    inputs = selective_scan_inputs(*shape, skip=extras, gate=extras)
    result = selective_scan(
        **inputs, allow_neg_eigval=switch, output_final_state=True, backend="naive"
    )
    arrays = {name: x.numpy() for name, x in inputs.items()}
    assert_equals_arrays(result, selective_scan_unrolled(**arrays, switch=switch))


@pytest.mark.parametrize("gate", [None, "g", "decay"], ids=["no-gate", "g", "decay"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_the_delta_rule_by_finite_differences(monkeypatch, backend, gate):
    monkeypatch.setattr(chunk, "MAX_CHUNK", 2)
    inputs = delta_rule_inputs(1, 5, 1, 3, 2, gate=gate)
    if gate == "g":  # differences cannot be taken at -inf
        inputs["g"] = inputs["g"].clamp(min=-3.0)
    names = list(inputs)
    for x in inputs.values():
        x.requires_grad_()

    def run(*tensors):
        named = dict(zip(names, tensors, strict=True))
        return delta_rule(**named, output_final_state=True, backend=backend)

    assert gradcheck(run, tuple(inputs.values()))


@pytest.mark.parametrize("switch", [False, True], ids=["[0,1]", "[-1,1]"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_the_scan_by_finite_differences(monkeypatch, backend, switch):
    monkeypatch.setattr(blocked, "MAX_ELEMENTS", 4 * 4)  # segments of 4 and 3 tokens
    inputs = selective_scan_inputs(1, 7, 2, 2)
    names = list(inputs)
    for x in inputs.values():
        x.requires_grad_()

    def run(*tensors):
        named = dict(zip(names, tensors, strict=True))
        return selective_scan(
            **named, allow_neg_eigval=switch, output_final_state=True, backend=backend
        )

    assert gradcheck(run, tuple(inputs.values()))
