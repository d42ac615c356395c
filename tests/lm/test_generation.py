"""`statetrack lm generate` and the function behind it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from statetrack.cli.lm_generate import printable
from statetrack.errors import UserError
from statetrack.lm.generation import continue_text
from statetrack.lm.load import LanguageModel, load_language_model, quiet
from tests.conftest import Command, Refused
from tests.lm.common import HYBRID, causal_model, write_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with quiet():
        causal_model(HYBRID, eos_token_id=1).save_pretrained(tmp_path / "model")
    write_tokenizer(tmp_path / "model")
    return tmp_path


@pytest.fixture
def model(folder: Path) -> LanguageModel:
    return load_language_model(folder)


def test_pieces_are_the_text(model: LanguageModel) -> None:
    pieces: list[str] = []
    made = continue_text(model, "w2 w5 w3", tokens=9, temperature=0.0, show=pieces.append)
    assert "".join(pieces) == made.prompt + made.text
    assert len(pieces) > 3
    assert model.tokenizer is not None
    tokens = model.tokenizer("w2 w5 w3").input_ids
    for new in made.tokens:
        logits = model.model(torch.tensor([tokens])).logits[0, -1]
        assert new == logits.argmax().item()
        tokens.append(new)


def test_seeds_and_options(model: LanguageModel) -> None:
    def draw(**options: float) -> list[int]:
        return continue_text(model, "w4", tokens=12, **options).tokens  # type: ignore[arg-type]

    state = torch.get_rng_state()
    assert draw(seed=1) == draw(seed=1) != draw(seed=2)
    assert torch.equal(torch.get_rng_state(), state)
    likeliest = draw(temperature=0)
    assert draw(temperature=1e-4, seed=3) == draw(top_p=1e-6, seed=4) == likeliest


def test_the_end_of_a_document_ends_the_text(model: LanguageModel) -> None:
    with torch.no_grad():
        model.model.sequence_model.head.weight.zero_()
    # all tokens are equally likely, so that the first, w0, is taken; then the end, token 1
    assert continue_text(model, "w4", tokens=3, temperature=0).tokens == [0, 0, 0]
    model.model.sequence_model.embedding.weight.data.abs_()
    made = continue_text(model, "", tokens=200, seed=5)  # an empty prompt begins with the end
    assert 0 < len(made.tokens) < 200
    assert 1 not in made.tokens


def test_the_command(folder: Path, command: Command) -> None:
    options = ["--prompt", "w2 w3", "--tokens", "4", "--temperature", "0"]
    code, out, err = command("lm", "generate", folder, *options, "--json", "-")
    assert code == 0, err
    result = json.loads(out)
    assert 0 < len(result["tokens"]) <= 4
    assert result["text"] in err
    code, out, err = command("lm", "generate", folder, *options)
    assert (code, err) == (0, "")
    assert out.startswith(f"w2 w3{result['text']}\n\n{len(result['tokens'])} tokens in")


def test_control_characters_are_replaced() -> None:
    assert printable("caf\xe9\xa0\u3000\U0001f468\u200d\U0001f469\n") == (
        "caf\xe9\xa0\u3000\U0001f468\u200d\U0001f469\n"
    )
    assert printable("\x1b[2J\x9b\u202e") == "\ufffd[2J\ufffd\ufffd"
    assert printable("\u061c\u200e\u200f\u2066") == "\ufffd" * 4


def test_what_is_refused(
    folder: Path, model: LanguageModel, run_folder: Path, refused: Refused
) -> None:
    refused("lm", "generate", run_folder, says=["has no tokenizer.json"])
    wrong = ["--prompt", "w2", "--tokens", "0"]
    refused("lm", "generate", run_folder, *wrong, says=["tokens must lie in 1.."])
    refused(
        "lm", "generate", folder / "model", "--prompt", "w2 \udcff", says=["is not text in UTF-8"]
    )
    for value, says in (("1e-9", "a temperature other than 0 must lie"), ("-1", "at least 0")):
        refused("lm", "generate", run_folder, f"--temperature={value}", says=[says])
    refused("lm", "generate", run_folder, "--top-p", "2", says=["top_p must lie in 0..1"])
    tokenizer = model.tokenizer
    assert tokenizer is not None
    tokenizer.eos_token = None
    with pytest.raises(UserError, match="an empty prompt needs"):
        continue_text(model, "")
