"""Several layers: a later one gets the states of those before it, or needs no memory."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from statetrack.errors import UserError
from statetrack.hardening import harden, householder, search
from statetrack.hardening.agreement import agree
from statetrack.hardening.automaton import read_automaton
from statetrack.hardening.candidate import Judge
from statetrack.hardening.inputs import LayerInputs
from statetrack.hardening.search import NoCandidateError, Progress, Search
from statetrack.layers import (
    DeltaNetConfig,
    DeltaProductConfig,
    DiagonalRNNConfig,
    GatedDeltaNetConfig,
    GatedDeltaProductConfig,
    GLAConfig,
    MambaConfig,
    MixerConfig,
)
from statetrack.layers.inverse import inverse_silu
from statetrack.models import ModelConfig, SequenceModel
from statetrack.tasks import Batch, generator, make_task
from statetrack.training import evaluate

COUNT = make_task("regex:(0*10*10*10*10*10*1)*0*", supervision="dense")  # ones modulo 6
BATCH = COUNT.sample(generator(0, "validation", 0), np.full(64, 40))
ZERO, ONE = COUNT.vocab.index("0"), COUNT.vocab.index("1")
PARITY = 12  # the place in the residual stream that the first layer writes to
NONE = {"embedding": "one_hot", "norm": "none", "mlp": "none", "final_norm": False}


@torch.no_grad()
def noisy_counter(noise: float) -> SequenceModel:
    """Ones modulo 6 with one reflection a token: the first layer flips between even and odd, and
    tells the second one in which of two lines to reflect, which are 60 degrees apart."""
    mixer = DeltaNetConfig(allow_neg_eigval=True, num_heads=1, conv_size=0, output_norm_eps=1e-2)
    model = SequenceModel(
        ModelConfig(vocab_size=9, hidden_size=16, mixer=mixer, head_bias=True, **NONE)
    )
    for p in model.parameters():
        p.zero_()
    for block in model.blocks:
        layer = block.mixer
        layer.norm.weight.fill_(1.0)
        layer.beta.proj.weight[0, ONE] = 60.0
        layer.qkv_proj.weight[0, [ZERO, ONE]] = 1.0  # q
    first, second = (block.mixer for block in model.blocks)
    _, k, v = first.qkv_proj.weight.split(16)
    k[0, [ZERO, ONE]] = v[0, ONE] = 1.0
    first.o_proj.weight[PARITY, 0] = 1.0
    odd_is, _ = first(model.embed(torch.tensor([[ONE]])))
    first.o_proj.weight /= odd_is[0, 0, PARITY]  # so that it is 1
    _, k, v = second.qkv_proj.weight.split(16)
    even = torch.tensor([0.5, math.sqrt(0.75)])
    odd = torch.tensor([1.0, 0.0])
    k[:2, ONE], k[:2, PARITY] = even, odd - even
    k[1, ZERO] = 1.0
    centre = torch.tensor([[1.0, 0.3], [0.5, 1.0]])  # [K, V]: both lines go through it
    values = [inverse_silu((line @ centre).double()).float() for line in (even, odd)]
    v[:2, ONE], v[:2, PARITY] = values[0], values[1] - values[0]
    second.o_proj.weight[14:, :2] = torch.eye(2)
    model.head = torch.nn.Identity()
    stream, _ = model(torch.full((1, 6), ONE))
    points = stream[0, [5, 0, 1, 2, 3, 4]]  # by the number of ones
    model.head = torch.nn.Linear(16, 9)
    model.head.weight.zero_()
    model.head.weight[3:] = 20 * points
    model.head.bias[:] = -100.0
    model.head.bias[3:] = -10 * points.square().sum(1)  # the nearest point
    torch.manual_seed(0)
    for block in model.blocks:
        block.mixer.beta.proj.weight[0, [ZERO, ONE]] = torch.tensor([-8.0, 8.0])
        for p in block.mixer.parameters():
            p += noise * torch.randn_like(p)
    return model.eval()


def test_two_layers_that_count():
    model = noisy_counter(noise=1e-3)
    result = harden(model, BATCH)
    assert result.changed, result
    assert [component.name for component in result.components] == [
        "layer 0 head 0",
        "layer 1 head 0",
    ]
    assert all(component.error is not None for component in result.components)
    assert len(result.settings) == 2
    before, after = (
        evaluate(m, COUNT, 20_000, samples=4).token_accuracy for m in (model, result.model)
    )
    assert before < 0.5
    assert after == 1.0
    read = result.automaton(COUNT.vocab)
    assert read.states == 6
    assert agree(read, COUNT.automaton())
    told = "\n".join(result.sentences(verbose=True))
    assert "Settings of layer 0: tolerance " in told
    assert "Settings of layer 1: tolerance " in told
    assert "Settings" not in str(result)


MIXERS: list[MixerConfig] = [
    DeltaNetConfig(allow_neg_eigval=True, num_heads=2, conv_size=0),
    DeltaProductConfig(allow_neg_eigval=True, num_heads=2, conv_size=0, num_householder=3),
    GatedDeltaNetConfig(allow_neg_eigval=True, num_heads=2, conv_size=0),
    GatedDeltaProductConfig(allow_neg_eigval=True, num_heads=2, conv_size=0),
    MambaConfig(allow_neg_eigval=True, conv_size=0),
    GLAConfig(allow_neg_eigval=True, num_heads=2, conv_size=0),
    DiagonalRNNConfig(allow_neg_eigval=True),
]


@pytest.mark.parametrize("mixer", MIXERS, ids=lambda mixer: mixer.name)
def test_a_layer_without_memory(mixer):
    """Its output depends on the current input alone, for inputs never seen as well."""
    torch.manual_seed(0)
    model = SequenceModel(ModelConfig(vocab_size=9, hidden_size=16, mixer=mixer)).double().eval()
    inputs = LayerInputs.of_tokens(model, BATCH).next_layer(model)
    layer = inputs.mixer(model).memoryless(inputs.x)
    made = inputs.with_output(inputs.replace_mixer(model, layer), inputs.run(model)[1])
    layer = inputs.mixer(made)
    x = torch.randn(2, 12, 16, dtype=torch.float64)
    x[1, -1] = x[0, -1]
    y, _ = layer(x)
    assert y[0, -1].abs().max() > 0
    assert (y[0, -2] - y[1, -2]).abs().max() > 1e-3
    torch.testing.assert_close(y[0, -1], y[1, -1], rtol=1e-6, atol=1e-9)
    alone, _ = layer(x[:1, -1:])
    torch.testing.assert_close(alone[0, 0], y[0, -1], rtol=1e-6, atol=1e-9)
    first = made.blocks[0].state_dict()
    assert all(torch.equal(w, first[name]) for name, w in model.blocks[0].state_dict().items())


def test_the_inputs_of_a_later_layer():
    model = noisy_counter(noise=0.0).double()
    with torch.no_grad():
        for block in model.blocks:
            block.mixer.beta.proj.weight[0, [ZERO, ONE]] = torch.tensor([-800.0, 800.0]).double()
            block.mixer.qkv_proj.weight[16:32] *= 1e8  # beside which the keys' epsilon is nothing
    above = LayerInputs.of_tokens(model, BATCH).next_layer(model)
    assert above.layer == 1
    assert len(above.x) == 4  # the tokens 0 and 1, with an even and an odd number of ones
    parity = (above.tokens == ONE).cumsum(1) % 2
    for i, token in enumerate(above.token_ids.tolist()):
        odd = above.x[i, PARITY] > 0.5
        torch.testing.assert_close(above.index == i, (above.tokens == token) & (parity == odd))


@torch.no_grad()
def test_more_inputs_than_weights_can_tell_apart():
    model = noisy_counter(noise=0.0)
    wide = copy.deepcopy(model).double()
    inputs = LayerInputs.of_tokens(wide, BATCH).next_layer(wide)
    many = torch.cat([inputs.x, torch.randn(20, 16).double()])
    judge = Judge(model, BATCH)
    both = Search(judge, [householder, householder], (1, 2, 3))
    progress = Progress(wide, judge.loss, (inputs,), (False,))
    says = "layer 1: the layers before it give it more than 16 inputs"
    with pytest.raises(NoCandidateError, match=says):
        both.run(progress, replace(inputs, x=many))


def test_a_search_has_an_end():
    """Of four layers all but the last can do without memory or with it, and nothing mends that."""
    torch.manual_seed(0)
    mixer = DiagonalRNNConfig(allow_neg_eigval=True)
    config = ModelConfig(vocab_size=9, hidden_size=8, num_layers=4, mixer=mixer, mlp="none")
    model = SequenceModel(config).eval()
    with torch.no_grad():
        for block in model.blocks:
            block.mixer.W_B.weight.zero_()  # says nothing
            block.mixer.W_B.bias.zero_()
        model.blocks[-1].mixer.W_B.bias.fill_(1.0)
        model.blocks[-1].mixer.W_A.bias.fill_(0.05)  # and decays
        some = Batch(*(part[:4] for part in BATCH))
        answers = model(torch.from_numpy(some.tokens))[0].argmax(-1).numpy()
    calls = []
    next_layer = LayerInputs.next_layer
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "MAX_RETRIES", 2)
        counted = lambda *args: calls.append(1) or next_layer(*args)  # noqa: E731
        patch.setattr(LayerInputs, "next_layer", counted)
        result = harden(model, some._replace(targets=answers))
    assert not result.changed
    assert result.reason.startswith("layer 3: ")
    assert result.reason.endswith("(stopped after 2 retries)")
    assert len(calls) == 6  # not 14


def test_a_model_that_needs_no_memory():
    torch.manual_seed(0)
    mixer = DeltaNetConfig(allow_neg_eigval=True, num_heads=1, conv_size=0)
    model = SequenceModel(ModelConfig(vocab_size=9, hidden_size=16, mixer=mixer, mlp="none"))
    with torch.no_grad():
        for block in model.blocks:
            block.mixer.o_proj.weight.zero_()
        model.head.weight.copy_(20 * model.embedding.weight)  # the answer is the token
    batch = BATCH._replace(targets=BATCH.tokens)
    result = harden(model.eval(), batch)
    assert not result.changed
    assert result.reason == "it is as good without any memory, so there is nothing to make exact"


@pytest.mark.parametrize("mixer", MIXERS[:6], ids=lambda mixer: mixer.name)
def test_the_output_of_a_layer_that_loses_convolution_and_memory(mixer):
    """Its convolution, which calls at the current token alone, goes with its memory."""
    torch.manual_seed(0)
    mixer = replace(mixer, conv_size=4)
    model = SequenceModel(ModelConfig(vocab_size=9, hidden_size=16, num_layers=1, mixer=mixer))
    model.double().eval()
    inputs = LayerInputs.of_tokens(model, BATCH)
    layer = inputs.mixer(model)
    with torch.no_grad():
        layer.conv.weight[:, :-1] = 0.0
        layer.conv.weight[:, -1] = -1.5
    _, before = inputs.run(model)
    made = inputs.replace_mixer(model, layer.with_config(conv_size=0).memoryless(inputs.x))
    _, after = inputs.run(inputs.with_output(made, before))
    steady = inputs.mean_by_input(before)[inputs.index]  # what depends on the token alone
    here = inputs.index >= 0
    assert (after - steady)[here].norm() < 0.05 * steady[here].norm()


def test_an_automaton_of_layers_that_decay():
    """After a layer whose channels decay the inputs never repeat."""
    torch.manual_seed(0)
    mixer = MambaConfig(allow_neg_eigval=True, conv_size=0)
    model = SequenceModel(ModelConfig(vocab_size=9, hidden_size=8, mixer=mixer)).double().eval()
    with pytest.raises(UserError, match="layer 0 has channels that decay, so the layers after it"):
        read_automaton(model, LayerInputs.of_tokens(model, BATCH), COUNT.vocab)
