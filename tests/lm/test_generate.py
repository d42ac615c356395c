"""Caches and `generate`."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from statetrack.errors import UserError
from statetrack.layers import MIXERS
from statetrack.layers.base import VARIANT_SIZE
from statetrack.lm import StateTrackCache, StateTrackForCausalLM
from statetrack.models import ModelConfig
from tests.lm.common import HYBRID, VOCAB, causal_model, some_tokens

ARCHITECTURES = {
    title: ModelConfig(vocab_size=VOCAB, hidden_size=VARIANT_SIZE, num_layers=2, mixer=mixer)
    for kind in MIXERS.values()
    for title, mixer in kind.architectures().items()
} | {"hybrid": HYBRID}


def in_pieces(model: StateTrackForCausalLM, tokens: Tensor, *sizes: int) -> Tensor:
    """The logits in pieces of these sizes, with a cache."""
    cache, logits = None, []
    for piece in tokens.split(sizes, 1):
        out = model(piece, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        logits.append(out.logits)
    assert cache.get_seq_length() == tokens.shape[1]
    return torch.cat(logits, 1)


@pytest.mark.parametrize("recorded", [False, True], ids=["plain", "recorded"])
@pytest.mark.parametrize("title", ARCHITECTURES)
def test_pieces_have_the_logits_of_the_whole(title: str, recorded: bool) -> None:
    model, tokens = causal_model(ARCHITECTURES[title]), some_tokens(2, 7)
    with torch.set_grad_enabled(not recorded):  # a recorded step has no gradients
        whole = model(tokens, use_cache=False)
        assert whole.past_key_values is None
        for sizes in ((4, 3), (1,) * 7, (3, 1, 1, 2)):
            torch.testing.assert_close(in_pieces(model, tokens, *sizes), whole.logits)


def generate(model: StateTrackForCausalLM, tokens: Tensor, **options: Any) -> Any:
    """Generate six tokens after a batch without padding."""
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, **options}
    return model.generate(tokens, attention_mask=torch.ones_like(tokens), **options)


def test_greedy_generation() -> None:
    model, tokens = causal_model(HYBRID), some_tokens()
    expected = tokens
    for _ in range(6):
        new = model(expected).logits[:, -1].argmax(-1, keepdim=True)
        expected = torch.cat([expected, new], 1)
    assert torch.equal(generate(model, tokens), expected)
    assert torch.equal(generate(model, tokens, use_cache=False), expected)
    assert torch.equal(generate(model, tokens, prefill_chunk_size=3), expected)


@pytest.mark.parametrize("options", [{"do_sample": True, "top_p": 0.9}, {"num_beams": 3}])
def test_a_cache_changes_no_sample_or_beam(options: dict[str, Any]) -> None:
    model, tokens = causal_model(HYBRID), some_tokens()
    made = []
    for use_cache in (True, False):
        torch.manual_seed(1)
        made.append(generate(model, tokens, use_cache=use_cache, **options))
    assert torch.equal(made[0], made[1])
    assert made[0].shape == (2, 14)


def test_a_left_padded_batch() -> None:
    model, long, short = causal_model(HYBRID), some_tokens(1, 7), some_tokens(1, 4)
    padded = torch.cat([long, torch.cat([torch.zeros(1, 3, dtype=torch.long), short], 1)])
    mask = torch.ones_like(padded)
    mask[1, :3] = 0
    made = model.generate(
        padded, attention_mask=mask, max_new_tokens=6, do_sample=False, pad_token_id=0
    )
    assert torch.equal(made[0, 7:], generate(model, long)[0, 7:])
    assert torch.equal(made[1, 7:], generate(model, short)[0, 4:])


def test_padding_in_single_tokens() -> None:
    """A recorded step does not serve where a row's token does not exist."""
    model, tokens = causal_model(), some_tokens(2, 5)
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    with torch.no_grad():
        whole = model(tokens, attention_mask=mask).logits
        cache = StateTrackCache(model.config.num_hidden_layers)
        for t in range(5):
            seen = mask[:, : t + 1]
            out = model(tokens[:, t : t + 1], attention_mask=seen, past_key_values=cache)
            exists = seen[:, -1].bool()
            torch.testing.assert_close(out.logits[exists, 0], whole[exists, t])


def test_continued_generation() -> None:
    model, tokens = causal_model(HYBRID), some_tokens()
    first = generate(model, tokens, return_dict_in_generate=True, max_new_tokens=2)
    cache = first.past_key_values
    copied = deepcopy(cache)
    expected = generate(model, tokens)
    for past in (cache, copied):
        more = generate(model, first.sequences, past_key_values=past, max_new_tokens=4)
        assert torch.equal(more, expected)
    cache.reset()
    assert cache.get_seq_length() == 0
    assert torch.equal(generate(model, tokens, past_key_values=cache), expected)


def test_rows_of_a_cache() -> None:
    model, tokens = causal_model(HYBRID), some_tokens(2, 6)
    for change, rows in (
        (lambda cache: cache.reorder_cache(torch.tensor([1, 0])), [1, 0]),
        (lambda cache: cache.batch_select_indices(torch.tensor([1])), [1]),
        (lambda cache: cache.batch_repeat_interleave(2), [0, 0, 1, 1]),
    ):
        cache = model(tokens[:, :5]).past_key_values
        change(cache)
        out = model(tokens[rows, 5:], past_key_values=cache)
        torch.testing.assert_close(out.logits[:, 0], model(tokens).logits[rows, -1])


def test_a_decoder_follows_weights_that_move() -> None:
    model, tokens = causal_model(), some_tokens(1, 4)
    with torch.no_grad():
        cache = model(tokens[:, :2]).past_key_values
        model(tokens[:, 2:3], past_key_values=cache)
        for weight in model.parameters():
            weight.data = weight.data * 1.5
        changed = deepcopy(cache)
        moved = model(tokens[:, 3:], past_key_values=cache).logits
        torch.testing.assert_close(moved, model(tokens[:, 3:], past_key_values=changed).logits)


def test_a_cache_that_another_model_continues() -> None:
    models, tokens = [causal_model(), causal_model()], some_tokens(1, 4)
    with torch.no_grad():
        for weight in models[1].parameters():
            weight.mul_(1.5)
        cache = models[0](tokens[:, :2]).past_key_values
        models[0](tokens[:, 2:3], past_key_values=cache)  # recorded
        unrecorded = deepcopy(cache)
        found = (models[1](tokens[:, 3:], past_key_values=c).logits for c in (cache, unrecorded))
        torch.testing.assert_close(*found)


def test_caches_that_do_not_fit() -> None:
    model, tokens = causal_model(), some_tokens()
    with pytest.raises(UserError, match="past_key_values must be a StateTrackCache"):
        model(tokens, past_key_values=DynamicCache())
    with pytest.raises(UserError, match="cache_implementation must be None"):
        generate(model, tokens, cache_implementation="static")
    with pytest.raises(UserError, match="cannot be removed"):
        model(tokens).past_key_values.crop(1)
