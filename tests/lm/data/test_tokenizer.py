"""Tokenizers: trained here, and read with whatever they bring."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from transformers import AutoTokenizer

from statetrack.errors import UserError
from statetrack.lm.data.tokenizer import load_tokenizer, train_tokenizer

TEXTS = [f"def function_{i}(argument): return argument + {i}\n" for i in range(100)]


def test_texts_are_decoded_again() -> None:
    tokenizer = train_tokenizer(TEXTS, 300)
    assert tokenizer.vocab_size == 300
    odd = ["", "naïve ☃ 🙂\t\r\n\0", " leading", TEXTS[7]]
    for text, ids in zip(odd, tokenizer.encode(odd), strict=True):
        assert tokenizer.tokenizer.decode(ids) == text
        assert tokenizer.eos not in ids
        assert tokenizer.bos_id not in ids


def test_names_of_special_tokens_in_a_text_are_plain_text(tmp_path: Path) -> None:
    trained = train_tokenizer(TEXTS, 300)
    (tmp_path / "tokenizer.json").write_text(trained.to_json(bos=True))
    (tmp_path / "tokenizer_config.json").write_text(trained.settings(bos=True))
    of_transformers = AutoTokenizer.from_pretrained(tmp_path)
    for tokenizer in (trained, load_tokenizer(str(tmp_path))):
        (ids,) = tokenizer.encode(["<|eos|> and <|bos|>"])
        assert of_transformers("<|eos|> and <|bos|>").input_ids == [trained.bos_id, *ids]
        assert not {tokenizer.eos, tokenizer.bos_id} & set(ids)
        assert tokenizer.tokenizer.decode(ids) == "<|eos|> and <|bos|>"


def test_the_same_texts_give_the_same_tokenizer() -> None:
    """In any process and with any number of threads."""
    code = f"""
from statetrack.lm.data.tokenizer import train_tokenizer
print(train_tokenizer({TEXTS!r}, 320).to_json())
"""
    environment = {**os.environ, "RAYON_NUM_THREADS": "3"}
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == train_tokenizer(TEXTS, 320).to_json()


def test_too_few_texts() -> None:
    with pytest.raises(UserError, match="of 5000 tokens; choose a smaller --vocab-size"):
        train_tokenizer(TEXTS, 5000)


def write(folder: Path, specials: list[str], settings: dict[str, Any] | None) -> Path:
    made = tokenizers.Tokenizer.from_str(train_tokenizer(TEXTS, 300).to_json())
    made.add_special_tokens(specials)
    made.enable_truncation(3)
    made.enable_padding()
    made.save(str(folder / "tokenizer.json"))
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_special_tokens_are_those_of_the_settings(tmp_path: Path) -> None:
    settings = {"eos_token": {"content": "</s>"}, "bos_token": None}
    loaded = load_tokenizer(str(write(tmp_path, ["<s>", "</s>"], settings)))
    assert (loaded.eos, loaded.bos_id, loaded.vocab_size) == (301, None, 302)
    assert load_tokenizer(str(tmp_path / "tokenizer.json")).eos == 301
    (tmp_path / "tokenizer_config.json").unlink()
    loaded = load_tokenizer(str(tmp_path))
    assert (loaded.eos, loaded.bos_id) == (1, 0)
    of_run = tmp_path.rename(tmp_path.with_name("model")).parent
    assert load_tokenizer(str(of_run)).to_json() == loaded.to_json()


def test_stored_truncation_and_padding_are_dropped(tmp_path: Path) -> None:
    loaded = load_tokenizer(str(write(tmp_path, [], None)))
    texts = [*TEXTS[:2], "a"]
    assert loaded.encode(texts) == train_tokenizer(TEXTS, 300).encode(texts)


def test_bad_tokenizers_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no EOS token"):
        load_tokenizer(str(write(tmp_path, [], {"eos_token": "</none>"})))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"cannot read .*tokenizer.json as a tokenizer"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer.json"):
        load_tokenizer(str(tmp_path))


def test_a_tokenizer_that_is_nowhere(tmp_path: Path) -> None:
    code = "from statetrack.lm.data.tokenizer import load_tokenizer; load_tokenizer('some/where')"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("statetrack.errors.UserError: the tokenizer some/where is not a file")
