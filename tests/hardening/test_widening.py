"""A model with more tokens than dimensions gets more dimensions and keeps its answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from statetrack.hardening.inputs import LayerInputs
from statetrack.hardening.widening import widen
from statetrack.layers import DeltaNetConfig, DeltaProductConfig, GatedDeltaNetConfig, GLAConfig
from statetrack.layers.inverse import DependentError, independent
from statetrack.models import ModelConfig, SequenceModel
from statetrack.tasks import generator, make_task

S4 = make_task("S4")
BATCH = S4.sample(generator(0, "validation", 0), np.full(64, 10))


@pytest.mark.parametrize("options", [{}, {"norm": "none"}, {"tie_embeddings": True, "mlp": "none"}])
@pytest.mark.parametrize("mixer", [DeltaNetConfig, DeltaProductConfig, GatedDeltaNetConfig])
def test_answers_stay_and_inputs_become_independent(mixer, options):
    torch.manual_seed(0)
    layer = mixer(allow_neg_eigval=True, num_heads=2)
    config = ModelConfig(len(S4.vocab), hidden_size=8, num_layers=2, mixer=layer, **options)
    model = SequenceModel(config).double().eval()
    inputs = LayerInputs.of_tokens(model, BATCH)
    assert not independent(inputs.x)
    made, wide = widen(model, inputs)
    assert independent(wide.x)
    assert made.config.hidden_size >= 25
    tokens = torch.from_numpy(BATCH.tokens)
    with torch.no_grad():
        torch.testing.assert_close(made(tokens)[0], model(tokens)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options", [{"mixer": GLAConfig(num_heads=2)}, {"norm": "layer", "mixer": DeltaNetConfig()}]
)
def test_what_cannot_be_widened(options):
    model = SequenceModel(ModelConfig(len(S4.vocab), hidden_size=8, **options)).double()
    with pytest.raises(DependentError):
        widen(model, LayerInputs.of_tokens(model, BATCH))
