"""Models of this package as Hugging Face models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, Trainer, TrainingArguments

import statetrack as st
from statetrack.errors import UserError
from statetrack.layers import MIXERS
from statetrack.layers.base import VARIANT_SIZE
from statetrack.lm.hf_model import causal_loss
from statetrack.models import ModelConfig
from tests.lm.common import EXPERTS, HYBRID, VOCAB, causal_model, some_tokens


def test_logits_are_those_of_the_sequence_model() -> None:
    model, tokens = causal_model(HYBRID), some_tokens()
    expected, _ = model.sequence_model(tokens)
    out = model(tokens, output_hidden_states=True)
    assert torch.equal(out.logits, expected)
    assert len(out.hidden_states) == model.config.num_hidden_layers + 1
    assert torch.equal(model.model(tokens).last_hidden_state, out.hidden_states[-1])
    embedded = model.get_input_embeddings()(tokens)
    assert torch.equal(model(inputs_embeds=embedded).logits, expected)
    assert torch.equal(model(tokens, logits_to_keep=3).logits, expected[:, -3:])
    assert torch.equal(
        model(tokens, logits_to_keep=torch.tensor([1, 4])).logits, expected[:, [1, 4]]
    )
    assert torch.equal(model(tokens, return_dict=False)[0], expected)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(side: str) -> None:
    model, tokens = causal_model(HYBRID), some_tokens(1, 6)
    pad, width = torch.full((1, 3), 7), tokens.shape[1]
    padded = torch.cat([pad, tokens] if side == "left" else [tokens, pad], 1)
    mask = torch.ones(1, width + 3, dtype=torch.long)
    mask[:, slice(0, 3) if side == "left" else slice(width, None)] = 0
    logits = model(padded, attention_mask=mask).logits[mask.bool()]
    torch.testing.assert_close(logits, model(tokens).logits[0])


def test_packed_sequences() -> None:
    model, a, b = causal_model(), some_tokens(1, 5), some_tokens(1, 4)
    packed = model(torch.cat([a, b], 1), cu_seqlens=torch.tensor([0, 5, 9])).logits
    torch.testing.assert_close(packed[:, 5:], model(b).logits)


@pytest.mark.parametrize("num_items", [None, 11])
def test_loss_is_that_of_transformers(num_items: int | None) -> None:
    model, tokens = causal_model(), some_tokens()
    labels = tokens.clone()
    labels[0, :4] = -100
    out = model(tokens, labels=labels, num_items_in_batch=num_items)
    expected = model.loss_function(
        out.logits, labels, vocab_size=model.config.vocab_size, num_items_in_batch=num_items
    )
    torch.testing.assert_close(out.loss, expected)


def test_a_part_of_a_batch_without_labels_has_no_loss() -> None:
    logits = torch.randn(1, 4, 5, requires_grad=True)
    loss = causal_loss(logits, torch.full((1, 4), -100), num_items_in_batch=3)
    loss.backward()
    assert loss.item() == 0
    assert logits.grad is not None
    assert not logits.grad.any()


@pytest.mark.parametrize("tied", [False, True])
def test_saving_and_loading(tied: bool, tmp_path: Path) -> None:
    model = causal_model(HYBRID, tie_embeddings=tied, training_length=32, eos_token_id=1)
    tokens = some_tokens()
    model.save_pretrained(tmp_path)
    names = load_file(tmp_path / "model.safetensors").keys()
    own = {f"model.sequence_model.{name}" for name in model.sequence_model.state_dict()}
    assert names == own - ({"model.sequence_model.head.weight"} if tied else set())
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(again) is st.StateTrackForCausalLM
    assert torch.equal(again(tokens).logits, model(tokens).logits)
    assert again.config.model_config == model.sequence_model.config
    assert (again.config.training_length, again.config.eos_token_id) == (32, 1)
    parameters = dict(again.sequence_model.named_parameters(remove_duplicate=False))
    assert (parameters["head.weight"] is parameters["embedding.weight"]) == tied
    base = AutoModel.from_pretrained(tmp_path)
    assert torch.equal(base(tokens).last_hidden_state, model.model(tokens).last_hidden_state)


def test_bfloat16(tmp_path: Path) -> None:
    causal_model().save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert model(some_tokens()).logits.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hiden_size": 8}, "unknown key of a StateTrackConfig 'hiden_size'"),
        ({"training_length": 0}, "training_length"),
        ({"model": {"vocab": 8}}, "unknown key 'vocab' in model"),
        ({"model": {"mixer": {"name": "delta_net", "heads": 2}}}, "unknown key 'heads'"),
    ],
)
def test_unknown_keys_are_errors(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    causal_model().save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(UserError, match=says):
        AutoConfig.from_pretrained(tmp_path)


@pytest.mark.parametrize("more", [False, True])
def test_missing_and_unexpected_weights_are_errors(more: bool, tmp_path: Path) -> None:
    causal_model().save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    name = "model.sequence_model.blocks.1.mixer.o_proj.weight"
    weights["model.extra"] = weights[name].clone()
    if not more:
        del weights["model.extra"], weights[name]
    save_file(weights, file, {"format": "pt"})
    says = "unknown tensor model.extra" if more else f"lacks tensor {name}"
    with pytest.raises(UserError, match=says):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_wrong_inputs() -> None:
    model, tokens = causal_model(), some_tokens()
    with pytest.raises(UserError, match="input_ids or inputs_embeds"):
        model()
    with pytest.raises(UserError, match="attention_mask must be"):
        model(tokens, attention_mask=torch.ones(2, 1, 8, 8))
    with pytest.raises(UserError, match="logits_to_keep must be 0"):
        model(tokens, labels=tokens, logits_to_keep=1)
    with pytest.raises(UserError, match="labels must be"):
        model(tokens, labels=tokens[:, 1:])
    with pytest.raises(TypeError, match="lables"):
        model(tokens, lables=tokens)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
def test_gradient_checkpointing_gives_the_same_gradients() -> None:
    model, tokens = causal_model(HYBRID).train(), some_tokens()
    model(tokens, labels=tokens).loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    model.gradient_checkpointing_enable()
    calls = []
    original = model.model._gradient_checkpointing_func
    model.model._gradient_checkpointing_func = lambda *a: calls.append(1) or original(*a)
    model(tokens, labels=tokens).loss.backward()
    assert len(calls) == model.config.num_hidden_layers
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, expected[name], msg=name)


def test_trains_in_the_trainer(tmp_path: Path) -> None:
    model = causal_model()
    tokens = some_tokens(1, 12)[0]
    rows = [{"input_ids": tokens, "labels": tokens}] * 16
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=8, per_device_train_batch_size=2, learning_rate=1e-2,
        gradient_accumulation_steps=2, save_strategy="no", report_to=[], use_cpu=True,
        disable_tqdm=True, dataloader_pin_memory=False, logging_steps=4,
    )  # fmt: skip
    before = model(tokens[None], labels=tokens[None]).loss.item()
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows[:2])
    assert trainer.model_accepts_loss_kwargs
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before - 0.5


def test_from_sequence_model_keeps_the_model() -> None:
    model = st.SequenceModel(HYBRID)
    causal = st.StateTrackForCausalLM.from_sequence_model(model, training_length=9)
    assert causal.sequence_model is model
    assert causal.config.training_length == 9
    assert not any(p.is_meta for p in causal.parameters())
    tokens = some_tokens()
    assert torch.equal(causal(tokens).logits, model(tokens)[0])
    loss = causal(tokens, labels=tokens).loss
    shifted = model(tokens)[0][:, :-1].flatten(0, 1)
    torch.testing.assert_close(loss, F.cross_entropy(shifted, tokens[:, 1:].flatten()))


@pytest.mark.parametrize("name", MIXERS)
def test_every_mixer_is_saved_and_wrapped(name: str, tmp_path: Path) -> None:
    """Both make the model without memory for its weights first."""
    mixer = MIXERS[name].variants()[-1]
    model = causal_model(ModelConfig(vocab_size=VOCAB, hidden_size=VARIANT_SIZE, mixer=mixer))
    expected = model(some_tokens()).logits
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again(some_tokens()).logits, expected)
    wrapped = st.StateTrackForCausalLM.from_sequence_model(model.sequence_model)
    assert torch.equal(wrapped(some_tokens()).logits, expected)


def test_experts_are_saved_and_generate(tmp_path: Path) -> None:
    model, tokens = causal_model(EXPERTS), some_tokens()
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.config.model_config == EXPERTS
    assert torch.equal(again(tokens).logits, model(tokens).logits)
    made = again.generate(tokens, max_new_tokens=5, do_sample=False)
    with torch.no_grad():  # in one pass, as against with the cache
        expected = model(made).logits.argmax(-1)
    assert torch.equal(made[:, tokens.shape[1] :], expected[:, tokens.shape[1] - 1 : -1])


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_more_tokens(tied: bool, tmp_path: Path) -> None:
    model = causal_model(tie_embeddings=tied)
    before = model(some_tokens()).logits
    model.resize_token_embeddings(VOCAB + 3)
    after = model(some_tokens()).logits
    torch.testing.assert_close(after[..., :VOCAB], before)
    model.save_pretrained(tmp_path / "model")
    again = st.load_language_model(tmp_path / "model").model
    torch.testing.assert_close(again(some_tokens()).logits, after)
