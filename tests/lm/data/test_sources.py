"""Documents of every kind of source, their splits, and what is wrong with bad ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from statetrack.errors import UserError
from statetrack.lm.data import sources
from statetrack.lm.data.config import DataConfig
from statetrack.lm.data.sources import Document, documents
from statetrack.lm.data.templates import HUB_SETS, Template

ROWS = [{"text": f"text {i}", "title": f"title {i}"} for i in range(40)]


@pytest.fixture(autouse=True)
def hub_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def read(*source: str | Path, skipped: list[str] | None = None, **options: Any) -> list[Document]:
    config = DataConfig(source=tuple(map(str, source)), tokenizer="any", **options)
    return list(documents(config, skipped))


def texts(read: list[Document], split: str = "") -> list[str]:
    return [document.text for document in read if split in ("", document.split)]


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


@pytest.fixture(params=["jsonl", "parquet"])
def rows_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write = {"jsonl": write_jsonl, "parquet": write_parquet}[request.param]
    return write(tmp_path / f"rows.{request.param}", ROWS)


def test_rows(rows_file: Path) -> None:
    found = read(rows_file, validation=0.3)
    assert texts(found) == [row["text"] for row in ROWS]
    assert {"train", "validation"} == {document.split for document in found}
    assert texts(read(rows_file, field="title")) == [row["title"] for row in ROWS]
    filled = texts(read(rows_file, template="{title}: {text}, {title}"))
    assert filled[3] == "title 3: text 3, title 3"


def test_a_missing_key_is_named(rows_file: Path) -> None:
    with pytest.raises(UserError, match=rf"{rows_file.name}.*no .*'body'; it has: text, title"):
        read(rows_file, field="body")


def test_splits_depend_on_seed_and_document_only(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    first = read(file, validation=0.3)
    assert read(file, validation=0.3) == first
    assert read(file, validation=0.3, seed=1) != first
    write_jsonl(file, ROWS[:20])
    assert read(file, validation=0.3) == first[:20]  # later rows have no say
    assert texts(read(file, validation=0.3, split="validation")) == texts(first[:20], "validation")
    assert texts(read(file, validation=0), "validation") == []
    assert texts(read(file, validation=1), "train") == []


def test_at_most_so_many_documents(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    whole, some = read(file, validation=0.3), read(file, validation=0.3, max_documents=4)
    assert some == whole[:4]


def test_bad_lines_are_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    bad = ['{"text": ', "[1]", '{"text": 5}', '{"text": null}', '{"txt": "a"}', "\xff"]
    bad.append('{"text": "\\ud800"}')
    for line in bad:
        file.write_bytes(b'{"text": "a"}\n\n' + line.encode("latin-1") + b"\n")
        with pytest.raises(UserError, match=r"rows.jsonl.* \(?line 3[ :),]"):
            read(file)


def test_the_column_of_a_bad_line(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a"}\n{"text": \n')
    with pytest.raises(UserError, match=r"rows.jsonl \(line 2, column 9\): Expecting value$"):
        read(file)


def test_corrupt_parquet_is_named(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "rows.parquet", ROWS)
    good = file.read_bytes()
    for data in (b"", good[:-20], b"PAR1" + b"x" * 100 + b"PAR1"):
        file.write_bytes(data)
        with pytest.raises(UserError, match=r"cannot read .*rows.parquet"):
            read(file)


def test_text_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "book.txt"
    file.write_bytes("Zwölf\r\nLines\n".encode())
    assert texts(read(file)) == ["Zwölf\r\nLines\n"]
    monkeypatch.setattr(sources, "PIECE", 10)
    lines = [f"line {i}\n" for i in range(30)]
    file.write_text("".join(lines))
    pieces = texts(read(file, validation=0))
    assert "".join(pieces) == "".join(lines)
    assert len(pieces) == 15
    assert all(piece.endswith("\n") for piece in pieces)
    file.write_bytes(b"fine\n\xff\n")
    with pytest.raises(UserError, match=r"cannot read .*book.txt"):
        read(file)


@pytest.mark.parametrize(
    ("text", "validation", "held_out"),
    [
        ("one\ntwo\nthree\nfour\n", 0.5, "four\n"),
        ("one\ntwo\nthree\nfour\n", 0.99, "two\nthree\nfour\n"),
        ("one\ntwo\nthree\nfour\n", 1, "one\ntwo\nthree\nfour\n"),
        ("one\ntwo\nthree\nfour\n", 0, ""),
        ("ein langer Satz über alles", 0.5, "über alles"),
        ("Donaudampfschifffahrt", 0.5, ""),
    ],
)
def test_the_end_of_a_text_file_is_held_out(
    tmp_path: Path, text: str, validation: float, held_out: str
) -> None:
    file = tmp_path / "book.txt"
    file.write_text(text)
    found = read(file, validation=validation)
    assert texts(found, "validation") == ([held_out] if held_out else [])
    assert "".join(texts(found)) == text


def test_the_splits_of_a_text_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PIECE", 100)
    file = tmp_path / "book.txt"
    file.write_text("line of text\n" * 1000)
    found = read(file)
    assert sum(map(len, texts(found, "validation"))) == pytest.approx(0.05 * 13_000, abs=13)
    assert read(file, split="validation") == found[-len(texts(found, "validation")) :]
    assert read(file, max_documents=1) == [found[0], found[len(texts(found, "train"))]]


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    for i in range(20):
        (tmp_path / "a" / f"{i:02}.py").write_text(f"x = {i}\ny = {i}\n")
    (tmp_path / "a" / "empty.py").write_text("")
    (tmp_path / "a" / "notes.md").write_text("notes")
    (tmp_path / "b.py").write_bytes(b"\xff")
    skipped: list[str] = []
    assert texts(read(tmp_path, skipped=skipped)) == [f"x = {i}\ny = {i}\n" for i in range(20)]
    assert skipped == ["b.py"]
    assert texts(read(tmp_path, suffix=(".md",))) == ["notes"]
    write_jsonl(tmp_path / "rows.jsonl", ROWS)
    assert len(read(tmp_path, suffix=(".md", ".jsonl"))) == 41
    # all pieces of a file are in one split
    monkeypatch.setattr(sources, "PIECE", 1)
    pieces = read(tmp_path, validation=0.5)
    assert len(pieces) == 40
    assert all(a.split == b.split for a, b in zip(pieces[::2], pieces[1::2], strict=True))
    # and the split does not depend on where the folder lies
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    assert read(moved, validation=0.5) == pieces


def test_the_standard_library() -> None:
    found = texts(read("stdlib", max_documents=30))
    folder = Path(sysconfig.get_path("stdlib"))
    assert (folder / "abc.py").read_text() in found
    assert len(found) == 30


def test_nothing_to_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes").mkdir()
    for name in ("a.txt", "b.txt", "c.md", "README"):
        (tmp_path / "notes" / name).write_text("notes")
    with pytest.raises(UserError, match=r"notes has no files .* \.py: give --suffix \.txt \.md$"):
        read(tmp_path / "notes")
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "empty.txt").write_text("")
    for name in ("empty", "empty.jsonl", "empty.txt"):
        with pytest.raises(UserError, match=f"{name} has no documents"):
            read(tmp_path / name)
    write_jsonl(tmp_path / "rows.jsonl", ROWS)
    with pytest.raises(UserError, match="has no documents for validation"):
        read(tmp_path / "rows.jsonl", split="validation", validation=0)
    with pytest.raises(UserError, match=r"nothing does not exist; .*stdlib, fineweb"):
        read("nothing")


@pytest.mark.parametrize("named", [True, False])
def test_hub_sets_with_a_validation_split(tmp_path: Path, named: bool) -> None:
    """A folder of JSONL files is a data set, too."""
    write_jsonl(tmp_path / "train.jsonl", ROWS)
    write_jsonl(tmp_path / "validation.jsonl", ROWS[:3])
    found = read(f"hf:{tmp_path}" + ":default" * named)
    assert texts(found, "train") == [row["text"] for row in ROWS]
    assert texts(found, "validation") == [row["text"] for row in ROWS[:3]]
    assert texts(read(f"hf:{tmp_path}", split="validation")) == texts(found, "validation")
    assert len(read(f"hf:{tmp_path}", max_documents=2)) == 4


def test_hub_sets_without_a_validation_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"query": f"q{i}", "answer": f"a{i}"} for i in range(5000)]
    write_jsonl(tmp_path / "train.jsonl", rows)
    local = HUB_SETS["trivia-qa"]._replace(path=str(tmp_path), config=None)
    monkeypatch.setitem(HUB_SETS, "trivia-qa", local)
    found = read("trivia-qa")
    assert sorted(texts(found)) == sorted(f"Question: q{i}, Answer: a{i}" for i in range(5000))
    assert len(texts(found, "validation")) == 3  # 0.05 %
    assert read("trivia-qa") == found
    assert len(texts(read("trivia-qa", validation=1))) == 5000
    streamed = read(f"hf:{tmp_path}", field="query", validation=0.25)
    assert texts(streamed) == [row["query"] for row in rows]
    assert 1100 < len(texts(streamed, "validation")) < 1400
    with pytest.raises(UserError, match=r"row 1 has no 'text'; it has: query, answer"):
        read(f"hf:{tmp_path}")


def test_without_a_network(tmp_path: Path) -> None:
    code = """
from statetrack.lm.data.config import DataConfig
from statetrack.lm.data.sources import documents
next(documents(DataConfig(source=("fineweb",), max_documents=1)))
"""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("statetrack.errors.UserError: cannot read HuggingFaceFW/fineweb from")


def test_templates_of_the_paper() -> None:
    filled = {
        name: Template(hub_set.template).fill(
            dict.fromkeys(("text", "content", "problem", "solution", "query", "answer"), "…"), name
        )
        for name, hub_set in HUB_SETS.items()
    }
    assert filled["math-hard"] == "Problem: …, Solution: …"
    assert filled["trivia-qa"] == "Question: …, Answer: …"
    assert {filled[name] for name in ("fineweb", "codeparrot", "slimpajama")} == {"…"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": ()}, "--source"),
        ({"validation": 1.5}, r"validation must lie in 0\.\.1"),
        ({"max_documents": 0}, "max_documents"),
        ({"template": "no key"}, "template"),
        ({"vocab_size": 257}, r"258\.\.1,048,576"),
        ({"seed": -1}, "seed"),
        ({"split": "test"}, "split must be one of both, train, validation"),
        ({"split": "validation"}, "--tokenizer"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        DataConfig(**options)
