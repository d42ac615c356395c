"""`dataset:FILE`: a user's own sequences, their splits, and every mistake by line and key."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from statetrack.errors import UserError
from statetrack.models import SequenceModel
from statetrack.tasks import IGNORE, Stream, Task, generator, make_task
from statetrack.tasks.exchange import export_task
from statetrack.training import Run, evaluate
from tests.conftest import Command
from tests.training.small import small_config

ROWS = [
    {"input": [i % 5, i % 7, *[3] * (i % 4)], "target": [-1, (i % 5 + i % 7) % 3] + [-1] * (i % 4)}
    for i in range(140)
]  # 140 different inputs of lengths 2 to 5


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def dataset(path: Path, rows: list[Any] = ROWS) -> Task:
    return make_task(f"dataset:{write(path / 'data.jsonl', rows)}")


def known(rows: list[Any]) -> set[tuple[Any, ...]]:
    return {(tuple(row["input"]), tuple(row["target"])) for row in rows}


def drawn(task: Task, split: str, steps: int = 30) -> set[tuple[Any, ...]]:
    """The sequences of a stream, without padding."""
    stream, found = Stream(task, split, 0, 64, 2, 5), set()
    for step in range(steps):
        for tokens, targets, length in zip(*stream.batch(step), strict=True):
            assert (tokens[length:] == task.pad).all()
            assert (targets[length:] == IGNORE).all()
            found.add((tuple(tokens[:length].tolist()), tuple(targets[:length].tolist())))
    return found


def test_sequences_come_back_with_their_targets(tmp_path: Path) -> None:
    task = dataset(tmp_path)
    assert task.vocab == ("0", "1", "2", "3", "4", "5", "6", "PAD")
    assert task.chance == 1 / 3
    parts = {split: drawn(task, split) for split in ("train", "validation", "test")}
    assert set().union(*parts.values()) == known(ROWS)
    assert sum(map(len, parts.values())) == 140  # no sequence is in two splits
    assert 90 < len(parts["train"]) < 130


def test_names_of_tokens(tmp_path: Path) -> None:
    rows = [
        {"input": ["b", "a"], "target": [None, "yes"]},
        {"input": ["a", "a", "c"], "target": ["no", None, "yes"]},
    ]
    task = dataset(tmp_path, rows)
    assert task.vocab == ("a", "b", "c", "no", "yes", "PAD")
    solved = task.solve(np.array([[1, 0, 5], [0, 0, 2]]))
    assert solved.tolist() == [[-1, 4, -1], [3, -1, 4]]


def test_splits_that_rows_name(tmp_path: Path) -> None:
    names = ["train", "train", "train", "test"]
    rows = [{**row, "split": names[i % 4]} for i, row in enumerate(ROWS)]
    task = dataset(tmp_path, rows)
    assert drawn(task, "test") == known(rows[3::4])
    held_out = drawn(task, "validation")
    assert 0 < len(held_out) < 30
    assert drawn(task, "train") | held_out == known([r for r in rows if r["split"] == "train"])
    assert not drawn(task, "train") & held_out
    named = [{**row, "split": "validation"} if i < 5 else row for i, row in enumerate(rows)]
    task = dataset(tmp_path, named)
    assert drawn(task, "validation") == known(named[:5])
    only = dataset(tmp_path, [{**row, "split": "train"} for row in ROWS])
    with pytest.raises(UserError, match=r"data.jsonl has no test sequences"):
        only.for_split("test")


def test_the_split_of_a_sequence_depends_on_no_other(tmp_path: Path) -> None:
    whole = drawn(dataset(tmp_path), "test")
    assert drawn(dataset(tmp_path, ROWS[:70]), "test") == whole & known(ROWS[:70])


def test_rows_are_equally_likely(tmp_path: Path) -> None:
    rows = [{"input": [0] * n, "target": [n % 2] * n} for n in (1, 40, 41)]
    task = dataset(tmp_path, rows)
    lengths = task.sample_lengths(np.random.default_rng(0), 1, 50, 3000)
    assert np.unique(lengths, return_counts=True)[0].tolist() == [1, 40, 41]
    assert np.unique(lengths, return_counts=True)[1].min() > 900
    assert sorted(task.sample_lengths(np.random.default_rng(0), 1, 50, 3)) == [1, 40, 41]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_exported_files(tmp_path: Path, suffix: str) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    parity, path = make_task("parity"), tmp_path / f"parity.{suffix}"
    export_task(parity, path, count=50, lengths=(4, 9))
    task = make_task(f"dataset:{path}")
    assert task.vocab == ("0", "1", "2", "PAD")
    batch = task.sample(generator(0, "test", 0), np.array([5, 5]))  # parity of length 6
    assert batch.targets.tolist() == parity.solve(batch.tokens).tolist()


GOOD = {"input": [0, 1], "target": [0, 1]}
BAD = [
    ("[", " .line 3, column 2.: "),
    ("5", "line 3 must be an object with the keys 'input' and 'target'"),
    ({"input": [1]}, "line 3 lacks the key 'target'"),
    ({**GOOD, "inputs": [1]}, "line 3: unknown key 'inputs'; known: input, target, length, split"),
    ({**GOOD, "input": 1}, "line 3: 'input' must be a list"),
    ({**GOOD, "input": []}, "line 3: 'input' must be a list of tokens, at least one"),
    ({**GOOD, "input": [0, 1.5]}, r"line 3: 'input'\[1\] must be a whole number in .*; got 1.5"),
    ({**GOOD, "input": [0, True]}, r"line 3: 'input'\[1\] must be a whole number"),
    ({**GOOD, "input": [-1, 0]}, r"line 3: 'input'\[0\] must be a whole number in 0\.\."),
    ({**GOOD, "input": [0, 10**9]}, r"line 3: 'input'\[1\] must be a whole number in 0\.\."),
    ({**GOOD, "input": ["a", "b"]}, r"line 3: 'input'\[0\] must be a whole number"),
    ({**GOOD, "target": [0, "b"]}, r"line 3: 'target'\[1\] must be a whole number"),
    ({**GOOD, "target": [0, -2]}, r"line 3: 'target'\[1\] must be a whole number"),
    ({**GOOD, "target": [1]}, "line 3: 'target' has 1 values, 'input' 2"),
    ({**GOOD, "target": [-1, None]}, "line 3: 'target' asks for nothing"),
    ({**GOOD, "target": [0, 0]}, "line 3: 'target' differs from that of the same input before"),
    ({**GOOD, "split": "dev"}, "line 3: 'split' must be one of train, validation, test; got 'dev'"),
    ({**GOOD, "split": "train"}, "either all rows have the key 'split' or none"),
]


@pytest.mark.parametrize(("row", "message"), BAD, ids=[message for _, message in BAD])
def test_mistakes_are_named(tmp_path: Path, row: Any, message: str) -> None:
    path = tmp_path / "data.jsonl"
    third = row if isinstance(row, str) else json.dumps(row)
    path.write_text(f"{json.dumps(GOOD)}\n\n{third}\n")
    with pytest.raises(UserError, match=f"data.jsonl.*{message}"):
        make_task(f"dataset:{path}")


def test_files_that_will_not_do(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("x")
    write(tmp_path / "empty.jsonl", [])
    write(tmp_path / "same.jsonl", [{"input": [0], "target": [1]}, {"input": [1], "target": [1]}])
    write(tmp_path / "pad.jsonl", [{"input": ["PAD"], "target": ["a"]}])
    (tmp_path / "bad.parquet").write_text("x")
    for name, message in (
        ("", "a data set needs a file"),
        (str(tmp_path), "Is a directory"),
        (str(tmp_path / "none.jsonl"), "none.jsonl does not exist"),
        (str(tmp_path / "data.txt"), r"data.txt must end in one of .jsonl, .parquet"),
        (str(tmp_path / "empty.jsonl"), "empty.jsonl has no sequences"),
        (str(tmp_path / "same.jsonl"), "same.jsonl has one answer only"),
        (str(tmp_path / "pad.jsonl"), "must not be called 'PAD'"),
    ):
        with pytest.raises(UserError, match=message):
            make_task(f"dataset:{name}")
    pytest.importorskip("pyarrow")
    with pytest.raises(UserError, match=r"cannot read .*bad.parquet"):
        make_task(f"dataset:{tmp_path / 'bad.parquet'}")


def test_lengths_that_no_sequence_has(tmp_path: Path) -> None:
    task = dataset(tmp_path)
    for low, high in ((1, 1), (6, 90)):
        with pytest.raises(UserError, match=f"length {low} to {high}; its lengths are 2 to 5"):
            task.check_lengths(low, high)
    sparse = dataset(tmp_path, [{"input": [0] * n, "target": [n % 2] * n} for n in (1, 2, 9)])
    assert [sparse.near_length(n) for n in (0, 2, 5, 6, 100)] == [1, 2, 2, 9, 9]
    with pytest.raises(UserError, match="no sequence of length 5"):
        sparse.sample(np.random.default_rng(0), np.array([1, 5, 9]))
    with pytest.raises(UserError, match="a sequence is none of"):
        sparse.solve(np.array([[0, 1]]))


def test_a_file_that_has_changed(tmp_path: Path) -> None:
    task = dataset(tmp_path)
    assert make_task(task.name) == task
    write(tmp_path / "data.jsonl", ROWS[:-1])
    assert make_task(task.name) != task
    with pytest.raises(UserError, match=r"data.jsonl has changed: its SHA-256 is not"):
        replace(task)


def test_an_evaluation_uses_each_sequence_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in several batches; the model is one that is never asked."""
    task = dataset(tmp_path)
    seen: list[tuple[int, ...]] = []

    def predict(model: object, tokens: np.ndarray) -> np.ndarray:
        seen.extend(tuple(row[row != task.pad].tolist()) for row in tokens)
        return np.zeros_like(tokens)

    module = sys.modules[evaluate.__module__]
    monkeypatch.setattr(module, "predict", predict)
    monkeypatch.setattr(module, "TOKENS_PER_CALL", 16)
    model = SequenceModel(small_config().model)
    for split, samples in (("train", 1000), ("test", 1000), ("train", 20)):
        seen.clear()
        result = evaluate(model, task, (2, 5), samples=samples, split=split)
        assert result.samples == len(seen) == len(set(seen))
        own = {tokens for tokens, _ in drawn(task, split)}
        assert set(seen) == own if samples == 1000 else set(seen) < own


def test_train_and_eval(tmp_path: Path, command: Command) -> None:
    data = write(tmp_path / "data.jsonl", ROWS)
    small = ["--steps", "4", "--batch-size", "8", "--hidden-size", "8", "--num-layers", "1"]
    words = ["--task", f"dataset:{data}", "--out", tmp_path / "run"]
    result = command("train", *words, *small, "--eval-every", "2")
    assert result.code == 0, result.err
    config = Run.open(tmp_path / "run").config
    assert (config.training.min_length, config.training.max_length) == (2, 5)
    assert config.model.vocab_size == 8
    found = command("eval", tmp_path / "run", "--json", "-", "--curve", "100")
    assert found.code == 0, found.err
    facts = json.loads(found.out)
    assert [(r["min_length"], r["max_length"]) for r in facts["results"]] == [(2, 5), (5, 5)]
    assert facts["curve"]["lengths"] == [2, 3, 4, 5]
    shown = command("tasks", f"dataset:{data}")
    assert re.search(r"input: +\d \d 3 3 3\n", shown.out)
    refused = command("train", *words[:2], *small, "--dataset-size", "50", "--min-length", "5")
    assert refused.code == 2
    assert "is a finite set itself" in refused.err
    write(data, ROWS[:-1])
    changed = command("eval", tmp_path / "run")
    assert changed.code == 2
    assert "data.jsonl has changed" in changed.err
