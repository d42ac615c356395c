"""`statetrack lm data`: whole folders, or nothing that is used."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import tokenizers
from transformers import AutoTokenizer

from statetrack.errors import UserError
from statetrack.lm.data import TokenData, build, sources
from statetrack.lm.data.build import DataProgress, build_data
from statetrack.lm.data.config import DataConfig
from statetrack.lm.data.writer import PARTS
from tests.conftest import Command
from tests.lm.common import flip_bit

TEXTS = [f"def function_{i}(argument):\n    return argument + {i}\n" for i in range(60)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    for i, text in enumerate(TEXTS):
        (tmp_path / "source" / f"{i}.py").write_text(text)
    return tmp_path / "source"


def small(source: Path, **options: object) -> DataConfig:
    return DataConfig(**{"source": (str(source),), "vocab_size": 300, "validation": 0.2, **options})  # type: ignore[arg-type]


def decoded(data: TokenData) -> list[str]:
    tokenizer = tokenizers.Tokenizer.from_file(str(data.tokenizer_file))
    bounds = [*data.document_starts, data.num_tokens]
    rows = [data.read(a, b).tolist() for a, b in pairwise(bounds)]
    return [tokenizer.decode(row, skip_special_tokens=False) for row in rows]


@pytest.mark.parametrize("bos", [False, True])
def test_documents_come_back(
    source: Path, tmp_path: Path, bos: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "BATCH", 500)  # several batches
    shown: list[DataProgress] = []
    made = build_data(small(source, bos=bos), tmp_path / "data", shown.append)
    train, validation = (TokenData.open(tmp_path / "data", s) for s in ("train", "validation"))
    assert made.fingerprint == train.fingerprint
    before = "<|bos|>" if bos else ""
    found = decoded(train) + decoded(validation)
    assert sorted(found) == sorted(f"{before}{text}<|eos|>" for text in TEXTS)
    assert min(made.train.documents, made.validation.documents) > 0
    assert made.train.documents + made.validation.documents == 60
    named = AutoTokenizer.from_pretrained(tmp_path / "data")
    assert (named.eos_token, named.bos_token) == ("<|eos|>", before or None)
    assert shown[-1].doing == "tokenising"
    assert 0 < shown[-1].tokens <= made.train.tokens + made.validation.tokens


def test_the_folder_may_have_the_name_of_its_source(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source stdlib is the library even if a folder stdlib exists: the one being written."""
    monkeypatch.setattr(sources.sysconfig, "get_path", lambda name: str(source))
    monkeypatch.chdir(tmp_path)
    made = build_data(replace(small(source), source=("stdlib",)), tmp_path / "stdlib")
    assert made.train.documents + made.validation.documents == 60


def test_the_tokenizer_is_trained_on_train_alone(source: Path, tmp_path: Path) -> None:
    config = small(source)
    build_data(config, tmp_path / "a")
    validation = set(decoded(TokenData.open(tmp_path / "a", "validation")))
    for i, text in enumerate(TEXTS):
        if f"{text}<|eos|>" in validation:
            (source / f"{i}.py").write_text("zzz zzz zzz zzz zzz")
    build_data(config, tmp_path / "b")
    first, second = ((tmp_path / name / "tokenizer.json").read_text() for name in "ab")
    assert first == second


def test_the_same_twice(source: Path, tmp_path: Path) -> None:
    first = build_data(small(source), tmp_path / "a")
    second = build_data(small(source), tmp_path / "b")
    assert first == second
    given = build_data(small(source, tokenizer=str(tmp_path / "a")), tmp_path / "c")
    assert given.fingerprint == first.fingerprint


def test_splits_that_remain_empty(source: Path, tmp_path: Path, command: Command) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "file.py").write_text(TEXTS[0] * 20)
    with pytest.raises(
        UserError, match=r"no document fell to validation: .* a larger --validation"
    ):
        build_data(small(tmp_path / "one", vocab_size=270), tmp_path / "data")
    with pytest.raises(UserError, match=r"no document fell to train: .* a smaller --validation"):
        build_data(small(tmp_path / "one", validation=0.99), tmp_path / "data")
    assert not (tmp_path / "data").exists()
    build_data(small(tmp_path / "one", vocab_size=270, validation=0), tmp_path / "data")
    assert TokenData.open(tmp_path / "data").num_tokens > 20
    words = ["--vocab-size=270", "--validation=0"]
    told = command("lm", "data", "--out", tmp_path / "data", "--source", tmp_path / "one", *words)
    assert "data has no validation tokens: `lm train`, `lm perplexity`" in told.out
    tokenizer = str(tmp_path / "data")
    build_data(small(tmp_path / "one", validation=1, tokenizer=tokenizer), tmp_path / "other")
    assert TokenData.open(tmp_path / "other", "validation").num_tokens > 20


def test_a_single_text_file(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("".join(TEXTS))
    made = build_data(
        DataConfig(source=(str(tmp_path / "one.txt"),), vocab_size=300), tmp_path / "data"
    )
    assert (made.train.documents, made.validation.documents) == (1, 1)
    assert 0.02 < made.validation.tokens / made.train.tokens < 0.08


def test_the_command(source: Path, tmp_path: Path, command: Command) -> None:
    words = ["lm", "data", "--out", tmp_path / "data", "--source", source]
    words += ["--vocab-size", "300", "--validation", "0.2"]
    result = command(*words, "--json", "-")
    assert result.code == 0, result.err
    facts = json.loads(result.out)
    assert facts["there_before"] is False
    assert facts["train"]["documents"] + facts["validation"]["documents"] == 60
    again = command(*words)
    assert again.code == 0
    assert "was made with these options before" in again.out
    other = command(*words, "--bos")
    assert other.code == 2
    assert "was made with bos False, not True" in other.err
    flip_bit(tmp_path / "data" / "train-00000.bin")
    damaged = command(*words)
    assert damaged.code == 2
    assert "train-00000.bin is corrupt: its checksum differs" in damaged.err


def test_killed_in_the_middle(source: Path, tmp_path: Path, command: Command) -> None:
    folder = tmp_path / "data"
    code = f"""
import os, signal
from pathlib import Path
from statetrack.lm.data import build
from statetrack.lm.data.config import DataConfig
build.BATCH = 500
def kill(progress):
    if progress.tokens > 500:
        os.kill(os.getpid(), signal.SIGKILL)
config = DataConfig(source=({str(source)!r},), vocab_size=300, validation=0.2)
build.build_data(config, Path({str(folder)!r}), kill)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert (folder / PARTS / "train-00000.bin").exists()
    with pytest.raises(UserError, match="is not a data folder"):
        TokenData.open(folder)
    made = build_data(small(source), folder)
    assert made.train.documents + made.validation.documents == 60
    assert not [file for file in folder.iterdir() if file.name.startswith(".")]
    TokenData.open(folder).verify()
