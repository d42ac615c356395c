"""The benchmark of back-propagation over chunks."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import chunked_backward
from statetrack.errors import UserError


def measured(mixer: str, chunk: int) -> dict[str, Any]:
    job = {"mixer": mixer, "length": 80, "chunk": chunk}
    found = chunked_backward.run(job, lambda text: None)
    assert found["peak"] >= found["before"] > 0
    # tests before it may have used more memory
    return job | found | {"before": 0, "cpu_seconds": 1.0}


@pytest.mark.parametrize("mixer", ["delta_net", "mamba"])
def test_plain_and_chunked_are_one_computation(mixer: str) -> None:
    plain, chunked = measured(mixer, 80), measured(mixer, 32)
    row = chunked_backward._row(plain, chunked)
    assert row[:2] == [mixer, "80"]
    assert len(row) == len(chunked_backward.COLUMNS)
    for what in ("loss", "gradient_norm"):
        with pytest.raises(UserError, match=f"in chunks of 32: the {what} is"):
            chunked_backward._row(plain, chunked | {what: 1.01 * chunked[what]})
