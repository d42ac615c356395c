"""What the comparisons with the layers of xlstm share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from statetrack.layers import Mixer
from statetrack.testing.inputs import draw
from tests.ops.common import assert_close


def assert_same_layer(
    layer: Mixer,
    peer: nn.Module,
    mapped: Callable[[dict[str, Tensor]], dict[str, Tensor]],
    length: int,
    tolerance: float,
    gradient_tolerance: float,
) -> None:
    """Outputs, and the gradients of x and of all parameters, which `mapped` gives our names."""
    normal = draw(2)
    shape = 2, length, layer.hidden_size
    x, weights = normal(*shape).requires_grad_(), normal(*shape)
    expected, (y, _) = peer(x), layer(x)
    assert_close(y, expected, tolerance)

    names = [name for name, _ in peer.named_parameters()]
    first, *rest = torch.autograd.grad((weights * expected).sum(), [x, *peer.parameters()])
    right = mapped(dict(zip(names, rest, strict=True)))
    right["norm.weight"] -= 1  # the map of weights, not of gradients, adds it
    parameters = dict(layer.named_parameters())
    got, *gradients = torch.autograd.grad((weights * y).sum(), [x, *parameters.values()])
    assert_close(got, first, gradient_tolerance, "gradient of x")
    for name, gradient in zip(parameters, gradients, strict=True):
        assert_close(gradient, right[name], gradient_tolerance, f"gradient of {name}")
