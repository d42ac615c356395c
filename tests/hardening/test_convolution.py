"""Models whose convolution hardly matters become exact ones without; others are kept."""

from __future__ import annotations

import copy
import re
from dataclasses import replace

import pytest
import torch

from statetrack.errors import UserError
from statetrack.hardening import harden
from statetrack.hardening.agreement import agree
from statetrack.hardening.diagonal import read_gates
from statetrack.hardening.inputs import LayerInputs
from statetrack.hardening.search import without_convolution
from statetrack.layers import (
    DeltaNetConfig,
    DeltaProductConfig,
    GatedDeltaNetConfig,
    GLAConfig,
    MambaConfig,
    MixerConfig,
)
from statetrack.models import ModelConfig, SequenceModel
from tests.hardening.test_harden import BATCH, PARITY, accuracy, noisy_parity

TOKENS = torch.from_numpy(BATCH.tokens)


@torch.no_grad()
def convolved_parity(taps: list[float]) -> SequenceModel:
    """The noisy model with a convolution of these weights, the last for the current token."""
    plain = noisy_parity()
    mixer = replace(plain.config.mixers[0], conv_size=len(taps))
    model = SequenceModel(replace(plain.config, mixer=mixer))
    layer = model.blocks[0].mixer
    weights = {**plain.state_dict(), "blocks.0.mixer.conv.weight": layer.conv.weight}
    model.load_state_dict(weights)
    layer.qkv_proj.weight[:16].mul_(4)  # q and k, which now pass SiLU
    layer.conv.weight.copy_(torch.tensor(taps))
    return model.eval()


def test_a_convolution_that_hardly_matters():
    model = convolved_parity([0.03, -0.04, 0.05, 1.0])
    result = harden(model, BATCH)
    assert result.changed
    assert result.settings[0]["delay"] == result.model.config.mixers[0].conv_size == 0
    assert "Settings of layer 0: delay 0, tolerance" in "\n".join(result.sentences(verbose=True))
    assert accuracy(model, 2000) < 0.9
    assert accuracy(result.model, 20_000) == 1.0
    read = result.automaton(PARITY.vocab)
    assert read.states == 2
    assert agree(read, PARITY.automaton())


def test_a_convolution_that_matters():
    model = convolved_parity([0.0, 0.0, 1.0, 0.0])  # keys and values of the token before
    with torch.no_grad():
        answers = model(TOKENS)[0].argmax(-1).numpy()
    result = harden(model, BATCH._replace(targets=answers))
    assert result.model is model
    message = (
        r"its convolution mixes tokens: without it (\d+) answers are wrong instead of 0, with a "
    )
    (wrong,) = re.match(message, result.reason).groups()
    with torch.no_grad():
        wide = copy.deepcopy(model).double()
        made = [
            m(TOKENS)[0].argmax(-1).numpy()
            for m in without_convolution(wide, LayerInputs.of_tokens(wide, BATCH))
        ]
    assert int(wrong) in [(got != answers).sum() for got in made]
    assert int(wrong) > 0
    assert result.loss[1] > result.loss[0]
    with pytest.raises(UserError, match="convolution, whose window would count as state"):
        result.automaton(PARITY.vocab)


@pytest.mark.parametrize(
    "mixer",
    [
        DeltaNetConfig(num_heads=2),
        DeltaProductConfig(num_heads=2, num_householder=3),
        GatedDeltaNetConfig(num_heads=2),
        GLAConfig(num_heads=2, conv_size=3),
        MambaConfig(),
    ],
    ids=lambda mixer: mixer.name,
)
def test_nothing_is_lost_where_the_convolution_sees_the_current_token_alone(mixer: MixerConfig):
    torch.manual_seed(0)
    mixer = replace(mixer, allow_neg_eigval=True)
    config = ModelConfig(vocab_size=3, hidden_size=16, num_layers=1, mixer=mixer)
    model = SequenceModel(config).double().eval()
    layer = model.blocks[0].mixer
    with torch.no_grad():
        layer.conv.weight[:, :-1] = 0.0
        layer.conv.weight[:, -1] *= 20.0  # long keys: no matter the normalisation's epsilon
        expected = model(TOKENS)[0]
        plain, moved, *late = without_convolution(model, LayerInputs.of_tokens(model, BATCH))
        for made in (plain, moved):
            assert made.blocks[0].mixer.conv is None
            assert torch.allclose(made(TOKENS)[0], expected, atol=1e-5)
        for made in late:
            assert not torch.allclose(made(TOKENS)[0], expected, atol=1e-2)
    assert len(late) == (6 if isinstance(mixer, MambaConfig) else 0)


@pytest.mark.parametrize("delay", [1, 2])
@torch.no_grad()
def test_a_mamba_with_a_delay(delay: int):
    torch.manual_seed(0)
    mixer = MambaConfig(allow_neg_eigval=True)
    config = ModelConfig(vocab_size=3, hidden_size=16, num_layers=1, mixer=mixer)
    model = SequenceModel(config).double().eval()
    conv = model.blocks[0].mixer.conv
    conv.weight.zero_()
    conv.weight[:, -1 - delay] = 2.0
    conv.bias.zero_()
    inputs = LayerInputs.of_tokens(model, BATCH)
    made = list(without_convolution(model, inputs))[2 * delay]
    assert inputs.mixer(made).conv_width == delay + 1
    assert torch.allclose(made(TOKENS)[0], model(TOKENS)[0], atol=1e-9)
    # the gates of a token are those that it has when its turn comes
    late = model.transitions(TOKENS[:1])[0].values[0, delay:]
    assert torch.allclose(
        read_gates(inputs.mixer(made), inputs.x)[inputs.index[0, :-delay]], late, atol=1e-9
    )


def test_averages_by_the_token_before():
    model = noisy_parity().double()
    inputs = LayerInputs.of_tokens(model, BATCH)
    values = torch.arange(TOKENS.numel()).double().view_as(TOKENS)
    asked = inputs.index[:, 2:] >= 0
    for i, mean in enumerate(inputs.mean_by_input(values, 2)):
        expected = [
            float(v)
            for here, before, v in zip(
                asked.flatten(),
                inputs.index[:, :-2].flatten(),
                values[:, 2:].flatten(),
                strict=True,
            )
            if here and before == i
        ]
        assert float(mean) == pytest.approx(sum(expected) / len(expected))
    assert inputs.mean_by_input(values, TOKENS.shape[1]).tolist() == [0.0, 0.0]
