"""Data and scores of the lm-eval tasks beside this file; the folder may be moved as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets


def load(files: dict[str, str], **_: Any) -> datasets.DatasetDict:
    """Read the JSONL file of each split; lm-eval passes a task's metadata, too."""
    return datasets.DatasetDict({split: _read(file) for split, file in files.items()})


def _read(file: str) -> datasets.Dataset:
    text = (Path(__file__).parent / file).read_text()
    return datasets.Dataset.from_list([json.loads(line) for line in text.splitlines()])


def contains(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """Tell whether an answer is in the generated text, whatever its case."""
    text = results[0].lower()
    return {"contains": float(any(answer.lower() in text for answer in doc["answers"]))}
