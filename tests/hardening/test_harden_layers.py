"""Several layers: a later one sees the states of those before it, or need not remember anything."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from statetrack.errors import UserError
from statetrack.hardening import delta_net, harden, search
from statetrack.hardening.automaton import agree, read_automaton
from statetrack.hardening.convolution import without_convolution
from statetrack.hardening.harden import FAMILIES
from statetrack.hardening.heads import inverse_silu
from statetrack.hardening.judge import Judge
from statetrack.hardening.outputs import said
from statetrack.hardening.search import NoneIsGoodError, Search, Way
from statetrack.hardening.tokens import Seen
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
    odd_is, _ = first(model._embed(torch.tensor([[ONE]])))
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
    assert [part.name for part in result.parts] == ["layer 0 head 0", "layer 1 head 0"]
    assert all(part.error is not None for part in result.parts)
    assert len(result.settings) == 2
    before, after = (
        evaluate(m, COUNT, 20_000, samples=4).token_accuracy for m in (model, result.model)
    )
    assert before < 0.5
    assert after == 1.0
    read = result.automaton(COUNT.vocab)
    assert read.states == 6
    assert agree(read, COUNT.automaton())
    assert "layer 0: tau" in str(result)
    assert "; layer 1: tau" in str(result)


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
    """What it says of an input never seen hangs on that input alone."""
    torch.manual_seed(0)
    model = SequenceModel(ModelConfig(vocab_size=9, hidden_size=16, mixer=mixer)).double().eval()
    seen = Seen.of(model, BATCH).above(model)
    family = FAMILIES[type(mixer)]
    idle = family.idle(model, seen, said(model, seen))
    layer = seen.mixer(idle.model)
    x = torch.randn(2, 12, 16, dtype=torch.float64)
    x[1, -1] = x[0, -1]
    y, _ = layer(x)
    assert y[0, -1].abs().max() > 0
    assert (y[0, -2] - y[1, -2]).abs().max() > 1e-3
    torch.testing.assert_close(y[0, -1], y[1, -1], rtol=1e-6, atol=1e-9)
    alone, _ = layer(x[:1, -1:])
    torch.testing.assert_close(alone[0, 0], y[0, -1], rtol=1e-6, atol=1e-9)
    first = idle.model.blocks[0].state_dict()
    assert all(torch.equal(w, first[name]) for name, w in model.blocks[0].state_dict().items())


def test_what_a_layer_sees():
    model = noisy_counter(noise=0.0).double()
    with torch.no_grad():
        for block in model.blocks:
            block.mixer.beta.proj.weight[0, [ZERO, ONE]] = torch.tensor([-800.0, 800.0]).double()
            block.mixer.qkv_proj.weight[16:32] *= 1e8  # beside which the keys' epsilon is nothing
    above = Seen.of(model, BATCH).above(model)
    assert above.layer == 1
    assert len(above.x) == 4  # the tokens 0 and 1, with an even and an odd number of ones
    parity = (above.tokens == ONE).cumsum(1) % 2
    for i, token in enumerate(above.ids.tolist()):
        odd = above.x[i, PARITY] > 0.5
        torch.testing.assert_close(above.place == i, (above.tokens == token) & (parity == odd))


@torch.no_grad()
def test_more_inputs_than_weights_can_tell_apart():
    model = noisy_counter(noise=0.0)
    wide = copy.deepcopy(model).double()
    seen = Seen.of(wide, BATCH).above(wide)
    many = torch.cat([seen.x, torch.randn(20, 16).double()])
    judge = Judge(model, BATCH)
    both = Search(judge, [delta_net, delta_net], (1, 2, 3))
    way = Way(wide, judge.before, (seen,), (False,))
    says = "layer 1: the layers before it give it more than 16 inputs"
    with pytest.raises(NoneIsGoodError, match=says):
        both.finish(way, replace(seen, x=many))


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
        model.blocks[-1].mixer.W_A.bias.fill_(0.05)  # and fades
        some = Batch(*(part[:4] for part in BATCH))
        answers = model(torch.from_numpy(some.tokens))[0].argmax(-1).numpy()
    looks = []
    above = Seen.above
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "MAX_BACK", 2)
        patch.setattr(Seen, "above", lambda *args: looks.append(1) or above(*args))
        result = harden(model, some._replace(targets=answers))
    assert not result.changed
    assert result.why.startswith("layer 3: ")
    assert result.why.endswith("(stopped after going back 2 times)")
    assert len(looks) == 6  # not 14


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
    assert result.why == "it is as good without any memory, so that nothing has to be exact"


@pytest.mark.parametrize("mixer", MIXERS[:6], ids=lambda mixer: mixer.name)
def test_a_layer_that_mixes_tokens_says_what_it_said(mixer):
    """Its convolution, which looks at the current token alone, goes with its memory."""
    torch.manual_seed(0)
    mixer = replace(mixer, conv_size=4)
    model = SequenceModel(ModelConfig(vocab_size=9, hidden_size=16, num_layers=1, mixer=mixer))
    model.double().eval()
    seen = Seen.of(model, BATCH)
    layer = seen.mixer(model)
    with torch.no_grad():
        layer.conv.weight[:, :-1] = 0.0
        layer.conv.weight[:, -1] = -1.5
    spoken = said(model, seen)
    idle = FAMILIES[type(mixer)].idle(without_convolution(model, seen), seen, spoken)
    again = said(idle.model, seen)
    steady = seen.average(spoken)[seen.place]  # what hangs on the token alone
    here = seen.place >= 0
    assert (again - steady)[here].norm() < 0.05 * steady[here].norm()


def test_an_automaton_of_layers_that_fade():
    """Behind a layer whose channels fade there is no end of different inputs."""
    torch.manual_seed(0)
    mixer = MambaConfig(allow_neg_eigval=True, conv_size=0)
    model = SequenceModel(ModelConfig(vocab_size=9, hidden_size=8, mixer=mixer)).double().eval()
    with pytest.raises(UserError, match="layer 0 of the model still fades"):
        read_automaton(model, Seen.of(model, BATCH), COUNT.vocab)
