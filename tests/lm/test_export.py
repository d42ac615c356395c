"""Models written in this package's format and in that of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from statetrack.lm import StateTrackForCausalLM, load_language_model
from statetrack.lm.export import export
from statetrack.lm.load import quiet
from statetrack.models.convert import load_pretrained
from tests.conftest import Command, Refused
from tests.lm.common import causal_model, write_tokenizer
from tests.models.convert.test_restore import fla_model
from tests.ops.common import assert_close
from tests.peers.common import SINGLE
from tests.peers.hf import models

MODELS = {
    "mamba": models.mamba,
    "mamba-untied": lambda: models.mamba(tie_word_embeddings=False),
    "mamba2": lambda: models.mamba2(n_groups=1),
    "olmo_hybrid": models.olmo_hybrid,
    "qwen3_next": models.qwen3_next,
    "qwen3_5": models.qwen3_5_images,
    "qwen3_5_text": models.qwen3_5,
    "qwen3_5_moe": models.qwen3_5_moe,
}


@pytest.fixture(params=[*MODELS, "gated_deltanet"])
def original(request: Any, tmp_path: Path) -> Path:
    """A checkpoint of transformers or, as the last, of flash-linear-attention."""
    folder = tmp_path / "original"
    if request.param in MODELS:
        MODELS[request.param]().save_pretrained(folder)
    else:
        config, tensors = fla_model(request.param)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": 1}))
        save_file(tensors, folder / "model.safetensors")
    write_tokenizer(folder)
    return folder


def test_there_and_back(original: Path, tmp_path: Path, command: Command) -> None:
    ours, back = tmp_path / "ours", tmp_path / "back"
    code, out, err = command("lm", "export", original, "--out", ours, "--json", "-")
    assert code == 0, err
    assert json.loads(out)["model_type"] == "statetrack"
    theirs = load_language_model(original).model
    tokens = models.tokens(2, 9) % theirs.config.vocab_size
    with torch.no_grad():
        expected = theirs(tokens, use_cache=False).logits
        loaded = load_language_model(ours)
        assert_close(loaded.model(tokens).logits, expected, SINGLE)
    named = AutoTokenizer.from_pretrained(ours)
    assert "<end>" in (named.bos_token, named.eos_token)
    code, out, err = command("lm", "export", ours, "--like", original, "--out", back)
    assert code == 0, err
    written, wanted = (load_file(folder / "model.safetensors") for folder in (back, original))
    assert written.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(written[name], tensor), name
    again = load_language_model(back).model
    with torch.no_grad():
        assert_close(again(tokens, use_cache=False).logits, expected, 0)


def test_special_tokens_are_read_as_by_the_original(tmp_path: Path) -> None:
    original, ours = tmp_path / "original", tmp_path / "ours"
    models.mamba().save_pretrained(original)
    write_tokenizer(original)
    tokenizer = Tokenizer.from_file(str(original / "tokenizer.json"))
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(original / "tokenizer.json"))
    export(original, ours)
    assert (ours / "tokenizer_config.json").exists()
    readers = [load_language_model(folder).tokenizer for folder in (original, ours)]
    read = [reader("w2 <end> w3").input_ids for reader in readers if reader is not None]
    read.append(AutoTokenizer.from_pretrained(ours)("w2 <end> w3").input_ids)
    assert read == [[2, 1, 3]] * 3


def test_converted_on_loading(tmp_path: Path) -> None:
    original = tmp_path / "original"
    models.mamba().save_pretrained(original)
    assert not isinstance(load_language_model(original).model, StateTrackForCausalLM)
    loaded = load_language_model(original, convert=True, allow_neg_eigval=True)
    assert loaded.model.config.bos_token_id == 1
    assert (
        loaded.model.config.model_config == load_pretrained(original, allow_neg_eigval=True).config
    )


def test_a_run_of_train(run_folder: Path, tmp_path: Path, command: Command) -> None:
    code, _, err = command("lm", "export", run_folder, "--out", tmp_path / "out")
    assert code == 0, err
    tokens = torch.tensor([[0, 1, 1]])
    made, run = (load_language_model(path).model for path in (tmp_path / "out", run_folder))
    assert torch.equal(made(tokens).logits, run(tokens).logits)
    assert made.config.training_length == 40


def test_what_cannot_be_exported(tmp_path: Path, refused: Refused) -> None:
    with quiet():
        causal_model().save_pretrained(tmp_path / "ours")
        models.mamba().save_pretrained(tmp_path / "mamba")
    for options, says in (
        (["ours", "--out", "ours"], "ours exists and is not empty"),
        (["nowhere", "--out", "new"], "nowhere holds no language model"),
        (
            ["ours", "--out", "new", "--like", "mamba"],
            "vocab_size of the model is 23; in the other package it is 31",
        ),
        (["ours", "--out", "new", "--allow-neg-eigval", "True"], "ours is not one"),
    ):
        refused("lm", "export", *options, says=[says])
