"""docs/length-generalisation.md: what it says of its table is what the table has."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "length-generalisation.md").read_text()
ROW = r"^\| ([^|]+) \| (\d+) \| (\d+) \| (\S+) \| ([-0-9. ]+) \|$"
ROWS = {name: rest for name, *rest in re.findall(ROW, PAGE, flags=re.MULTILINE)}
NUMBERS = {"Ten": 10, "seven": 7, "six": 6}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_sums_up_its_scores(name: str) -> None:
    runs, good, worst, listed = ROWS[name]
    scores = [float(score) for score in listed.split()]
    assert (int(runs), int(good)) == (len(scores), sum(score >= 0.99 for score in scores))
    assert float(worst) == min(scores)


def test_the_seeds_are_as_many_as_the_runs() -> None:
    said = re.search(
        r"(\w+) training seeds, (\d+)-(\d+), on parity; (\w+) of them on swaps, (\d+)-(\d+), "
        r"and (\w+) of these in the last row",
        PAGE,
    )
    assert said is not None
    parity, low, high, swaps, first, last, fewest = said.groups()
    assert NUMBERS[parity] == int(high) - int(low) + 1
    assert NUMBERS[swaps] == int(last) - int(first) + 1
    runs = {name: int(rest[0]) for name, rest in ROWS.items()}
    *others, at_the_end = [count for name, count in runs.items() if name.startswith("swaps")]
    assert set(others) == {NUMBERS[swaps]}
    assert at_the_end == NUMBERS[fewest]
    on_parity = {count for name, count in runs.items() if not name.startswith("swaps")}
    assert on_parity == {NUMBERS[parity]}
