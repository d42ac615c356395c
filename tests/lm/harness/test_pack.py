"""The state-tracking pack: its questions, answers, chance levels and files."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from statetrack.errors import UserError
from statetrack.lm.harness.folder import read_index
from statetrack.lm.harness.pack import MAX_CHOICES, PACK_TASKS, write_pack
from statetrack.tasks import FAMILIES
from tests.conftest import Command
from tests.lm.harness.readers import READERS
from tests.training.refusal import Refused


def documents(folder: Path, name: str, split: str = "test") -> list[dict[str, Any]]:
    text = (folder / f"{name}.{split}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_every_default_task_is_read() -> None:
    assert set(PACK_TASKS) <= set(READERS)


@pytest.mark.parametrize("task", READERS)
def test_answers_follow_from_the_text(task: str, tmp_path: Path) -> None:
    index = write_pack(tmp_path / "pack", [task], lengths=(4, 9, 33), samples=60)
    for about in index.tasks:
        asked = documents(tmp_path / "pack", about.name)
        assert len(asked) == about.questions
        for question in asked:
            assert READERS[task](question["context"]) == question["choices"][question["answer"]]
            assert len(set(question["choices"])) == len(question["choices"]) <= MAX_CHOICES
        assert len({question["context"] for question in asked}) == len(asked)


@pytest.mark.parametrize("task", READERS)
def test_chance_is_that_of_the_best_constant_answer_or_guess(task: str, tmp_path: Path) -> None:
    index = write_pack(tmp_path / "pack", [task], lengths=(3, 8), samples=50)
    for about in index.tasks:
        asked = documents(tmp_path / "pack", about.name)
        counts: dict[str, Counter[int]] = defaultdict(Counter)
        for question in asked:
            last = question["context"].splitlines()[-1]
            counts["" if "=" in last else last][question["answer"]] += 1  # = ends a sum
        constant = sum(max(counter.values()) for counter in counts.values()) / len(asked)
        assert about.chance == pytest.approx(max(constant, 1 / len(asked[0]["choices"])))
        written = (tmp_path / "pack" / f"{about.name}.yaml").read_text()
        assert f'"chance": {about.chance}' in written


def test_answers_are_balanced(tmp_path: Path) -> None:
    names = ["parity", "boxes", "S5_only_swaps", "programs"]
    index = write_pack(tmp_path / "pack", names, lengths=(16,), samples=300)
    assert [about.chance for about in index.tasks] == [1 / 2, 1 / 3, 1 / 5, 1 / 5]


def test_what_has_not_moved_yet_raises_chance(tmp_path: Path) -> None:
    """After one swap most people still hold what they held."""
    index = write_pack(tmp_path / "pack", ["S5_only_swaps"], lengths=(1,), samples=300)
    assert (index.tasks[0].chance or 0) > 0.5


def test_lengths_count_steps(tmp_path: Path) -> None:
    folder = tmp_path / "pack"
    names = ["parity", "Z5", "S5_only_swaps", "board", "modular_arithmetic", "boxes", "programs"]
    write_pack(folder, names, lengths=(12,), samples=200)

    def steps(task: str, text: str) -> int:
        lines = text.splitlines()
        if task in ("boxes", "programs", "S5_only_swaps"):
            return len(lines) - 2
        return len(lines[1].replace(" =", "").replace(" moves", "").split()) - (task == "board")

    found = {
        task: [steps(task, d["context"]) for d in documents(folder, f"statetrack_{task}_12")]
        for task in names
    }
    assert set(found["parity"]) == set(found["S5_only_swaps"]) == set(found["board"]) == {12}
    assert set(found["Z5"]) == set(found["modular_arithmetic"]) == {23}  # 12 numbers, 11 operators
    assert np.mean(found["boxes"]) == pytest.approx(12, rel=0.2)
    assert np.mean(found["programs"]) == pytest.approx(12, rel=0.2)


def test_short_lengths_have_fewer_questions(tmp_path: Path) -> None:
    index = write_pack(tmp_path / "pack", ["parity"], lengths=(3,), samples=50)
    assert index.tasks[0].questions == 8


WITH_EXAMPLES = [family for family in FAMILIES if family.examples]


@pytest.mark.parametrize("family", WITH_EXAMPLES, ids=lambda family: family.family)
def test_any_task_can_be_written(family: Any, tmp_path: Path) -> None:
    """With tokens, where there are no words for it."""
    task = family.examples[0]
    index = write_pack(
        tmp_path / "pack", [task], lengths=(max(9, family().min_length),), samples=16
    )
    for question in documents(tmp_path / "pack", index.tasks[0].name):
        assert "PAD" not in question["context"]
        assert question["choices"][question["answer"]].strip()


def test_the_seed_decides(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_pack(tmp_path / name, ["A5", "boxes"], lengths=(6,), samples=20, seed=seed)
    a, b, c = ((tmp_path / name / "index.json").read_text() for name in "abc")
    assert a == b != c  # the checksums of all files


def test_shots_are_not_asked(tmp_path: Path) -> None:
    write_pack(tmp_path / "pack", ["parity"], lengths=(4,), samples=50, shots=3)
    shots = documents(tmp_path / "pack", "statetrack_parity_4", "shots")
    asked = documents(tmp_path / "pack", "statetrack_parity_4")
    assert len(shots) == 3
    assert len(asked) == 16 - 3
    assert not {d["context"] for d in shots} & {d["context"] for d in asked}


def test_tasks_with_similar_names_have_their_own_files(tmp_path: Path) -> None:
    index = write_pack(tmp_path / "pack", ["regex:(ab)*", "regex:(a|b)*a"], lengths=(5,), samples=9)
    assert len({about.name for about in index.tasks}) == 2
    index = write_pack(tmp_path / "more", ["regex:(ab)*", "regex:(ab)+"], lengths=(5,), samples=9)
    assert len({about.name for about in index.tasks}) == 2


def test_a_changed_or_missing_file_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "pack"
    index = write_pack(folder, ["parity"], lengths=(4,), samples=5)
    assert read_index(folder) == index
    data = folder / "statetrack_parity_4.test.jsonl"
    text = data.read_text()
    data.write_text(text.replace("1 ", "0 ", 1))
    with pytest.raises(UserError, match=r"test\.jsonl has changed"):
        read_index(folder)
    data.unlink()
    with pytest.raises(UserError, match=r"test\.jsonl does not exist"):
        read_index(folder)
    (folder / "index.json").write_text('{"schema": 99}')
    with pytest.raises(UserError, match="this version"):
        read_index(folder)
    (folder / "index.json").unlink()
    with pytest.raises(UserError, match=r"no index\.json"):
        read_index(folder)


def test_command(command: Command, tmp_path: Path) -> None:
    out, result = tmp_path / "pack", tmp_path / "result.json"
    done = command(
        "lm", "tasks", "--out", out, "--task", "parity", "Z5", "--lengths", "4", "--samples", "9",
        "--json", result,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "statetrack_parity_4" in done.out
    names = [task["name"] for task in json.loads(result.read_text())["tasks"]]
    assert names == ["statetrack_parity_4", "statetrack_Z5_4"]
    assert (
        'task: ["statetrack_parity_4", "statetrack_Z5_4"]' in (out / "statetrack.yaml").read_text()
    )


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], ["--out is missing"]),
        (["--out=new", "--task=nope"], ["unknown task 'nope'"]),
        (["--out=new", "--lengths=0"], ["a length", "at least 1"]),
        (["--out=new", "--samples=0"], ["the number of samples"]),
        (["--out=new", "--shots=-1"], ["the number of shots"]),
        (["--out=new", "--task=parity", "--lengths=1", "--shots=2"], ["2 distinct questions"]),
        (["--out=new", "--task=mqar", "--lengths=4"], ["the length of mqar", "24"]),
        (["--out=new", "--seed=-1"], ["data_seed"]),
        (["--out=new", "--lengths"], ["at least one task and one length"]),
    ],
)
def test_mistakes(refused: Refused, args: list[str], says: list[str]) -> None:
    refused("lm", "tasks", *args, says=says)
