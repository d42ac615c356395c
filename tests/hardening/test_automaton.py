"""The automaton of a model whose states recur, exactly or almost; the decay of heads."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from statetrack.errors import UserError
from statetrack.hardening import exploration
from statetrack.hardening.agreement import accepting_as, agree
from statetrack.hardening.automaton import read_automaton
from statetrack.hardening.exploration import DECAY_TOLERANCE, merge_equivalent
from statetrack.hardening.harden import measure_decay
from statetrack.hardening.householder import HeadInputs, write_heads
from statetrack.hardening.inputs import LayerInputs
from statetrack.layers import DeltaNetConfig, DiagonalRNNConfig
from statetrack.models import ModelConfig, SequenceModel
from statetrack.tasks import generator, make_task

PARITY = make_task("parity", supervision="dense")
BATCH = PARITY.sample(generator(0, "validation", 0), np.full(8, 40))
ZERO, ONE = (PARITY.vocab.index(text) for text in "01")


@torch.no_grad()
def parity(decay: float, weight: float) -> SequenceModel:
    """A channel that ones flip, and one that decays by a factor and has a weight in the answer."""
    config = ModelConfig(
        vocab_size=3, hidden_size=4, num_layers=1, mixer=DiagonalRNNConfig(allow_neg_eigval=True),
        embedding="one_hot", norm="none", residual=False, mlp="none", final_norm=False,
        head_bias=True,
    )  # fmt: skip
    model = SequenceModel(config).double().eval()
    layer = model.blocks[0].mixer
    for p in (layer.W_A.weight, layer.W_A.bias, layer.W_B.weight, layer.W_B.bias):
        p.zero_()
    layer.W_A.weight[ONE, ZERO], layer.W_A.weight[ONE, ONE] = 9.0, -9.0  # tanh(90) = 1
    layer.W_A.weight[ZERO] = math.atanh(decay) / 10
    layer.W_B.weight[ONE, ONE] = layer.W_B.weight[ZERO, ZERO] = 1.0
    model.head.weight.zero_()
    model.head.weight[ONE, ONE], model.head.weight[ONE, ZERO] = 2.0, weight
    model.head.bias[:] = torch.tensor([-9.0, -9.0, -9.0])
    model.head.bias[ZERO], model.head.bias[ONE] = 1.0, 0.0
    return model


def test_a_decaying_channel_is_followed_approximately():
    model = parity(0.5, 0.01)
    read = read_automaton(model, LayerInputs.of_tokens(model, BATCH), PARITY.vocab)
    assert read.dfa.states == 2
    assert read.states > 100
    assert agree(read.dfa, PARITY.automaton())
    # the lead is 1, the channel that decays has at most 2 as its state and is off by 1e-3 of it
    # over 1 - 0.5, of which the next token leaves half
    assert read.margin == pytest.approx(1 / (0.01 * 0.5 * DECAY_TOLERANCE * 2 / 0.5), rel=0.1)
    accepting = accepting_as(read.dfa, PARITY.automaton())
    assert accepting.accepts("0100")
    assert not accepting.accepts("0110")


def test_answers_that_depend_on_a_decaying_channel():
    model = parity(0.5, 0.99)  # 2 h + 0.99 f > 1 is close to a tie where f is close to 1
    with pytest.raises(
        UserError, match="some answer depends on components of the model that decay"
    ):
        read_automaton(model, LayerInputs.of_tokens(model, BATCH), PARITY.vocab)


def test_a_slowly_decaying_channel_has_too_many_states(monkeypatch):
    monkeypatch.setattr(exploration, "MAX_MODEL_STATES", 64)
    model = parity(0.95, 0.01)
    with pytest.raises(UserError, match="more than 64 states"):
        read_automaton(model, LayerInputs.of_tokens(model, BATCH), PARITY.vocab)


def test_states_that_nothing_tells_apart():
    overwritten = np.array([[1, 2], [1, 2], [1, 2]])
    assert merge_equivalent(overwritten).tolist() == [0, 0, 0]
    counter = np.array([[1, 0], [2, 0], [0, 0]])
    assert merge_equivalent(counter).tolist() == [0, 1, 2]
    # 3 and 4 go on alike, but a token that leads to the one is answered otherwise
    late = np.array([[3, 1], [4, 1], [2, 2], [2, 0], [2, 0]])
    assert merge_equivalent(late).tolist() == [0, 1, 2, 3, 3]


def test_the_decay_of_the_worst_head_and_the_best():
    mixer = DeltaNetConfig(allow_neg_eigval=True, num_heads=3, conv_size=0)
    config = ModelConfig(vocab_size=3, hidden_size=12, num_layers=1, mixer=mixer)
    torch.manual_seed(0)
    model = SequenceModel(config).double()
    inputs = LayerInputs.of_tokens(model, BATCH)
    k = torch.eye(4).double()[:2]
    betas = [[1.0, 1.99], [1.9999, 1.999], [0.3, 1.5]]  # the last one decays too fast to count
    made = [
        HeadInputs(k, torch.ones(2, 4).double(), torch.tensor(beta, dtype=torch.float64))
        for beta in betas
    ]
    layer = write_heads(inputs.mixer(model), inputs.x, made)
    found = measure_decay(inputs.replace_mixer(model, layer), inputs)
    assert found.least == pytest.approx(24 * math.log(2) / -math.log(0.99), rel=1e-6)
    assert found.most == pytest.approx(24 * math.log(2) / -math.log(0.999), rel=1e-6)
    assert str(found) == "1,655 tokens to 16,627 tokens"
    assert found.to_dict() == {"least": found.least, "most": found.most}
