"""Data folders: what is written is read again, and damaged files are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from statetrack.errors import UserError
from statetrack.lm.data import TokenData, write_tokens
from statetrack.lm.data.shards import DESCRIPTION, TOKENIZER
from statetrack.lm.data.writer import PARTS, complete, data_writer
from tests.lm.common import flip_bit

DOCUMENTS = [[5, 6, 7], [], [8, 9], [7, 7, 7, 7]]  # one is empty
FLAT = [5, 6, 7, 1, 1, 8, 9, 1, 7, 7, 7, 7, 1]
STARTS = [0, 4, 5, 8]


def written(folder: Path, **options: Any) -> Path:
    options = {"vocab_size": 10, "eos": 1, "bos_id": 0, "tokenizer": "{}", **options}
    write_tokens(folder, {"train": DOCUMENTS, "validation": DOCUMENTS[:1]}, **options)
    return folder


@pytest.mark.parametrize("shard_tokens", [1, 4, 5, 13, 1000])
@pytest.mark.parametrize(("vocab_size", "dtype"), [(2**16, "uint16"), (2**16 + 1, "uint32")])
def test_what_is_written_is_read(
    tmp_path: Path, shard_tokens: int, vocab_size: int, dtype: str
) -> None:
    folder = written(tmp_path / "data", shard_tokens=shard_tokens, vocab_size=vocab_size)
    data = TokenData.open(folder)
    assert (data.num_tokens, data.vocab_size, data.description.dtype) == (13, vocab_size, dtype)
    assert data.document_starts.tolist() == STARTS
    assert data.tokenizer_file.read_text() == "{}"
    for start in range(14):
        for stop in range(start, 14):
            read = data.read(start, stop)
            assert read.dtype == np.int64
            assert read.tolist() == FLAT[start:stop]
    data.verify()
    assert TokenData.open(folder, "validation").read(0, 4).tolist() == FLAT[:4]
    assert len(list(folder.glob("train-*.bin"))) == -(-13 // shard_tokens)
    assert not (folder / PARTS).exists()


def verify_error(data: TokenData, rank: int, processes: int) -> str:
    """Return the error that a process finds, if any."""
    try:
        data.verify(rank, processes)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("processes", [1, 2, 3, 9])
def test_processes_share_the_files(tmp_path: Path, processes: int) -> None:
    """Each damaged file is found by exactly one of them."""
    folder = written(tmp_path / "data", shard_tokens=4)
    data = TokenData.open(folder)
    files = [*folder.glob("train-*"), data.tokenizer_file]
    assert len(files) == 4 + 2  # shards, where documents start, and the tokenizer
    for file in files:
        before = file.read_bytes()
        flip_bit(file)
        found = [verify_error(data, rank, processes) for rank in range(processes)]
        assert [file.name in text for text in found if text] == [True]
        file.write_bytes(before)


def test_the_largest_token_fits(tmp_path: Path) -> None:
    for size in (2**16, 2**16 + 1, 200_000):
        folder = tmp_path / str(size)
        write_tokens(folder, {"train": [[size - 1, 3]]}, vocab_size=size, eos=1)
        assert TokenData.open(folder).read(0, 3).tolist() == [size - 1, 3, 1]


def test_bos_stands_before_each_document(tmp_path: Path) -> None:
    data = TokenData.open(written(tmp_path / "data", bos=True))
    assert data.read(0, 17).tolist() == [0, 5, 6, 7, 1, 0, 1, 0, 8, 9, 1, 0, 7, 7, 7, 7, 1]
    assert data.document_starts.tolist() == [0, 5, 7, 11]
    assert data.description.bos
    with pytest.raises(UserError, match="no BOS"):
        written(tmp_path / "other", bos=True, bos_id=None)


def test_the_fingerprint_is_that_of_the_tokens(tmp_path: Path) -> None:
    def fingerprint(name: str, **options: Any) -> str:
        return TokenData.open(written(tmp_path / name, **options)).fingerprint

    first = fingerprint("a", options={"source": "x"})
    assert fingerprint("b", options={"source": "y"}) == first
    others = [{"bos": True}, {"eos": 2}, {"vocab_size": 11}, {"tokenizer": "{ }"}]
    assert len({first, *(fingerprint(f"o{i}", **o) for i, o in enumerate(others))}) == 5


@pytest.mark.parametrize("token", [-1, 10])
def test_tokens_outside_the_vocabulary_are_refused(tmp_path: Path, token: int) -> None:
    with pytest.raises(UserError, match=r"0\.\.9"):
        write_tokens(tmp_path / "data", {"train": [[token]]}, vocab_size=10, eos=1)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_split_is_named(tmp_path: Path) -> None:
    write_tokens(tmp_path / "data", {"train": [[2]]}, vocab_size=10, eos=1)
    with pytest.raises(UserError, match="no validation tokens: make a folder with --split both"):
        TokenData.open(tmp_path / "data", "validation")
    with pytest.raises(UserError, match="split must be one of"):
        TokenData.open(tmp_path / "data", "test")


@pytest.mark.parametrize("name", ["train-00001.bin", "train-documents.npy", TOKENIZER])
def test_damaged_files_are_named(tmp_path: Path, name: str) -> None:
    file = written(tmp_path / "data", shard_tokens=5) / name
    good = file.read_bytes()
    flip_bit(file)
    with pytest.raises(UserError, match=name):
        TokenData.open(tmp_path / "data").verify()
    file.write_bytes(good[:-1])
    with pytest.raises(UserError, match=name):
        TokenData.open(tmp_path / "data").verify()
    file.unlink()
    with pytest.raises(UserError, match=f"{name} does not exist"):
        TokenData.open(tmp_path / "data").verify()


def test_truncated_files_are_named_when_opened(tmp_path: Path) -> None:
    folder = written(tmp_path / "data", shard_tokens=5)
    for name in ("train-documents.npy", "train-00001.bin"):
        good = (folder / name).read_bytes()
        for size in (0, len(good) - 1, len(good) + 1):
            (folder / name).write_bytes((good + b"\0")[:size])
            if (size, name) != (len(good) + 1, "train-documents.npy"):  # numpy reads no further
                with pytest.raises(UserError, match=f"{name} is corrupt"):
                    TokenData.open(folder)
        (folder / name).write_bytes(good)


def test_tokens_that_are_none_are_named_when_read(tmp_path: Path) -> None:
    folder = written(tmp_path / "data", shard_tokens=5)
    (folder / "train-00001.bin").write_bytes(b"\xff" * 10)
    data = TokenData.open(folder)
    assert data.read(0, 5).tolist() == FLAT[:5]
    with pytest.raises(UserError, match=r"train-00001.bin is corrupt"):
        data.read(0, 6)


def test_bad_descriptions_are_named(tmp_path: Path) -> None:
    folder = written(tmp_path / "data")
    good = json.loads((folder / DESCRIPTION).read_text())
    changes: list[tuple[dict[str, Any], str]] = [
        ({"eos": 3}, "has been changed"),
        ({"schema": 2}, "schema"),
        ({"dtype": "int8"}, "dtype"),
        ({"extra": 1}, "unknown key 'extra'"),
    ]
    for change, message in changes:
        (folder / DESCRIPTION).write_text(json.dumps({**good, **change}))
        with pytest.raises(UserError, match=message):
            TokenData.open(folder)
    (folder / DESCRIPTION).write_text("[")
    with pytest.raises(UserError, match=DESCRIPTION):
        TokenData.open(folder)
    (folder / DESCRIPTION).unlink()
    with pytest.raises(UserError, match="is not a data folder"):
        TokenData.open(folder)


def test_what_is_left_of_a_killed_process_is_not_used(tmp_path: Path) -> None:
    parts = tmp_path / "data" / PARTS
    parts.mkdir(parents=True)
    (parts / "train-00000.bin").write_bytes(b"half")
    assert not complete(tmp_path / "data")
    assert TokenData.open(written(tmp_path / "data")).num_tokens == 13


def test_a_folder_killed_while_its_files_are_moved_is_completed(tmp_path: Path) -> None:
    folder = written(tmp_path / "data", shard_tokens=5)
    (folder / PARTS).mkdir()
    for name in (DESCRIPTION, "train-00002.bin"):
        (folder / name).rename(folder / PARTS / name)
    with pytest.raises(UserError, match="is not a data folder"):
        TokenData.open(folder)
    assert complete(folder)
    TokenData.open(folder).verify()


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        written(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_nothing_is_left_without_finish(tmp_path: Path) -> None:
    with data_writer(tmp_path / "data") as writer:
        writer.start(vocab_size=10, eos=1, bos_id=None, bos=False, tokenizer="")
        writer.add("train", DOCUMENTS)
        assert (tmp_path / "data" / PARTS / "train-00000.bin").exists()
    assert list(tmp_path.iterdir()) == []
