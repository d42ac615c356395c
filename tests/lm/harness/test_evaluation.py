"""lm-eval on tiny models of transformers and of ours."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from statetrack.errors import UserError
from statetrack.lm.data.tokenizer import settings_json
from statetrack.lm.export import export
from statetrack.lm.harness import selection
from statetrack.lm.harness.evaluation import (
    ModelScores,
    evaluate_checkpoints,
    load_tasks,
    make_harness,
    shortened_requests,
)
from statetrack.lm.harness.published import COLUMNS
from statetrack.lm.harness.selection import Selection, select_tasks
from statetrack.lm.load import LanguageModel, load_language_model
from tests.conftest import Command
from tests.lm.harness.models import save_model
from tests.training.refusal import Refused


@pytest.fixture(autouse=True)
def restored_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sets these for good."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")


def evaluate_one(checkpoint: Path, chosen: Selection, **options: int) -> ModelScores:
    (done,) = evaluate_checkpoints([checkpoint], chosen, **options)
    return done


def log_probability(model: LanguageModel, context: str, answer: str) -> float:
    assert model.tokenizer is not None
    before = model.tokenizer.encode(context)
    tokens = torch.tensor([model.tokenizer.encode(f"{context} {answer}")])
    with torch.no_grad():
        log = model.model(input_ids=tokens).logits[0, :-1].log_softmax(-1)
    found = log.gather(1, tokens[0, 1:, None])[len(before) - 1 :]
    return float(found.sum())


def test_accuracy_is_that_of_the_likeliest_choice(checkpoint: Path, pack: Path) -> None:
    model = load_language_model(checkpoint)
    name = "statetrack_A5_6"
    done = evaluate_one(checkpoint, select_tasks([name], [pack]), batch_size=3)
    text = (pack / f"{name}.test.jsonl").read_text()
    right = []
    for question in map(json.loads, text.splitlines()):
        scores = [log_probability(model, question["context"], c) for c in question["choices"]]
        right.append(max(range(len(scores)), key=scores.__getitem__) == question["answer"])
    (score,) = done.scores
    share = sum(right) / len(right)
    assert score.value == pytest.approx(share)
    assert score.error == pytest.approx(math.sqrt(share * (1 - share) / (len(right) - 1)))
    assert (score.documents, done.shortened) == (len(right), {})


def test_pack_and_paper_in_one_report(
    command: Command, ours: Path, pack: Path, sets: Path, tmp_path: Path
) -> None:
    out, result = tmp_path / "report", tmp_path / "result.json"
    done = command(
        "lm", "eval", ours, "--tasks", "paper", "statetrack", "sciq", "--data", pack, sets,
        "--limit", "5", "--out", out, "--json", result,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "%|" not in done.err  # no bars of lm-eval
    found = json.loads(result.read_text())
    average, pack_verdict, other_verdict = found["summary"]
    assert average.startswith("ours: ")
    assert average.endswith("documents). Without data: wikitext, swde, squad_completion, fda.")
    assert " of 4 state-tracking tasks" in pack_verdict
    assert " of 1 other tasks" in other_verdict
    paper, tracking, others, scores = found["tables"]
    assert paper["columns"][2:] == [column.title for column in COLUMNS]
    row = dict(zip(paper["columns"], paper["rows"][1], strict=True))
    assert row["Wiki ppl"] is row["FDA"] is None
    accuracies = [float(row[c.title].split(" ")[0]) for c in COLUMNS if c.averaged]
    assert float(row["Avg"].split(" ")[0]) == pytest.approx(sum(accuracies) / 6, abs=0.1)
    assert "Without data: wikitext, swde, squad_completion, fda." in paper["note"]
    assert len(tracking["rows"]) == 4
    assert [row[1:3] for row in others["rows"]] == [["sciq", "acc"], ["sciq", "acc_norm"]]
    assert "Other tasks" in done.out
    assert "All scores" not in done.out  # long; it is in the files
    assert {row[6] for row in scores["rows"]} <= {1, 2, 5}  # documents
    assert {"index.html", "report.md", "paper-tasks.csv", "paper-tasks.tex"} <= {
        file.name for file in out.iterdir()
    }


LM_EVAL = """
import runpy, sys
options = sys.argv[1:]
for folder in ("exported", "llama"):  # in one process, to load the packages once
    sys.argv = ["lm_eval", *options, "--model_args", f"pretrained={folder}"]
    runpy.run_module("statetrack.lm.harness", run_name="__main__")
"""


def test_the_command_of_lm_eval(ours: Path, pack: Path, tmp_path: Path) -> None:
    """It knows this package's models, in a process that has loaded nothing else."""
    export(ours, tmp_path / "exported")  # with a tokenizer_config.json
    save_model("llama", tmp_path / "llama")
    settings = settings_json("<end>", None, plain=False)
    (tmp_path / "llama" / "tokenizer_config.json").write_text(settings)
    options = ["run", "--model", "hf", "--device", "cpu", "--limit", "2"]
    options += ["--include_path", str(pack), "--tasks", "statetrack_parity_3"]
    done = subprocess.run(
        [sys.executable, "-c", LM_EVAL, *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for folder in ("exported", "llama"):
        assert f"'pretrained': '{folder}'" in done.stdout
    assert done.stdout.count("|statetrack_parity_3|") == 2


def test_other_sets_and_generated_answers(ours: Path, sets: Path) -> None:
    names = ["openbookqa", "sciq", "triviaqa", "squad_questions"]
    done = evaluate_one(ours, select_tasks(names, [sets]))
    assert {score.task for score in done.scores} == set(names)
    assert ("squad_questions", "contains") in {score[:2] for score in done.scores}


def test_answers_that_are_generated_count_if_they_contain_one() -> None:
    from statetrack.lm.harness.task_data import contains

    document = {"answers": ["23 years", "Ice"]}
    assert contains(document, ["it is ice."]) == {"contains": 1.0}
    assert contains(document, ["23"]) == {"contains": 0.0}


def test_models_of_the_same_name_are_told_apart(ours: Path, pack: Path, tmp_path: Path) -> None:
    for run in ("a", "b"):
        shutil.copytree(ours, tmp_path / run / "same")
    folders = [tmp_path / "a" / "same", tmp_path / "b" / "same"]
    chosen = select_tasks(["statetrack_parity_3"], [pack])
    done = evaluate_checkpoints([*folders, folders[0]], chosen, limit=1)
    assert [scores.model for scores in done] == [str(folder) for folder in folders]


def test_the_folder_may_be_moved(
    ours: Path, pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = tmp_path / "else where" / "moved"
    shutil.copytree(pack, moved)
    monkeypatch.chdir(tmp_path)
    chosen = select_tasks(["statetrack_parity_3"], [Path("else where/moved")])
    assert evaluate_one(ours, chosen).scores[0].documents == 8


def test_shots_stand_before_the_question(ours: Path, tmp_path: Path) -> None:
    from statetrack.lm.harness.pack import write_pack

    write_pack(tmp_path / "pack", ["parity"], lengths=(3,), samples=8, shots=2)
    chosen = select_tasks(["pack"], [tmp_path / "pack"])
    (task,) = chosen.manager.load(["statetrack_parity_3"])["tasks"].values()
    task.set_fewshot_seed(0)
    task.build_all_requests(limit=1)
    context = task.instances[0].args[0]
    shots = (tmp_path / "pack" / "statetrack_parity_3.shots.jsonl").read_text().splitlines()
    solved = [f"{d['context']} {d['choices'][d['answer']]}" for d in map(json.loads, shots)]
    assert context.startswith("\n\n".join(solved) + "\n\n")


def test_requests_that_are_too_long_are_counted(ours: Path, pack: Path) -> None:
    chosen = select_tasks(["statetrack_parity_3"], [pack])
    done = evaluate_one(ours, chosen, max_length=10)
    assert done.shortened == {"statetrack_parity_3": 16}  # 8 questions with 2 choices each


def test_answers_need_room(ours: Path, sets: Path) -> None:
    """In this set answers have up to 48 tokens; what is left of the length is for the question."""
    chosen = select_tasks(["squad_questions"], [sets])
    done = evaluate_one(ours, chosen, max_length=50)
    assert done.shortened == {"squad_questions": done.scores[0].documents}
    for length, refused in ((47, True), (48, True), (49, False)):
        says = f"ours reads at most {length} tokens, and squad_questions reserves 48 for the answer"
        with pytest.raises(UserError, match=says) if refused else nullcontext():
            evaluate_one(ours, chosen, max_length=length, limit=1)


def test_answers_are_checked_before_anything_is_evaluated(
    ours: Path, sets: Path, tmp_path: Path
) -> None:
    """Also those of a later task, to a later checkpoint, which reads less than the first."""
    shutil.copytree(ours, tmp_path / "short")
    settings = {"model_max_length": 40, "eos_token": "<end>"}
    (tmp_path / "short" / "tokenizer_config.json").write_text(json.dumps(settings))
    shown: list[str] = []
    with pytest.raises(UserError, match="short reads at most 40 tokens, and squad_questions"):
        evaluate_checkpoints(
            [ours, tmp_path / "short"],
            select_tasks(["sciq", "squad_questions"], [sets]),
            progress=shown.append,
        )
    assert not shown


def test_requests_for_generated_answers_that_just_fit(ours: Path, sets: Path) -> None:
    chosen = select_tasks(["squad_questions"], [sets])
    model = load_language_model(ours)
    (task,) = load_tasks(chosen).values()
    task.build_all_requests()
    assert model.tokenizer is not None
    lengths = [len(model.tokenizer(request.args[0]).input_ids) for request in task.instances]
    fits = max(lengths) + 48  # the answers have up to 48 tokens
    for length, cut in ((fits, 0), (fits - 1, lengths.count(max(lengths)))):
        assert shortened_requests(make_harness(model, 1, length), task) == cut


def test_a_report_may_be_written_again(
    ours: Path, pack: Path, tmp_path: Path, command: Command
) -> None:
    out = tmp_path / "report"
    options = ["--tasks", "statetrack_parity_3", "--data", pack, "--out", out]
    documents = []
    for limit in ("1", "2"):
        done = command("lm", "eval", ours, *options, "--limit", limit)
        assert done.code == 0, done.err
        documents.append(json.loads((out / "document.json").read_text()))
    scores = [document["tables"][-1]["rows"] for document in documents]
    assert [[row[6] for row in rows] for rows in scores] == [[1], [2]]  # documents


def test_online_takes_what_no_folder_has_from_lm_eval(
    sets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Manager(selection.TaskManager):  # type: ignore[misc]
        def __init__(self, include_path: list[str], include_defaults: bool) -> None:
            assert include_defaults
            super().__init__(include_path=include_path, include_defaults=False)
            self._all_subtasks = sorted([*self._all_subtasks, "wikitext", "fda"])

    monkeypatch.setattr(selection, "TaskManager", Manager)
    chosen = select_tasks(["paper"], [sets], online=True)
    assert chosen.tasks[0].name == "wikitext"
    assert chosen.missing == ("swde", "squad_completion")


def test_folders_that_do_not_load_are_refused(pack: Path, sets: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(pack, other)
    with pytest.raises(UserError, match="is in two of the folders"):
        select_tasks(["pack"], [pack, other])
    index: dict[str, Any] = json.loads((other / "index.json").read_text())
    file = next(line for line in index["files"] if line.endswith("A5_3.yaml"))
    index["files"].remove(file)
    (other / "index.json").write_text(json.dumps(index))
    (other / "statetrack_A5_3.yaml").write_text("include: nowhere.yaml\n")
    with pytest.raises(UserError, match=r"lm-eval cannot read statetrack_A5_3\.yaml"):
        select_tasks(["pack"], [other])


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], ["CHECKPOINTS is missing"]),
        (["nowhere"], ["no folder has the paper's sets"]),
        (["nowhere", "--tasks=pack"], ["no folder has a pack"]),
        (["nowhere", "--data=nowhere"], ["nowhere has no index.json"]),
        (["nowhere", "--data={pack}", "--tasks=nope"], ["unknown task 'nope'"]),
        (["nowhere", "--data={pack}", "--tasks=pack"], ["nowhere"]),
        (["{ours}", "--data={pack}", "--tasks=pack", "--limit=0"], ["the limit", "at least 1"]),
        (["{ours}", "--data={pack}", "--tasks=pack", "--batch-size=0"], ["the batch size"]),
        (["{ours}", "--data={pack}", "--tasks=pack", "--max-length=0"], ["the greatest length"]),
        (["{ours}", "--data={pack}", "--tasks=pack", "--out={pack}"], ["is not empty"]),
    ],
)
def test_mistakes(
    refused: Refused, ours: Path, pack: Path, args: list[str], says: list[str]
) -> None:
    refused("lm", "eval", *(arg.format(ours=ours, pack=pack) for arg in args), says=says)


def test_a_model_without_tokenizer_is_refused(
    refused: Refused, run_folder: Path, pack: Path
) -> None:
    refused("lm", "eval", run_folder, "--tasks=pack", "--data", pack, says=["no tokenizer.json"])


def test_a_tokenizer_without_end_of_text_is_refused(ours: Path, pack: Path, tmp_path: Path) -> None:
    shutil.copytree(ours, tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    config = {k: v for k, v in json.loads(file.read_text()).items() if k != "eos_token_id"}
    file.write_text(json.dumps(config))
    with pytest.raises(UserError, match="names neither a BOS nor an EOS"):
        evaluate_one(tmp_path / "model", select_tasks(["pack"], [pack]))
