"""`python -m benchmarks theory`, tiny: every part runs, and what it says is what is the case."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import theory
from benchmarks.languages import LANGUAGES, lively_word
from statetrack.compiler import compile


def cells(text: str, first: str) -> list[list[str]]:
    """The rows of tables that begin with a name."""
    rows = [
        line.strip("| ").replace("`", "").split(" | ")
        for line in text.splitlines()
        if line.startswith("| ")
    ]
    return [row for row in rows if row[0] == first]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    out: Path = tmp_path_factory.mktemp("theory") / "theory.md"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(theory, "ROWS", 16)
        patch.setattr(theory, "LENGTH", 64)
        patch.setattr(theory, "BLOCKS", {"Z2": 2})
        theory.main(
            names=("S3", "a*b*"), tokens=300, loop_tokens=40,
            automata=8, rounds=1, out=out,
        )  # fmt: skip
    return out.read_text()


def test_exactness(text: str) -> None:
    for name, target in (("S3", "householder"), ("a*b*", "diagonal")):
        tables, models = cells(text, name)
        assert tables[2] == target
        assert tables[6] == "yes"
        assert tables[7:] == ["0 / 0.0"] * 6
        assert models[4:6] == ["yes", "yes"]
        assert [cell.split(",")[0] for cell in models[6:]] == ["0", "0"]


def test_blocks(text: str) -> None:
    (row,) = cells(text, "Z2")
    assert row[1:5] == ["2", "7", "3: 2, 2, 2", "1"]
    assert row[7:] == ["yes", "0", "0"]


def test_random_automata(text: str) -> None:
    for method in ("auto", "holonomy", "strict", "banned"):
        (row,) = cells(text, method)
        assert row[1:3] == ["8", "0"]


def test_horizons_and_speed(text: str) -> None:
    for name in theory.ROTATIONS:
        rows = cells(text, name)
        assert [row[1] for row in rows] == [str(m) for m in theory.MODULI]
        assert all(row[2].startswith("all (") for row in rows)  # float32 holds for 300 tokens
    assert re.search(r"16 words of 64 tokens, 2 threads.*million tokens/s", text)


def test_a_wrong_network_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(*args: object) -> object:
        net = compile(*args)  # type: ignore[call-overload]
        net.stack[0].keys[1] *= 0.5
        return net

    monkeypatch.setattr(theory, "compile", spoilt)
    (row,) = cells("\n".join(theory.exactness({"S3": LANGUAGES["S3"]}, 300, 40, 1)), "S3")
    assert row[6] == "NO"
    assert not row[7].startswith("0 / 0.0")


def test_words_stay_out_of_sinks() -> None:
    for name in ("dyck1_depth3", "a*b*", "modular_arithmetic"):
        dfa = compile(LANGUAGES[name]).dfa
        word, states = lively_word(dfa, 500)
        assert (dfa.run(word.numpy()) == states.numpy()).all()
        assert len(states.unique()) >= dfa.states - 1 or name == "a*b*"
