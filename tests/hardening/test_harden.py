"""Models that are exact but for noise become exact; others are kept, or refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from statetrack.automata import from_regex
from statetrack.errors import UserError
from statetrack.hardening import harden
from statetrack.hardening.agreement import agree
from statetrack.layers import (
    AttentionConfig,
    DeltaNetConfig,
    GLAConfig,
)
from statetrack.models import ModelConfig, SequenceModel
from statetrack.tasks import generator, make_task
from statetrack.training import evaluate

PARITY = make_task("parity", supervision="dense")
BATCH = PARITY.sample(generator(0, "validation", 0), np.full(64, 40))


@torch.no_grad()
def noisy_parity() -> SequenceModel:
    """One head whose ones almost flip between 0 and 2 v, whose zeros almost do nothing."""
    mixer = DeltaNetConfig(allow_neg_eigval=True, num_heads=1, conv_size=0)
    config = ModelConfig(
        vocab_size=3, hidden_size=8, num_layers=1, mixer=mixer, embedding="one_hot", norm="none",
        residual=False, mlp="none", final_norm=False, head_bias=True,
    )  # fmt: skip
    model = SequenceModel(config)
    layer = model.blocks[0].mixer
    q, k, v = layer.qkv_proj.weight.split(8)  # [8, token]
    for part in (q, k, v, layer.beta.proj.weight, layer.o_proj.weight, model.head.weight):
        part.zero_()
    q[0, 1:3] = 1.0
    k[0, 2] = 1.0
    k[:2, 1] = torch.tensor([0.2, 1.0])  # leaks
    v[0, 1:3] = torch.tensor([0.5, 1.0])
    layer.beta.proj.weight[0, 1:3] = torch.tensor([-3.5, 4.5])
    layer.o_proj.weight[0, 0] = 1.0
    model.head.weight[2, 0], model.head.bias[:] = 8.0, torch.tensor([-9.0, 9.0, 0.0])
    return model.eval()


def accuracy(model: SequenceModel, length: int) -> float:
    return evaluate(model, PARITY, length, samples=8).token_accuracy


def test_a_noisy_model_becomes_exact():
    model = noisy_parity()
    before = {name: p.clone() for name, p in model.named_parameters()}
    result = harden(model, BATCH)
    assert result.changed
    assert accuracy(model, 2000) < 0.9
    assert accuracy(result.model, 20_000) == 1.0
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert result.decay_length[0].most < 1e4 < 1e9 < result.decay_length[1].least
    assert [component.error is not None for component in result.components] == [True]
    read = result.automaton(PARITY.vocab)
    assert read.states == 2
    assert agree(read, PARITY.automaton())
    assert str(result).startswith(
        "Hardened: the model is as good at its training lengths as before"
    )
    assert result.slow == 0


def test_a_flip_is_exact_in_float32():
    model = harden(noisy_parity(), BATCH).model
    ones = torch.full((1, 100_001), PARITY.vocab.index("1"))
    with torch.no_grad():
        early, late = (model(ones[:, :n])[1] for n in (1, 100_001))
    assert early[0].S.any()
    assert torch.equal(early[0].S, late[0].S)


def test_agree_tells_automata_apart():
    read = harden(noisy_parity(), BATCH).automaton(PARITY.vocab)
    task = PARITY.automaton()
    assert not agree(read, from_regex("(0|1)*1"))  # outputs differ: the last symbol
    flipped = tuple("0" if text == "1" else "1" for text in task.outputs)
    assert not agree(read, replace(task, outputs=flipped))
    assert agree(read, replace(task, outputs=None))  # which words it accepts


def test_a_model_that_learned_nothing_is_kept():
    torch.manual_seed(0)
    mixer = DeltaNetConfig(allow_neg_eigval=True, conv_size=0)
    model = SequenceModel(ModelConfig(vocab_size=3, hidden_size=16, num_layers=1, mixer=mixer))
    result = harden(model, BATCH)
    assert result.model is model
    assert not result.changed
    assert str(result).startswith("Kept as it was: none of its heads or channels is close enough")
    with pytest.raises(UserError, match=r"the model still decays \(head 0, head 1, "):
        result.automaton(PARITY.vocab)


def test_a_model_that_needs_what_is_rounded_is_kept():
    model = noisy_parity()
    with torch.no_grad():  # the answers of a model that decays: none that lasts gives them
        model.blocks[0].mixer.beta.proj.weight[0, 2] = 3.0  # 2 sigmoid(3) = 1.905
        decaying = model(torch.from_numpy(BATCH.tokens))[0].argmax(-1).numpy()
    result = harden(model, BATCH._replace(targets=decaying))
    assert result.model is model
    assert "every exact model tried is worse at the training lengths" in result.reason
    assert result.loss[1] > result.loss[0] + 0.003


def test_embeddings_that_depend_on_each_other():
    mixer = DeltaNetConfig(allow_neg_eigval=True, num_heads=1, conv_size=0)
    config = ModelConfig(vocab_size=3, hidden_size=2, num_layers=1, mixer=mixer, norm="layer")
    with torch.no_grad():  # with RMSNorm the model would be widened
        model = SequenceModel(config)
        model.embedding.weight[2] = model.embedding.weight[1]
    assert "embeddings of its 2 tokens are not independent" in harden(model, BATCH).reason


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_layers": 2, "mixer": (DeltaNetConfig(), AttentionConfig())}, "cannot be hardened"),
        (
            {"mixer": AttentionConfig()},
            "Attention cannot be hardened: Attention does not define how",
        ),
        ({"mixer": DeltaNetConfig(conv_size=0)}, r"DeltaNet \[0,1\] cannot be hardened: its eigen"),
        ({"mixer": DeltaNetConfig(allow_neg_eigval=True, conv_size=0, num_v_heads=8)}, "share"),
        ({"mixer": GLAConfig()}, "no input can flip"),
    ],
)
def test_what_is_refused(changes, says):
    config = ModelConfig(vocab_size=3, hidden_size=16, num_layers=1)
    with pytest.raises(UserError, match=says):
        harden(SequenceModel(replace(config, **changes)), BATCH)


@pytest.mark.parametrize("orders", [(), (0,)])
def test_orders_are_checked(orders):
    with pytest.raises(UserError, match="order"):
        harden(noisy_parity(), BATCH, orders=orders)
