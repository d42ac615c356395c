"""Beside flash-linear-attention transformers calls GPU kernels; with native kernels it does not."""

from __future__ import annotations

import pytest
import torch

from statetrack.integrations.hf import use_native_kernels
from statetrack.models.convert import convert
from tests.ops.common import assert_close
from tests.peers.common import SINGLE
from tests.peers.hf import models


@torch.no_grad()
def test_a_model_that_asks_for_a_gpu_runs() -> None:
    model, x = models.olmo_hybrid(), models.tokens(2, 30)
    with pytest.raises(RuntimeError, match="active drivers"):
        model(x)
    with use_native_kernels(model):
        logits = model(x).logits
    assert_close(logits, convert(model.config.to_dict(), model.state_dict())(x)[0], SINGLE)
