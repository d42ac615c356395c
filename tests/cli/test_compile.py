"""`statetrack explain`, `compile` and `run`, as people and programs use them."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from statetrack.automata import from_regex
from statetrack.compiler import load
from statetrack.compiler.compiled import encode
from statetrack.training import Run
from tests.conftest import Command
from tests.training.refusal import Refused

Spoil = Callable[[torch.Tensor], torch.Tensor]

# -- explain --------------------------------------------------------------------------------------


def test_explain(command: Command, tmp_path: Path) -> None:
    figure = tmp_path / "tomita3.svg"
    code, out, err = command("explain", "tomita3", "--figure", figure)
    assert (code, err) == (0, "")
    assert out.startswith("Not star-free: tomita3 counts modulo 2.\n")
    assert "Minimal DFA: 5 states and 2 symbols" in out
    assert "powers of 0 are counted modulo 2" in out
    assert "Enough: 4 layers with 1 generalised Householder factor per token" in out
    assert "cascade" not in out.lower()
    out = command("explain", "tomita3", "--verbose").out
    assert "  >* 0   0 -> 0   1 -> 1" in out
    assert "Cascade of 4 levels" in out
    assert "<svg" in figure.read_text()


def test_explain_for_programs(command: Command) -> None:
    code, out, err = command("explain", "S3", "--json", "-")
    assert code == 0
    data = json.loads(out)
    assert data["kind"] == "word problem of a group"
    assert data["properties"]["subgroup_orders"] == [6]
    assert [e["theorem"] for e in data["excluded"]] == [
        "Theorem 1", "Proposition 1.3", "Theorem 2", "Theorem 2"
    ]  # fmt: skip
    assert data["sufficient"]["householder_factors"] == [2]
    assert "Minimal DFA: 6 states and 6 symbols" in err


# -- compile and run ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target", ["auto", "householder", "dense", "diagonal", "gated_deltaproduct"]
)
def test_compile_and_run(command: Command, tmp_path: Path, target: str) -> None:
    net, result = tmp_path / "net", tmp_path / "result.json"
    flags = ["--out", net, "--target", target, "--prove", "--json", result]
    code, out, err = command("compile", "(ab)*", *flags)
    assert (code, err) == (0, "")
    verdict = out.splitlines()[0]
    assert verdict.startswith("Proved for words of any length: ")
    assert " computes (ab)* (3 states), " in verdict
    assert "3 states and 2 symbols (regular expression)" in out
    for internal in ("Stage 1", "Settings", "method", "target"):
        assert internal not in out
    assert f"Next: statetrack run {net} WORD" in out
    assert json.loads(result.read_text())["proof"]["holds"] is True
    words = ["abab", "aba", "", "a b", "ba"]
    code, out, err = command("run", net, *words, "--json", "-")
    assert code == 0
    rows = json.loads(out)["words"]
    dfa = from_regex("(ab)*")
    for word, row in zip(words, rows, strict=True):
        plain = word.replace(" ", "")
        assert row["word"] == word
        assert (row["result"] == "accept") == dfa.accepts(plain)
        state = int(dfa.run(dfa.encode(plain)[None])[0, -1]) if plain else dfa.start
        assert row["state"] == state
    assert "accept" in err
    assert not [file for file in net.rglob("*") if file.suffix in (".pt", ".pkl")]


@pytest.mark.parametrize("target", ["householder", "gated_deltaproduct"])
def test_a_group_and_a_task(command: Command, tmp_path: Path, target: str) -> None:
    for language, word, end in (("Z60", "59 2 10", "11"), ("modular_arithmetic", "2*3+4", "0")):
        net = tmp_path / language
        assert command("compile", language, "--out", net, "--target", target).code == 0
        code, out, _ = command("run", net, word, "--json", "-")
        assert code == 0
        (row,) = json.loads(out)["words"]
        assert row["output"] == end


def test_words_from_standard_input(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("compile", "parity", "--out", tmp_path / "net").code == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("101\n\n1\r\n"))
    code, out, _ = command("run", tmp_path / "net", "--json", "-")
    assert code == 0
    rows = json.loads(out)["words"]
    assert [(r["word"], r["result"]) for r in rows] == [
        ("101", "reject"), ("", "reject"), ("1", "accept")
    ]  # fmt: skip


def test_the_default_folder(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for language in ("(ab)*", "(ab)*", "parity", "**"):
        command("compile", language)
    names = sorted(p.name for p in (tmp_path / "runs").iterdir())
    assert names == ["compiled-ab-1", "compiled-ab-2", "compiled-parity-1"]
    assert command("run", "runs/compiled-ab-1", "abab").code == 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_no_words(command: Command, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command("compile", "parity", "--out", "net").code == 0
    monkeypatch.setattr("sys.stdin", io.StringIO())
    refused("run", "net", says=["no words", "standard input"])
    monkeypatch.setattr("sys.stdin", Terminal("1\n"))
    code, out, _ = command("run", "net")
    assert (code, out.startswith("Words from standard input, one a line")) == (0, True)
    assert "Words from" not in command("run", "net", "1").out


def test_the_tables_on_disk_are_what_runs(command: Command, tmp_path: Path) -> None:
    net = tmp_path / "net"
    assert command("compile", "parity", "--out", net, "--target", "householder").code == 0
    tables = load_file(net / "tables.safetensors")
    tables["layers.0.betas"] = torch.zeros_like(tables["layers.0.betas"])  # never changes its state
    save_file(tables, net / "tables.safetensors")
    rows = json.loads(command("run", net, "1", "--json", "-").out)["words"]
    assert rows[0]["state"] == 0


def test_a_compiled_model_is_a_run(command: Command, tmp_path: Path) -> None:
    for language, task in (("a*b*", "regex:a*b*"), ("tomita5", "tomita5"), ("S3", "dfa:")):
        net = tmp_path / task.replace("*", "").replace(":", "")
        flags = ["--out", net, "--target", "gated_deltaproduct"]
        assert command("compile", language, *flags).code == 0
        run = Run.open(net)
        assert run.config.task.name.startswith(task)
        assert run.checkpoint_steps() == [0]
        code, out, _ = command("eval", net, "--lengths", "200", "--samples", "32", "--json", "-")
        assert code == 0
        (row,) = json.loads(out)["results"]
        assert row["sequence_accuracy"] == 1
    # an element of order three
    code, out, _ = command("diagnose", net, "--word", "3", "--max-length", "0", "--json", "-")
    assert code == 0
    assert "unless m divides 3" in " ".join(v["text"] for v in json.loads(out)["verdicts"])


@pytest.mark.parametrize("target", ["auto", "gated_deltaproduct"])
def test_a_compiled_folder_can_be_moved(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    (here / "source.json").write_text(json.dumps(from_regex("a*b*").to_json()))
    for language, word in (("source.json", "aab"), ("S3", "3 1")):
        assert command("compile", language, "--out", "net", "--target", target).code == 0
        before = json.loads(command("run", "net", word, "--json", "-").out)["words"]
        assert load("net").prove().holds
        (here / "net").rename(there / "moved")
        for folder in (here, there, tmp_path):  # from wherever it is called
            monkeypatch.chdir(folder)
            moved = Path(os.path.relpath(there / "moved", folder))
            code, out, err = command("run", moved, word, "--json", "-")
            assert code == 0, err
            assert json.loads(out)["words"] == before
            if target != "auto":
                flags = ["--lengths", "50", "--samples", "8", "--json", "-"]
                code, out, err = command("eval", moved, *flags)
                assert code == 0, err
                assert json.loads(out)["results"][0]["sequence_accuracy"] == 1
            for file in (there / "moved").glob("*.json"):
                assert str(tmp_path) not in file.read_text()
        (there / "moved").rename(tmp_path / f"done {language}")
        monkeypatch.chdir(here)


# -- what may be wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["explain", "(ab"], ["regex '(ab'", "not closed"]),
        (["explain", "Q5"], ["unknown group 'Q5'"]),
        (["explain", "S9"], ["group S9", "at most 2,520"]),
        (["explain", "nowhere.json"], ["nowhere.json"]),
        (["explain", "dfa:nowhere.json"], ["nowhere.json"]),
        (["explain", "modular_arithmetic_brackets"], ["arithmetic_brackets has no automaton"]),
        (["explain", "tomita9"], ["no task 'tomita9'", "either tomita", "regex:tomita9"]),
        (["explain", "Dyck"], ["either dyck1_depth3", "regex:Dyck"]),
        (["compile", "arithmetic", "--out", "net"], ["either modular_arithmetic", "regex:arith"]),
        (["explain", "contains aba"], ["no language 'contains aba'", "has no spaces"]),
        (["explain", "(ab)*", "--figure", "x.gif"], ["ending", "x.gif"]),
        (["explain", "(ab)*", "--json", "no/such/folder.json"], ["no/such/folder.json"]),
        (["compile", "Z3", "--out", "net", "--target", "diagonal"], ["not star-free"]),
        (["compile", "a*", "--out", "net", "--target", "gated_deltaproduct"], ["one state only"]),
        (
            ["compile", "ab", "--out", "net", "--target", "gated_deltaproduct", "--delay", "state"],
            ["delay must be 'shift'"],
        ),
        (["run", "nowhere", "a"], ["nowhere", "no language.json"]),
    ],
    ids=" ".join,
)
def test_refusals(refused: Refused, args: list[str], says: list[str]) -> None:
    refused(*args, says=says)


def test_numbers_of_several_digits_are_not_split(command: Command, refused: Refused) -> None:
    assert command("compile", "Z60", "--out", "net").code == 0
    for word in ("123", "77", "59 1 60"):
        refused("run", "net", word, says=[f"symbol in {word!r}:", f"{word.split()[-1]!r}"])
    rows = json.loads(command("run", "net", "12 3", "--json", "-").out)["words"]
    assert rows[0]["output"] == "15"
    assert encode("aab", ("PAD", "a", "b", "q0"), "token") == [1, 1, 2]
    assert encode("a PAD", ("PAD", "a", "b", "q0"), "token") == [1, 0]


def test_unknown_letters_and_spoilt_folders(
    command: Command, refused: Refused, tmp_path: Path
) -> None:
    assert command("compile", "(ab)*", "--out", "net").code == 0
    refused("run", "net", "abc", says=["'abc'", "'c'", "known: a, b"])
    # before anything is read or compiled
    refused("compile", "(ab", "--out", "net", says=["net exists and is not empty"])
    about = Path("net/language.json")
    good = json.loads(about.read_text())
    for changes, says in (
        ({"schema": 2}, "schema 2; this version reads 1"),
        ({"target": "nope"}, "target must be one of"),
        ({"group": 3}, "group must be a name or null"),
        ({"more": 1}, "must be an object with schema"),
        ({"dfa": from_regex("(abc)*").to_json()}, "does not belong to language.json"),
    ):
        about.write_text(json.dumps({**good, **changes}))
        refused("run", "net", "ab", says=[says])
    refused("eval", "net", says=["net holds compiled tables", "use statetrack run net"])
    about.write_text("{")
    refused("run", "net", "ab", says=["cannot read net/language.json"])
    about.write_text(json.dumps(good))
    os.truncate("net/tables.safetensors", 20)
    refused("run", "net", "ab", says=["cannot read net/tables.safetensors"])


@pytest.mark.parametrize(
    ("name", "spoil", "says"),
    [
        ("layers.0.moves", lambda x: x + 7, "must lie in 0..1; got 7 to 8"),
        ("layers.0.out", lambda x: -1 - x, "must lie in 0.."),
        ("layers.0.numbers", lambda x: x.int(), "must have type torch.int64; got torch.int32"),
        ("layers.0.gates", lambda x: x.long(), "must have a floating-point type"),
        ("layers.0.values", lambda x: x / 0, "must have finite numbers only"),
        ("layers.0.H0", lambda x: x.double(), "mixes number types: torch.float32, torch.float64"),
    ],
)
def test_tables_that_are_none(
    command: Command, refused: Refused, name: str, spoil: Spoil, says: str
) -> None:
    assert command("compile", "a*b*", "--out", "net").code == 0
    tables = load_file("net/tables.safetensors")
    tables[name] = spoil(tables[name])
    save_file(tables, "net/tables.safetensors")
    refused("run", "net", "ab", says=["net/tables.safetensors", says])


def test_tables_that_overflow_are_no_traceback(command: Command, tmp_path: Path) -> None:
    net = tmp_path / "net"
    assert command("compile", "parity", "--out", net, "--target", "householder").code == 0
    tables = load_file(net / "tables.safetensors")
    tables["layers.0.betas"] += 3e38
    save_file(tables, net / "tables.safetensors")
    assert command("run", net, "1" * 50).code == 0


def test_a_large_automaton_still_has_a_figure(command: Command, tmp_path: Path) -> None:
    data, figure = tmp_path / "data.json", tmp_path / "figure.png"
    code, _, err = command("explain", "Z60", "--json", data, "--figure", figure)
    assert (code, err) == (0, "")
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert json.loads(data.read_text())["states"] == 60


def test_what_cannot_be_saved_leaves_no_folder(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("statetrack.compiler.compiled.write_json", full)
    for target in ("auto", "gated_deltaproduct"):
        code, _, _ = command("compile", "a*b*", "--out", tmp_path / "net", "--target", target)
        assert code != 0
        assert not (tmp_path / "net").exists()
