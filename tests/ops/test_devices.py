"""The backends in plain torch create their tensors on the device of the inputs, on GPUs too.

Without a GPU, meta tensors, which have no memory, tell. Where meta is the default device, a call
that forgets the device creates one, and it cannot be computed with; and where inputs are meta
tensors, one on the CPU cannot meet them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from statetrack.errors import UserError
from statetrack.ops import (
    SLSTMMemory,
    delta_product,
    delta_product_step,
    delta_rule,
    delta_rule_step,
    gated_linear_attention,
    gated_linear_attention_step,
    selective_scan,
    selective_scan_step,
    short_conv,
    slstm,
)
from statetrack.ops.ragged import Ragged
from statetrack.testing.case import tensors
from statetrack.testing.inputs import Tensors, draw
from tests.ops.inputs import (
    delta_product_inputs,
    delta_rule_inputs,
    linear_attention_inputs,
    selective_scan_inputs,
)
from tests.ops.test_transforms import CASES, RECURRENCES, WITH_TORCH_BACKEND

T = 70  # more than a chunk of the torch backend
BOUNDS = [0, 3, 4, T]
normal = draw(0)


def packed(op: Callable[..., Any]) -> Callable[..., Any]:
    """The op on sequences in one row."""
    return partial(op, cu_seqlens=torch.tensor(BOUNDS))


def sequences() -> dict[str, tuple[Callable[..., Any], Tensors]]:
    """Long sequences in a batch with an initial state, and packed ones."""
    long: dict[str, tuple[Callable[..., Any], Callable[..., Tensors]]] = {
        "delta_product": (
            partial(delta_product, num_householder=2),
            partial(delta_product_inputs, n=2, gate="decay"),
        ),
        "gated_linear_attention": (gated_linear_attention, linear_attention_inputs),
        "gated_linear_attention-channels": (
            gated_linear_attention,
            partial(linear_attention_inputs, gate="decay", per_channel=True),
        ),
    }
    found: dict[str, tuple[Callable[..., Any], Tensors]] = {}
    for name, (op, make) in long.items():
        inputs = make(1, T, 1, 2, 3)
        found[f"{name}-long"] = op, inputs
        stateless = {key: x for key, x in inputs.items() if key != "initial_state"}
        found[f"{name}-packed"] = packed(op), stateless
    inputs = selective_scan_inputs(1, T, 2, 3)
    states = normal(len(BOUNDS) - 1, 2, 3)
    found["selective_scan-long"] = selective_scan, inputs
    found["selective_scan-packed"] = packed(selective_scan), {**inputs, "initial_state": states}
    return found


def masked(op: Callable[..., Any]) -> Callable[..., Any]:
    """The op on two rows of four tokens, of which one is padded."""
    return partial(op, mask=torch.tensor([[True] * 4, [True, True, False, False]]))


def slstm_from(h: Tensor, x: Tensor, R: Tensor, **options: Any) -> Any:
    return slstm(x, R, initial_state=SLSTMMemory(h, h, h, h), **options)


EVERY: dict[str, tuple[Callable[..., Any], Tensors]] = {
    **CASES,
    **sequences(),
    "slstm-masked": (masked(slstm), CASES["slstm"][1]),
    "slstm-state": (slstm_from, {"h": normal(2, 1, 2), **CASES["slstm"][1]}),
    "short_conv-masked": (
        masked(short_conv),
        {"x": normal(2, 4, 3), "weight": normal(3, 3), "bias": normal(3)},
    ),
    "short_conv-packed": (
        packed(partial(short_conv, silu=True)),
        {"x": normal(1, T, 3), "weight": normal(3, 4)},
    ),
}
BACKENDS = [
    pytest.param(name, backend, id=f"{name}-{backend}")
    for name in EVERY
    for backend in ("naive", "torch")
    if backend == "naive" or name.startswith(WITH_TORCH_BACKEND)
]


def run(name: str, backend: str, inputs: Tensors) -> list[Tensor]:
    """All outputs and gradients."""
    options = {"output_final_state": True} if name.startswith(RECURRENCES) else {}
    outputs = tensors(EVERY[name][0](**inputs, backend=backend, **options))
    loss = sum(y.square().sum() for y in outputs)
    assert isinstance(loss, Tensor)
    return [*outputs, *torch.autograd.grad(loss, list(inputs.values()))]


def leaves(name: str, device: str = "cpu") -> Tensors:
    return {
        key: x.to(device, torch.float32, copy=True).requires_grad_()
        for key, x in EVERY[name][1].items()
    }


@pytest.mark.parametrize(("name", "backend"), BACKENDS)
def test_no_call_forgets_the_device(name, backend):
    inputs = leaves(name)
    expected = run(name, backend, inputs)
    with torch.device("meta"):
        actual = run(name, backend, inputs)
    assert all(torch.equal(a, e) for a, e in zip(actual, expected, strict=True))


@pytest.mark.parametrize(
    ("name", "backend"),
    # bounds and masks are values that Python reads
    [p for p in BACKENDS if not str(p.values[0]).endswith(("packed", "masked"))],
)
def test_results_are_on_the_device_of_the_inputs(name, backend):
    assert all(x.is_meta for x in run(name, backend, leaves(name, "meta")))


def test_rows_with_a_mask():
    mask, x = normal(2, 5) > 0, normal(2, 5, 3)
    with torch.device("meta"):
        ragged = Ragged.from_mask(mask)
        y = ragged.unpad(ragged.pad(x))
    assert torch.equal(y, x * mask[..., None])


def test_both_checks_find_what_forgets_the_device(monkeypatch):
    forgetful = lambda x, **options: x + torch.arange(3.0)  # noqa: E731
    monkeypatch.setitem(EVERY, "forgetful", (forgetful, {"x": torch.ones(3)}))
    with pytest.raises(RuntimeError, match="device"):
        test_no_call_forgets_the_device("forgetful", "naive")
    with pytest.raises(RuntimeError, match="device"):
        test_results_are_on_the_device_of_the_inputs("forgetful", "naive")


def delta_inputs(make: Callable[..., Tensors], **options: Any) -> Tensors:
    """Those of one token, with the state by the name that steps have for it."""
    inputs = {name: x.float() for name, x in make(2, 1, 2, 3, 4, **options).items()}
    state = inputs.pop("initial_state")
    return {"state": state, **{name: x[:, 0] for name, x in inputs.items()}}


PRODUCT = delta_inputs(delta_rule_inputs, gate="g")
SCAN = {name: x.float() for name, x in selective_scan_inputs(2, 1, 3, 2).items()}
STEPS: dict[str, tuple[Callable[..., Tensor], Tensors]] = {
    "delta_rule": (delta_rule_step, delta_inputs(delta_rule_inputs, gate="decay")),
    "delta_product": (
        delta_product_step,
        {name: x[:, None] if name in ("k", "v", "beta") else x for name, x in PRODUCT.items()},
    ),
    "gated_linear_attention": (
        gated_linear_attention_step,
        delta_inputs(linear_attention_inputs, gate="g", per_channel=True),
    ),
    "selective_scan": (
        selective_scan_step,
        {"state": SCAN.pop("initial_state")}
        | {name: x if name in ("A", "D") else x[:, 0] for name, x in SCAN.items()},
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps(name):
    step, inputs = STEPS[name]
    results = []
    for device in ("cpu", "meta"):
        given = {name: x.clone() for name, x in inputs.items()}
        with torch.device(device):
            results.append((step(**given, backend="torch"), given["state"]))
    assert all(torch.equal(a, e) for a, e in zip(*results, strict=True))
    assert not torch.equal(given["state"], inputs["state"])
    assert step(**{name: x.to("meta") for name, x in inputs.items()}, backend="torch").is_meta


@pytest.mark.parametrize("backend", ["auto", "triton"])
def test_triton_is_for_gpus(backend):
    """On the CPU it is neither chosen nor, if asked for, replaced by another."""
    inputs = {name: x.float() for name, x in delta_rule_inputs(1, 2, 1, 2, 2).items()}
    _, token = STEPS["delta_rule"]
    token = {name: x.clone() for name, x in token.items()}
    if backend == "auto":
        assert delta_rule(**inputs)[0].isfinite().all()
        assert delta_rule_step(**token).isfinite().all()
        assert "statetrack.ops.recurrence.gpu" not in sys.modules
        return
    reason = "it is not installed: pip install|it needs tensors on a GPU"
    with pytest.raises(UserError, match=f"delta_rule cannot use its backend triton: ({reason})"):
        delta_rule(**inputs, backend="triton")
    with pytest.raises(UserError, match=f"step cannot use its backend triton: ({reason})"):
        delta_rule_step(**token, backend="triton")
