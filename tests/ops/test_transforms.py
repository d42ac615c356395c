"""Every op under the transforms of torch: right numbers, by the torch backend if need be."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from statetrack.errors import UserError
from statetrack.ops import (
    cross_entropy,
    delta_product,
    delta_rule,
    gated_linear_attention,
    rms_norm,
    selective_scan,
    short_conv,
    slstm,
    softplus,
    swiglu,
)
from statetrack.ops.linear_scan import linear_scan
from statetrack.testing.inputs import draw, spread
from tests.ops.inputs import (
    delta_product_inputs,
    delta_rule_inputs,
    linear_attention_inputs,
    selective_scan_inputs,
)
from tests.ops.pointwise import needs_native

pytestmark = [
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated"),  # torch's own, in jvp
]

SIZES = {"B": 2, "T": 4, "H": 2, "K": 3, "V": 2}
normal = draw(0)


def without_extremes(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gates of 0 have no second derivative through their logarithm."""
    return {name: spread(x, -1, -0.1) if name == "g" else x for name, x in inputs.items()}


# name -> the op as a function of its tensors, and those
CASES: dict[str, tuple[Callable[..., object], dict[str, Tensor]]] = {
    "delta_rule": (delta_rule, without_extremes(delta_rule_inputs(**SIZES, gate="g"))),
    "delta_rule-decay": (delta_rule, delta_rule_inputs(**SIZES, gate="decay")),
    "delta_product": (
        partial(delta_product, num_householder=2),
        delta_product_inputs(**SIZES, n=2),
    ),
    "gated_linear_attention": (
        gated_linear_attention,
        linear_attention_inputs(**SIZES, gate="decay", per_channel=True),
    ),
    "selective_scan": (selective_scan, selective_scan_inputs(2, 4, 3, 2)),
    "selective_scan-[-1,1]": (
        partial(selective_scan, allow_neg_eigval=True),
        selective_scan_inputs(2, 4, 3, 2),
    ),
    "slstm": (slstm, {"x": normal(2, 4, 1, 4, 2), "R": normal(1, 4, 2, 2)}),
    "short_conv": (
        partial(short_conv, silu=True, sizes=[4, 2], head_sizes=[2, 0]),
        {"x": normal(2, 4, 6), "weight": normal(6, 3), "window": normal(2, 2, 6)},
    ),
    "rms_norm": (rms_norm, {"x": normal(2, 4, 6), "weight": normal(6)}),
    "softplus": (softplus, {"x": normal(2, 4, 6)}),
    "swiglu": (swiglu, {"x": normal(2, 4, 6)}),
    "cross_entropy": (
        lambda logits, **options: cross_entropy(
            logits, torch.tensor([0, 3, 1], device=logits.device), **options
        ),
        {"logits": normal(3, 4)},
    ),
    "linear_scan": (
        linear_scan,
        {"a": normal(2, 4, 3).tanh(), "b": normal(2, 4, 3), "h0": normal(2, 3)},
    ),
}
RECURRENCES = ("delta", "gated_linear", "selective", "slstm")
WITH_TORCH_BACKEND = ("delta", "gated_linear", "selective", "linear_scan")


def function(name: str, backend: str) -> Callable[..., Tensor]:
    """The outputs and the final state of an op, as one vector."""
    op, inputs = CASES[name]
    options: dict[str, object] = {"backend": backend}
    if name.startswith(RECURRENCES):
        options["output_final_state"] = True

    def run(*tensors: Tensor) -> Tensor:
        outputs: list[Tensor] = []
        queue = [op(**dict(zip(inputs, tensors, strict=True)), **options)]
        while queue:
            x = queue.pop(0)
            if isinstance(x, Tensor):
                outputs.append(x.flatten())
            else:
                queue[:0] = list(x)
        return torch.cat(outputs)

    return run


def tensors(name: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    return tuple(x.to(dtype, copy=True) for x in CASES[name][1].values())


def assert_right(actual, expected) -> None:
    for a, e in zip(actual, expected, strict=True):
        assert (a.double() - e).norm() <= 1e-4 * e.norm().clamp(min=1e-2)


every_op = pytest.mark.parametrize("name", CASES)


def directions(name: str) -> tuple[Tensor, ...]:
    normal = draw(1)
    return tuple(normal(*x.shape) for x in CASES[name][1].values())


@every_op
def test_forward_mode(name):
    t = directions(name)
    exact, oracle = tensors(name, torch.float64), function(name, "naive")
    jacobian = torch.func.jacrev(oracle, argnums=tuple(range(len(exact))))(*exact)
    expected = sum((J.flatten(1) @ v.flatten()) for J, v in zip(jacobian, t, strict=True))
    single = tuple(v.float() for v in t)
    _, tangent = torch.func.jvp(function(name, "auto"), tensors(name), single)
    assert_right([tangent], [expected])
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x, v) for x, v in zip(tensors(name), single, strict=True)]
        tangent = forward_ad.unpack_dual(function(name, "auto")(*duals)).tangent
    assert_right([tangent], [expected])


@every_op
def test_torch_func_grad(name):
    every = tuple(range(len(CASES[name][1])))

    def gradient(backend: str, dtype: torch.dtype):
        loss = lambda *x: function(name, backend)(*x).square().sum()  # noqa: E731
        return torch.func.grad(loss, every)(*tensors(name, dtype))

    assert_right(gradient("auto", torch.float32), gradient("naive", torch.float64))


@every_op
def test_vmap_and_gradients_of_each_sample(name):
    copies = [tuple(x * scale for x in tensors(name)) for scale in (1.0, 0.5, 0.8)]
    stacked = [torch.stack(parts) for parts in zip(*copies, strict=True)]
    run = function(name, "auto")
    assert_right(torch.vmap(run)(*stacked), [run(*copy).double() for copy in copies])
    loss = lambda *x: run(*x).square().sum()  # noqa: E731
    expected = torch.stack([torch.func.grad(loss)(*copy) for copy in copies]).double()
    assert_right([torch.vmap(torch.func.grad(loss))(*stacked)], [expected])


def second(name: str, backend: str, dtype: torch.dtype):
    """Gradients of a function of the gradients."""
    leaves = [x.requires_grad_() for x in tensors(name, dtype)]
    y = function(name, backend)(*leaves)
    first = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
    weights = directions(name)
    inner = sum((g * w.to(dtype)).sum() for g, w in zip(first, weights, strict=True))
    return torch.autograd.grad(inner, leaves)


@every_op
def test_second_derivatives(name):
    assert_right(second(name, "auto", torch.float32), second(name, "naive", torch.float64))
    if name.startswith(WITH_TORCH_BACKEND):
        assert_right(second(name, "torch", torch.float32), second(name, "naive", torch.float64))


@pytest.mark.parametrize(
    ("name", "backend"),
    [(name, "auto") for name in CASES]
    + [(name, "torch") for name in CASES if name.startswith(WITH_TORCH_BACKEND)],
)
def test_a_batch_of_gradients(name, backend):
    leaves = [x.requires_grad_() for x in tensors(name)]
    y = function(name, backend)(*leaves)
    few = torch.eye(y.numel())[:: max(1, y.numel() // 5)].reshape(-1, *y.shape)
    batch = torch.autograd.grad(y, leaves, few, is_grads_batched=True, retain_graph=True)
    single = [torch.autograd.grad(y, leaves, row, retain_graph=True) for row in few]
    assert_right(batch, [torch.stack(rows).double() for rows in zip(*single, strict=True)])


@every_op
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing(name, use_reentrant):
    results = []
    for wrap in (lambda run, *x: run(*x), partial(checkpoint, use_reentrant=use_reentrant)):
        leaves = [x.clone().requires_grad_() for x in tensors(name)]
        wrap(function(name, "auto"), *leaves).square().sum().backward()
        results.append([x.grad for x in leaves])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_an_input_that_depends_on_another_counts_once():
    inputs = delta_rule_inputs(1, 3, 1, 2, 2)
    k, beta = inputs["k"].float(), inputs["beta"].float()

    def derivative(backend: str) -> Tensor:
        leaf = k.clone().requires_grad_()
        o, _ = delta_rule(leaf * 2, leaf, leaf.sin(), beta, backend=backend)
        (first,) = torch.autograd.grad(o.square().sum(), leaf, create_graph=True)
        return torch.autograd.grad(first.square().sum(), leaf)[0]

    assert_right([derivative("auto")], [derivative("naive").double()])


@every_op
def test_meta_tensors(name):
    y = function(name, "auto")(*(x.to("meta") for x in tensors(name)))
    assert y.is_meta
    assert y.shape == function(name, "auto")(*tensors(name)).shape


@every_op
def test_implied_zeros(name):
    run = function(name, "auto")
    with torch.no_grad():
        for i in range(len(tensors(name))):
            zero, implied = list(tensors(name)), list(tensors(name))
            zero[i] = torch.zeros_like(zero[i])
            implied[i] = torch._efficientzerotensor(zero[i].shape)
            assert_right([run(*implied)], [run(*zero).double()])


@needs_native
@pytest.mark.native
@pytest.mark.parametrize("name", sorted(CASES.keys() - {"linear_scan"}))
def test_freed_storage_is_refused(name):
    for i in range(len(CASES[name][1])):
        given = list(tensors(name))
        given[i].untyped_storage().resize_(0)
        with pytest.raises(UserError, match="has no memory: its storage was freed"):
            function(name, "native")(*given)


@pytest.mark.parametrize("backend", ["auto", "torch", "naive"])
def test_a_learned_scale(backend):
    inputs = delta_rule_inputs(1, 3, 1, 2, 2)
    del inputs["initial_state"]

    def loss(scale: Tensor, backend: str, dtype: torch.dtype) -> Tensor:
        given = {name: x.to(dtype) for name, x in inputs.items()}
        o, _ = delta_rule(**given, scale=scale, backend=backend)
        return o.square().sum()

    scale = torch.tensor(0.7, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss(scale, backend, torch.float32), scale)
    exact = scale.detach().double()
    step = 1e-6
    ends = [loss(exact + s * step, "naive", torch.float64) for s in (1, -1)]
    assert_right([gradient], [(ends[0] - ends[1]) / (2 * step)])
    with pytest.raises(UserError, match="scale must be one number"):
        loss(torch.ones(2), backend, torch.float32)
