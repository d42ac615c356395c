"""Replacing and restoring a layer's `forward`, without transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from statetrack.errors import UserError
from statetrack.integrations.hf import HF_LAYERS, use_native_kernels


def double(x: Tensor) -> Tensor:
    """What the layer calls."""
    return 2 * x


class Layer(nn.Module):
    """A layer that calls a function of its module."""

    def forward(self, x: Tensor) -> Tensor:
        """2 x, or 3 x where it is replaced."""
        return double(x)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    functions = {"double": lambda x: 3 * x}
    monkeypatch.setitem(HF_LAYERS, f"{Layer.__module__}.Layer", functions)
    return nn.Sequential(Layer(), Layer())


def test_there_and_back(model: nn.Module) -> None:
    x = torch.ones(1)
    with use_native_kernels(model) as handle:
        assert handle.layers == list(model)
        assert model(x) == 9
    assert model(x) == 4
    assert handle.layers == []
    handle.undo()


def test_a_forward_that_is_no_longer_ours(model: nn.Module) -> None:
    handle = use_native_kernels(model)
    ours = model[1].forward
    model[1].forward = other = lambda x: 5 * x
    with pytest.raises(UserError, match="forward of a Layer has been replaced since; undo that"):
        handle.undo()
    assert model[1].forward is other
    assert model(torch.ones(1)) == 15  # the other layer has been left alone, too
    model[1].forward = ours
    handle.undo()
    assert model(torch.ones(1)) == 4


@pytest.mark.parametrize("wrong", ["state-spaces/mamba-130m-hf", None])
def test_what_is_no_model(wrong: Any) -> None:
    with pytest.raises(
        UserError, match=r"use_native_kernels takes a model, a torch\.nn\.Module; got "
    ):
        use_native_kernels(wrong)
