"""Tasks as files: what is written comes back, and what is wrong is found."""

from __future__ import annotations

import csv
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from statetrack.errors import UserError
from statetrack.tasks import Batch, Stream, Task, exchange, make_task
from statetrack.tasks.exchange import compare_task, export_task, import_task
from tests.tasks.reference import word_problem_targets
from tests.tasks.variants import VARIANTS, WORD_PROBLEMS, each


def export(task: Task, path: Path, **options: Any) -> None:
    low = max(2, task.min_length)
    defaults = {"format": path.suffix[1:], "count": 20, "lengths": (low, low + 10)}
    export_task(task, path, **{**defaults, **options})


def drawn(task: Task, **options: Any) -> Batch:
    """What `export` should write."""
    low = max(2, task.min_length)
    settings = {"split": "test", "data_seed": 0, "size": 20, **options}
    return Stream(task, min_length=low, max_length=low + 10, **settings).batch(0)


def assert_same(a: Batch, b: Batch) -> None:
    for x, y in zip(a, b, strict=True):
        assert x.dtype == y.dtype == np.int64
        np.testing.assert_array_equal(x, y)


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@each(VARIANTS)
def test_jsonl(task: Task, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    export(task, path)
    assert_same(import_task(task, path), drawn(task))


def test_what_a_line_of_jsonl_holds(tmp_path: Path) -> None:
    task = make_task("parity")
    path = tmp_path / "data.jsonl"
    export(task, path)
    batch = drawn(task)
    lines = path.read_text().splitlines()
    assert len(lines) == 20
    for line, tokens, targets, length in zip(lines, *batch, strict=True):
        assert (
            json.loads(line)
            == {
                "length": length,
                "input": tokens[: length - 1].tolist(),  # without padding
                "target": targets[: length - 1].tolist(),
            }
        )


@each(WORD_PROBLEMS)
def test_csv(task: Task, tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    export(task, path)
    assert "-" not in path.read_text()  # a target for every token, whatever the supervision
    assert_same(import_task(task, path), drawn(replace(task, supervision="dense")))


@pytest.mark.parametrize("name", ["S5", "A4_x_Z5"])
def test_what_a_csv_holds(name: str, tmp_path: Path) -> None:
    task = make_task(name)
    path = tmp_path / "data.csv"
    export(task, path, data_seed=7)
    assert path.read_text().startswith("seed,input,target\n")
    batch = drawn(task, data_seed=7)
    rows = read_csv(path)
    assert len(rows) == 20
    for row, tokens, length in zip(rows, batch.tokens.tolist(), batch.lengths, strict=True):
        body = tokens[1 : length + 1]
        answers = word_problem_targets(name, tokens[: length + 1], task.bos)[1:]
        assert row["seed"] == "7"
        assert row["input"] == " ".join(map(str, body))
        assert row["target"] == " ".join(map(str, answers))


def test_a_csv_of_others(tmp_path: Path) -> None:
    path = tmp_path / "Z5.csv"
    path.write_bytes(b"seed,input,target\r\n3,3 4 1,3 2 3\r\n3,2,2\r\n")
    task = make_task("Z5")
    batch = import_task(task, path)
    assert batch.tokens.tolist() == [[6, 3, 4, 1], [6, 2, 5, 5]]
    assert batch.targets.tolist() == [[6, 3, 2, 3], [6, 2, -1, -1]]
    assert batch.lengths.tolist() == [3, 1]


@pytest.mark.parametrize("name", ["parity", "tomita5", "mqar"])
def test_csv_is_for_word_problems_only(name: str, tmp_path: Path) -> None:
    task, path = make_task(name), tmp_path / "data.csv"
    with pytest.raises(UserError, match=f"csv is the format of group word problems; {name} is"):
        export(task, path)
    assert not path.exists()
    path.write_text("seed,input,target\n0,1,1\n")
    with pytest.raises(UserError, match=f"csv is the format of group word problems; {name} is"):
        import_task(task, path)


@pytest.mark.parametrize("options", [{"split": "train"}, {"data_seed": 3}], ids=str)
def test_split_and_seed(options: dict[str, Any], tmp_path: Path) -> None:
    task = make_task("S5")
    export(task, tmp_path / "a.jsonl", **options)
    export(task, tmp_path / "b.jsonl")
    assert_same(import_task(task, tmp_path / "a.jsonl"), drawn(task, **options))
    assert (tmp_path / "a.jsonl").read_text() != (tmp_path / "b.jsonl").read_text()


def test_many_sequences(tmp_path: Path) -> None:
    task, path = make_task("parity"), tmp_path / "data.jsonl"
    export(task, path, count=2500)
    batch = import_task(task, path)
    assert len(batch.tokens) == 2500
    assert set(batch.lengths.tolist()) == set(range(2, 13))
    np.testing.assert_array_equal((batch.tokens != task.pad).sum(1), batch.lengths - 1)
    rows = {tuple(row) for row in batch.tokens[batch.lengths == 12].tolist()}
    assert len(rows) > 180  # each part is drawn anew: about 227 of 2048


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_an_existing_file_is_not_overwritten(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"data.{suffix}"
    path.write_text("mine")
    with pytest.raises(UserError, match=f"data.{suffix} exists; choose another file"):
        export(make_task("S5"), path)
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "xlsx"}, "format must be one of jsonl, parquet, csv; got 'xlsx'"),
        ({"count": 0}, "the number of sequences must be at least 1; got 0"),
        ({"lengths": (0, 5)}, "the length of S5 must be at least 1; got 0"),
        ({"lengths": (5, 4)}, "the greatest length 4 is below the least, 5"),
        ({"split": "dev"}, "split must be one of train, validation, test; got 'dev'"),
        ({"data_seed": -1}, "data_seed must lie in"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_exports_that_will_not_do(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        export(make_task("S5"), tmp_path / "data.jsonl", **options)
    assert not list(tmp_path.iterdir())


def test_an_unknown_kind_of_file(tmp_path: Path) -> None:
    path = tmp_path / "data.xlsx"
    path.write_text("")
    with pytest.raises(UserError, match=r"data.xlsx must end in one of .jsonl, .parquet, .csv"):
        import_task(make_task("S5"), path)


@pytest.mark.parametrize("row", [0, 4, 19])
@pytest.mark.parametrize("place", [0, -1])
def test_a_wrong_target_in_jsonl(row: int, place: int, tmp_path: Path) -> None:
    task, path = make_task("S5"), tmp_path / "data.jsonl"
    export(task, path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[row]["target"][place] = (rows[row]["target"][place] + 1) % 120
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(
        UserError, match=rf"data.jsonl, sequence {row + 1}: the target is not that of S5"
    ):
        import_task(task, path)


@pytest.mark.parametrize("row", [0, 1])
def test_a_wrong_target_in_csv(row: int, tmp_path: Path) -> None:
    path = tmp_path / "Z5.csv"
    rows = ["0,3 4 1,3 2 3", "0,2,2"]
    rows[row] = rows[row][:-1] + "4"
    path.write_text("\n".join(["seed,input,target", *rows]) + "\n")
    with pytest.raises(UserError, match=f"Z5.csv, sequence {row + 1}: the target is not that of"):
        import_task(make_task("Z5"), path)


def test_a_target_that_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "Z5.csv"
    path.write_text("seed,input,target\n0,3 4 1,3 2\n")
    with pytest.raises(UserError, match="a target is not as long as its input"):
        import_task(make_task("Z5"), path)


@pytest.mark.parametrize("line", ["0,2", "0,2,2,2"], ids=["a column missing", "one too many"])
def test_a_csv_line_with_other_columns(line: str, tmp_path: Path) -> None:
    path = tmp_path / "Z5.csv"
    path.write_text(f"seed,input,target\n0,3 4 1,3 2 3\n{line}\n")
    with pytest.raises(UserError, match=r"cannot read .*Z5.csv .* line 3 has not the columns of"):
        import_task(make_task("Z5"), path)


def test_long_sequences_in_csv(tmp_path: Path) -> None:
    """Python's csv refuses fields of more than 131,072 characters, unless told otherwise."""
    task, path, limit = make_task("Z60"), tmp_path / "Z60.csv", csv.field_size_limit()
    export_task(task, path, count=2, lengths=(60_000, 60_000))
    assert max(map(len, path.read_text().splitlines())) > 2 * limit
    assert import_task(task, path).lengths.tolist() == [60_000] * 2
    assert csv.field_size_limit() == limit


def test_a_quote_that_does_not_end(tmp_path: Path) -> None:
    path, limit = tmp_path / "Z5.csv", csv.field_size_limit()
    path.write_text('seed,input,target\n0,"3 4,3 2\n0,1,1\n')
    with pytest.raises(UserError, match=r"cannot read .*Z5.csv as sequences of Z5: unexpected end"):
        import_task(make_task("Z5"), path)
    assert csv.field_size_limit() == limit


def test_json_that_is_nested_too_deeply(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"length": 1, "input": ' + "[" * 200_000 + "]" * 200_000 + "}\n")
    with pytest.raises(UserError, match=r"cannot read .*data.jsonl .* nested too deeply"):
        import_task(make_task("Z5"), path)


@pytest.mark.parametrize("other", ["dense", "A5"])
def test_the_file_of_another_task(other: str, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    if other == "dense":
        written, read = make_task("parity", supervision="dense"), make_task("parity")
    else:
        written, read = make_task("S5"), make_task("A5")
    export(written, path)
    with pytest.raises(UserError, match=r"the target is not that of parity|A5: token ids"):
        import_task(read, path)


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_which_sequences_have_other_targets(suffix: str, tmp_path: Path) -> None:
    task, path = make_task("S5"), tmp_path / f"data.{suffix}"
    export(task, path)
    lines = path.read_text().splitlines(keepends=True)
    first = 1 if suffix == "csv" else 0
    for row in (3, 11):
        head, last, end = re.fullmatch(r"(.*?)(\d+)(\D*)", lines[first + row], re.DOTALL).groups()  # type: ignore[union-attr]
        lines[first + row] = f"{head}{(int(last) + 1) % 120}{end}"
    path.write_text("".join(lines))
    batch, wrong = compare_task(task, path)
    assert wrong.tolist() == [3, 11]
    assert_same(batch, drawn(task))


@pytest.mark.parametrize("format", ["jsonl", "csv"])
def test_the_ending_says_the_format(format: str, tmp_path: Path) -> None:
    task = make_task("S5")
    export(task, tmp_path / f"a.{format}", format=None)
    export(task, tmp_path / f"b.{format}", format=format)
    assert (tmp_path / f"a.{format}").read_text() == (tmp_path / f"b.{format}").read_text()
    with pytest.raises(UserError, match=r"c.parquet does not end in .\w+, the format asked for"):
        export(task, tmp_path / "c.parquet", format=format)
    with pytest.raises(UserError, match=r"c.txt must end in one of .jsonl, .parquet, .csv"):
        export(task, tmp_path / "c.txt", format=format)


def test_the_task_that_was_written(tmp_path: Path) -> None:
    task = make_task("A5", supervision="last")
    low = {"count": 3, "lengths": (2, 4)}
    assert export_task(task, tmp_path / "a.jsonl", **low) == task  # type: ignore[arg-type]
    dense = export_task(task, tmp_path / "a.csv", **low)  # type: ignore[arg-type]
    assert dense == make_task("A5", supervision="dense")


@pytest.mark.parametrize("name", ["data.jsonl", "data.csv"])
def test_no_sequences(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("seed,input,target\n" if name.endswith("csv") else "")
    with pytest.raises(UserError, match=f"{name} has no sequences"):
        import_task(make_task("S5"), path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("data.jsonl", '{"length": 1, "input": [6, 2], "target": [6, 2'),
        ("data.jsonl", '{"length": 1, "input": [6, 2]}'),
        ("data.jsonl", '{"length": 1, "input": [6, 2], "target": [6, 2, 2]}'),
        ("data.jsonl", '{"length": 5, "input": [6, 2], "target": [6, 2]}'),
        ("data.jsonl", '{"length": 1, "input": [6, 99], "target": [6, 2]}'),
        ("data.jsonl", '{"length": 1, "input": [6, 2.5], "target": [6, 2]}'),
        ("data.jsonl", '{"length": 1, "input": [6, "2"], "target": [6, 2]}'),
        ("data.jsonl", '{"length": 1, "input": [6, [2]], "target": [6, 2]}'),
        ("data.jsonl", '{"length": 1, "input": [6, 2], "target": [6, null]}'),
        ("data.jsonl", '{"length": "x", "input": [6, 2], "target": [6, 2]}'),
        ("data.jsonl", '{"length": 1.5, "input": [6, 2], "target": [6, 2]}'),
        ("data.jsonl", '{"length": 0, "input": [6], "target": [6]}'),
        ("data.jsonl", '{"length": 1, "input": [6, 36893488147419103232], "target": [6, 2]}'),
        ("data.jsonl", "[1, 2]"),
        ("data.csv", "seed,input\n0,2\n"),
        ("data.csv", "seed,input,target\n0,2,2 2\n"),
        ("data.csv", "seed,input,target\n0,two,two\n"),
        ("data.jsonl", None),
    ],
    ids=[
        "half a line", "no target", "target too long", "wrong length", "no such token",
        "a fraction", "a text", "a list", "null", "no length", "half a length",
        "length 0", "too large", "no object",
        "no column", "csv target too long", "no number", "no file",
    ],
)  # fmt: skip
def test_a_broken_file(name: str, content: str | None, tmp_path: Path) -> None:
    """Files come from elsewhere: what is wrong with them is an error that users can read."""
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError):
        import_task(make_task("Z5"), path)


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr(exchange, "_rows", None)  # it is missed before anything is drawn
    task, path = make_task("S5"), tmp_path / "data.parquet"
    with pytest.raises(UserError, match=r"parquet needs pyarrow: pip install 'statetrack\[parq"):
        export(task, path)
    assert not list(tmp_path.iterdir())
    path.write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"parquet needs pyarrow: pip install 'statetrack\[parq"):
        import_task(task, path)


@pytest.mark.parametrize("label", ["parity", "S5", "tomita5", "mqar"])
def test_parquet(label: str, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    task, path = VARIANTS[label], tmp_path / "data.parquet"
    export(task, path)
    assert_same(import_task(task, path), drawn(task))
    assert parquet.read_table(path).column_names == ["length", "input", "target"]
