"""The mixture of experts against its definition, and its place in a model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from statetrack.models import ExpertsConfig
from statetrack.models.experts import Experts, experts_naive
from statetrack.testing.inputs import draw
from statetrack.training import TrainingConfig
from statetrack.training.optim import make_optimizer
from tests.models.common import DELTA, make_model, small
from tests.ops.common import assert_all_close, assert_close

D = 6


def make(count: int = 5, top_k: int = 2, normalize: bool = True) -> Experts:
    """Experts in float64 with weights large enough that every part counts."""
    config = ExpertsConfig(count, top_k, size=7, shared_size=3, normalize=normalize)
    torch.manual_seed(0)
    experts = Experts(D, config).double()
    experts.init_normal_(1.0, 1.0)
    return experts


def values_and_gradients(run: object, experts: Experts, x: Tensor) -> dict[str, Tensor]:
    """Return y = run(x) and the gradients of sum(w * y), w random, by x and by all weights."""
    x = x.clone().requires_grad_()
    experts.zero_grad()
    y = run(experts, x)  # type: ignore[operator]
    (y * draw(7)(*y.shape).to(y.dtype)).sum().backward()
    return {"y": y, "x": x.grad} | {name: p.grad for name, p in experts.named_parameters()}


@pytest.mark.parametrize(
    ("count", "top_k", "normalize"),
    [(5, 2, True), (5, 2, False), (5, 1, False), (4, 4, True), (4, 4, False), (1, 1, True)],
)
@pytest.mark.parametrize("shape", [(D,), (1, D), (1, 1, D), (3, D), (2, 33, D)], ids=str)
def test_the_definition(shape: tuple[int, ...], count: int, top_k: int, normalize: bool) -> None:
    experts, x = make(count, top_k, normalize), draw(1)(*shape).double()
    expected = values_and_gradients(experts_naive, experts, x)
    assert_all_close(values_and_gradients(Experts.__call__, experts, x), expected, 1e-12)


def test_an_expert_that_no_token_chooses() -> None:
    experts, x = make(), draw(1)(9, D).double().abs()
    with torch.no_grad():
        experts.router.weight[3] = -100
        assert 3 not in experts.route(x)[1]
    expected = values_and_gradients(experts_naive, experts, x)
    found = values_and_gradients(Experts.__call__, experts, x)
    assert_all_close(found, expected, 1e-12)
    for name in ("gate_up", "down"):
        assert not found[name][3].any()
        assert found[name][0].any()


def test_gradients_by_differences() -> None:
    experts, x = make(3), draw(1)(4, D).double().requires_grad_()
    assert torch.autograd.gradcheck(experts, [x])


def test_one_expert_is_an_mlp() -> None:
    """Normalised, its weight is 1."""
    experts, x = make(1, 1), draw(1)(4, D).double()
    with torch.no_grad():
        experts.shared_down.weight.zero_()
        gate, up = (x @ experts.gate_up[0].T).chunk(2, -1)
        expected = (gate * torch.sigmoid(gate) * up) @ experts.down[0].T
        assert_close(experts(x), expected, 1e-12)


def test_weights_of_the_chosen() -> None:
    x = draw(1)(9, D).double()
    weights, chosen = make().route(x)
    assert_close(weights.sum(-1), torch.ones(9).double(), 1e-12)
    plain, same = make(normalize=False).route(x)
    assert torch.equal(chosen, same)
    assert (plain.sum(-1) < 1).all()


def test_tokens_do_not_depend_on_each_other() -> None:
    experts, x = make(), draw(1)(2, 9, D).double()
    whole = experts(x)
    for row in range(2):
        for t in range(9):
            assert_close(experts(x[row, t]), whole[row, t], 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_types(dtype: torch.dtype) -> None:
    experts, x = make(top_k=5), draw(1)(20, D)  # of fewer rounding may choose others
    expected = experts(x.double())
    y = experts.to(dtype)(x.to(dtype))
    assert y.dtype == dtype
    assert_close(y.double(), expected, 1e-5 if dtype == torch.float32 else 0.05)


def test_autocast() -> None:
    experts, x = make(top_k=5).float(), draw(1)(20, D).float()
    expected = experts(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = experts(x)
    assert y.dtype == torch.bfloat16
    assert_close(y.float(), expected, 0.05)
    y.float().sum().backward()
    assert all(p.grad.isfinite().all() for p in experts.parameters())


def test_all_their_matrices_decay() -> None:
    model = make_model(small(mixer=DELTA, experts=ExpertsConfig(size=4)))
    decayed, _ = make_optimizer(model, TrainingConfig(decay_groups="standard")).param_groups
    ids = {id(p) for p in decayed["params"]}
    assert all(id(p) in ids for block in model.blocks for p in block.mlp.parameters())
