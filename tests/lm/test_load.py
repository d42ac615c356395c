"""Loading language models from folders of every kind."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from statetrack.errors import UserError
from statetrack.lm import load_language_model
from statetrack.lm.data.tokenizer import train_tokenizer
from statetrack.lm.evaluation_data import open_data
from statetrack.training import train
from tests.lm.common import PLAIN, causal_model, some_tokens, write_tokenizer
from tests.training.small import small_config


@pytest.mark.parametrize("within_run", [False, True])
def test_a_saved_model(within_run: bool, tmp_path: Path) -> None:
    """It may be the folder `model` of a run of `lm train`."""
    model = causal_model(training_length=32, eos_token_id=1)
    folder = tmp_path / "run" / "model" if within_run else tmp_path / "run"
    model.save_pretrained(folder)
    write_tokenizer(folder)
    loaded = load_language_model(tmp_path / "run")
    assert torch.equal(loaded.model(some_tokens()).logits, model(some_tokens()).logits)
    assert (loaded.name, loaded.training_length) == ("run", 32)
    assert loaded.tokenizer is not None
    assert loaded.tokenizer("w2 w5").input_ids == [2, 5]
    assert loaded.tokenizer.eos_token == loaded.tokenizer.pad_token == "<end>"
    if within_run:
        assert load_language_model(folder).name == "run"


@pytest.mark.parametrize("bos", [False, True])
def test_texts_begin_as_documents_did_in_training(bos: bool, tmp_path: Path) -> None:
    """Whatever the tokenizer did before it was used for training."""
    tokenizer = train_tokenizer(["the state of a linear RNN", "a state"], 270)
    opposite = Tokenizer.from_str(tokenizer.to_json(bos=not bos))
    model = causal_model(
        replace(PLAIN, vocab_size=270), eos_token_id=1, bos_token_id=0 if bos else None
    )
    model.save_pretrained(tmp_path / "model")
    stored = replace(tokenizer, tokenizer=opposite).to_json(bos=bos)
    (tmp_path / "model" / "tokenizer.json").write_text(stored)
    loaded = load_language_model(tmp_path)
    (plain,) = tokenizer.encode(["a state"])
    expected = [0, *plain] if bos else plain
    assert loaded.tokenizer is not None
    assert loaded.tokenizer("a state").input_ids == expected
    (tmp_path / "text").write_text("a state")
    data = open_data(tmp_path / "text", loaded, 100)
    assert data.read(0, data.num_tokens).tolist() == expected


def test_a_run_of_train(tmp_path: Path) -> None:
    run = train(small_config(max_length=6), tmp_path / "run")
    loaded = load_language_model(tmp_path / "run")
    tokens = torch.tensor([[1, 0, 1]])
    assert torch.equal(loaded.model(tokens).logits, run.model()(tokens)[0])
    assert loaded.tokenizer is None
    assert loaded.training_length == 6


SMALL = {
    "vocab_size": 23, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip


def test_a_model_of_transformers(tmp_path: Path) -> None:
    model = LlamaForCausalLM(LlamaConfig(**SMALL)).eval()
    model.save_pretrained(tmp_path)
    loaded = load_language_model(tmp_path)
    assert torch.equal(loaded.model(some_tokens()).logits, model(some_tokens()).logits)
    assert loaded.training_length is None  # 64 is what it was made for


def test_tensors_that_are_not_those_of_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """transformers would take random weights for those that are missing."""
    LlamaForCausalLM(LlamaConfig(**SMALL)).save_pretrained(tmp_path)
    capsys.readouterr()
    file, name = tmp_path / "model.safetensors", "model.layers.0.mlp.up_proj.weight"
    tensors = load_file(file)
    for changed, says in (
        ({name: None}, f"lacks tensor {name}"),
        ({name: torch.zeros(3, 4)}, r"is \[3, 4\]; its config\.json asks for \[16, 16\]"),
        ({"more": torch.zeros(2)}, "has tensor more, which LlamaForCausalLM does not use"),
    ):
        kept = {k: t for k, t in {**tensors, **changed}.items() if t is not None}
        save_file(kept, file, {"format": "pt"})
        with pytest.raises(UserError, match=says):
            load_language_model(tmp_path)
    assert capsys.readouterr() == ("", "")


def test_an_encoder_is_no_causal_model(tmp_path: Path) -> None:
    """GPT-NeoX is one, though its configuration calls it no decoder."""
    GPTNeoXForCausalLM(GPTNeoXConfig(**SMALL)).save_pretrained(tmp_path / "decoder")
    BertForMaskedLM(BertConfig(**SMALL)).save_pretrained(tmp_path / "encoder")
    load_language_model(tmp_path / "decoder")
    with pytest.raises(UserError, match="its predictions depend on later tokens"):
        load_language_model(tmp_path / "encoder")


def test_a_pair_is_two_models(tmp_path: Path) -> None:
    (tmp_path / "pair" / "narrow").mkdir(parents=True)
    (tmp_path / "pair" / "narrow" / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"pair holds two runs: give .*narrow or .*wide"):
        load_language_model(tmp_path / "pair")


def test_folders_that_hold_no_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no config\.json"):
        load_language_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="cannot read"):
        load_language_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no_such_type"}))
    with pytest.raises(UserError, match="cannot load a causal language model"):
        load_language_model(tmp_path)
    causal_model().save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("[]")
    with pytest.raises(UserError, match=r"tokenizer\.json is not a tokenizer"):
        load_language_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(UserError, match="cannot load a causal language model"):
        load_language_model(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="cannot load a causal language model"):
        load_language_model(tmp_path)
