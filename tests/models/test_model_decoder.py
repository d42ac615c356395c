"""`model.decoder`: the logits and states of `step`, by recorded blocks where that is possible."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from statetrack.errors import UserError
from statetrack.layers.decoder import MAX_ROWS
from statetrack.models import ExpertsConfig, SequenceModel
from tests.models.common import DELTA, MODELS, assert_same_states, make_model, small, tokens
from tests.ops.common import assert_close
from tests.ops.pointwise import needs_native

T = 6
RECORDED = {  # which blocks are recorded as a whole
    "delta_net": [True, True],
    "mamba": [True, True],
    "hybrid": [True] * 4,
    "hybrid-of-three": [False] * 3,
    "attention": [False, False],
    "hybrid-with-attention": [True, False, True],
    "norm-after": [True, False, True, False],
    "mlp-after": [True] * 4,
    "experts": [False, False],
    "experts-in-one-layer": [True, False],
    "diagonal_rnn": [False],
    "full_matrix": [False],
    "one-hot": [True],
    "no-residual": [False, False],
    "layer-norm": [False, False],
    "tied": [False, False],
    "bare": [True, True],
}


@needs_native
@torch.no_grad()
@pytest.mark.parametrize("config", MODELS)
def test_a_decoder_is_steps(config, request):
    exact = make_model(config)
    model = SequenceModel(config)
    model.load_state_dict(exact.state_dict())
    x = tokens(3, T)
    state, expected = model.init_state(3), exact.init_state(3)
    decoder = model.decoder(3)
    assert [block.recorded for block in decoder.blocks] == RECORDED[request.node.callspec.id]
    for token in x.unbind(1):
        logits, state = decoder.step(token, state)
        right, expected = exact.step(token, expected)
        assert logits.dtype == torch.float32
        assert_close(logits.double(), right, 1e-5)
    assert_same_states(state, expected, 1e-5)


@needs_native
@torch.no_grad()
def test_the_mixer_is_recorded_where_its_block_is_not():
    model = SequenceModel(small(mixer=DELTA, norm="layer", num_layers=1))
    (block,) = model.stack()
    assert not block.decoder(2).recorded
    assert block.mixer.decoder(2).recorded
    ran = []
    block.mixer.o_proj.register_forward_hook(lambda *_: ran.append(1))
    block.mixer_norm.register_forward_hook(lambda *_: ran.append(2))
    model.decoder(2).step(tokens(2, 1)[:, 0], None)
    assert ran == [2]  # the hooks of recorded modules do not run


@needs_native
@torch.no_grad()
def test_the_mixer_is_recorded_where_its_block_has_experts():
    model = SequenceModel(small(mixer=DELTA, num_layers=1, experts=ExpertsConfig(size=4)))
    ran = []
    model.blocks[0].mixer.o_proj.register_forward_hook(lambda *_: ran.append(1))
    model.blocks[0].mlp.register_forward_hook(lambda *_: ran.append(2))
    model.decoder(2).step(tokens(2, 1)[:, 0], None)
    assert ran == [2]


@needs_native
@torch.no_grad()
@pytest.mark.parametrize(
    ("options", "recorded"),
    [({}, True), ({"head_bias": True}, True), ({"tie_embeddings": True}, True),
     ({"final_norm": False}, True), ({"norm": "layer"}, False)],
)  # fmt: skip
def test_the_last_norm_and_the_head_are_recorded_together(options, recorded):
    model = SequenceModel(small(mixer=DELTA, **options))
    if options.get("head_bias"):
        model.head.bias.normal_()
    token, decoder = tokens(3, 1)[:, 0], model.decoder(3)
    assert decoder.readout.recorded is recorded
    for _ in range(2):
        assert_close(decoder.step(token, None)[0], model.step(token, None)[0], 1e-5)
        model.head.weight.mul_(-2)  # changes in place are seen


class Twice(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return 2 * self.inner(x)


@torch.no_grad()
def test_a_replaced_head_counts():
    model = make_model(small(mixer=DELTA)).float()
    model.head = Twice(model.head)
    token, decoder = tokens(2, 1)[:, 0], model.decoder(2)
    assert not decoder.readout.recorded
    assert_close(decoder.step(token, None)[0], model.step(token, None)[0], 1e-5)


@torch.no_grad()
def test_a_replaced_mlp_counts():
    model = make_model(small(mixer=DELTA)).float()
    (first, _) = model.stack()
    first.mlp = Twice(first.mlp)
    token = tokens(2, 1)[:, 0]
    assert_close(model.decoder(2).step(token, None)[0], model.step(token, None)[0], 1e-5)


@torch.no_grad()
def test_a_large_batch_takes_plain_steps():
    model, batch = make_model(small(mixer=DELTA)).float(), MAX_ROWS + 1
    token, decoder = tokens(batch, 1)[:, 0], model.decoder(batch)
    assert not any(block.recorded for block in decoder.blocks)
    assert torch.equal(decoder.step(token, None)[0], model.step(token, None)[0])


def test_what_a_decoder_refuses():
    model = make_model(small(mixer=DELTA)).float()
    decoder, token = model.decoder(2), tokens(2, 1)[:, 0]
    with pytest.raises(UserError, match="no gradients"):
        decoder.step(token, None)
    with torch.no_grad():
        with pytest.raises(UserError, match=r"tokens must be \[2\]; got \[1\]"):
            decoder.step(token[:1], None)
        with pytest.raises(UserError, match=r"tokens must be whole numbers in 0\.\.4"):
            decoder.step(token + 5, None)
        with pytest.raises(UserError, match="the state has 1 layers, the model 2"):
            decoder.step(token, model.init_state(2)[:1])
        with torch.autocast("cpu"), pytest.raises(UserError, match="autocast"):
            decoder.step(token, None)
