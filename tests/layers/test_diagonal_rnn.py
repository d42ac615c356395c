"""The diagonal RNN against the protocol's text, in both forms, and its initialisation."""

from __future__ import annotations

import pytest
import torch

from statetrack.layers import DiagonalRNN, DiagonalRNNConfig, DiagonalRNNState
from statetrack.layers.operations import TensorOps
from tests.layers.common import HIDDEN, inputs, make_layer, make_state
from tests.ops.common import assert_close

SWITCH = pytest.mark.parametrize("switch", [False, True], ids=["[0,1]", "[-1,1]"])


def reference(layer: DiagonalRNN, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """y [T, hidden_size] and the last h, token by token."""
    h = torch.zeros(layer.hidden_size).double()
    outputs = []
    for x_t in x:
        z = 10 * (layer.W_A.weight @ x_t + layer.W_A.bias)
        s = 1 / (1 + torch.exp(-z))
        if layer.config.allow_neg_eigval:
            s = 2 / (1 + torch.exp(-2 * z)) - 1
        h = s * h + (layer.W_B.weight @ x_t + layer.W_B.bias) * x_t
        outputs.append(h)
    return torch.stack(outputs), h


@SWITCH
def test_forward_is_the_protocol(switch):
    layer = make_layer(DiagonalRNNConfig(allow_neg_eigval=switch))
    x = inputs(2, 11)
    y, state = layer(x)
    assert isinstance(state, DiagonalRNNState)
    for n in range(2):
        expected, h = reference(layer, x[n])
        assert_close(y[n], expected, 1e-11)
        assert_close(state.h[n], h, 1e-11)


@SWITCH
def test_the_parallel_form_is_the_loop(switch):
    results = []
    for backend in ("naive", "torch"):
        layer = make_layer(DiagonalRNNConfig(allow_neg_eigval=switch))
        x = inputs(2, 100).requires_grad_()
        state = DiagonalRNNState(make_state(layer, 2).h.requires_grad_())
        y, end = layer.mix(x, state, TensorOps(backend=backend))
        loss = (y * y).sum() + end.h.sum()
        gradients = torch.autograd.grad(loss, [x, state.h, *layer.parameters()])
        results.append([y, end.h, *gradients])
    for actual, expected in zip(*reversed(results), strict=True):
        assert_close(actual, expected, 1e-11)


def test_with_the_switch_it_counts_modulo_2():
    """h changes its sign with every 1 and stays with every 0, however long."""
    layer = DiagonalRNN(2, allow_neg_eigval=True)
    with torch.no_grad():
        layer.W_A.weight.copy_(torch.tensor([[10.0, -10.0], [0.0, 0.0]]))
        for parameter in (layer.W_A.bias, layer.W_B.weight, layer.W_B.bias):
            parameter.zero_()
    bits = torch.randint(2, (1, 5000), generator=torch.Generator().manual_seed(0))
    x = torch.eye(2)[bits]
    y, _ = layer(x, DiagonalRNNState(torch.ones(1, 2)))
    assert torch.equal(y[0, :, 0], (1 - 2 * (bits[0].cumsum(0) % 2)).float())


def test_initialisation():
    """PyTorch's own, the weights once more divided by the root of the width."""
    torch.manual_seed(0)
    layer = DiagonalRNN(100)
    for projection in (layer.W_A, layer.W_B):
        assert 0.98 / 100 < projection.weight.abs().max() <= 1 / 100
        assert 0.9 / 10 < projection.bias.abs().max() <= 1 / 10


def test_parameters():
    layer = DiagonalRNN(10)
    assert sum(p.numel() for p in layer.parameters()) == 2 * (10 * 10 + 10)
    assert {name for name, _ in layer.named_parameters()} == {
        *("W_A.weight", "W_A.bias", "W_B.weight", "W_B.bias"),
    }


def test_the_state_is_float32_whatever_the_weights():
    layer = DiagonalRNN(HIDDEN).bfloat16()
    y, state = layer(inputs(1, 40).bfloat16())
    assert (y.dtype, state.h.dtype) == (torch.bfloat16, torch.float32)


def test_title():
    assert DiagonalRNNConfig().title == "Diagonal RNN [0,1]"
    assert DiagonalRNNConfig(allow_neg_eigval=True).title == "Diagonal RNN [-1,1]"
