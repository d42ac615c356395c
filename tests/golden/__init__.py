"""Samples of the public reference generators; README.md says which."""

import gzip
import json
from pathlib import Path
from typing import Any


def read(name: str) -> list[dict[str, Any]]:
    """The rows of a file in this folder."""
    with gzip.open(Path(__file__).parent / f"{name}.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]
