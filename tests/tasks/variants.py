"""The tasks that the tests here go through."""

from __future__ import annotations

import pytest

from statetrack.tasks import FAMILIES, Task, make_task

EXAMPLES = [example for family in FAMILIES for example in family.examples]

VARIANTS: dict[str, Task] = {
    **{example: make_task(example) for example in EXAMPLES},
    "S5 4 tokens special": make_task("S5", tokens_per_element=4),
    "S5 4 tokens repeat": make_task("S5", tokens_per_element=4, filler="repeat"),
    "Z60 2 tokens special": make_task("Z60", tokens_per_element=2),
    "S5_only_swaps 3 tokens repeat": make_task(
        "S5_only_swaps", tokens_per_element=3, filler="repeat"
    ),
    "A4_x_Z5 last": make_task("A4_x_Z5", supervision="last"),
    "parity dense": make_task("parity", supervision="dense"),
}
WORD_PROBLEMS = {label: task for label, task in VARIANTS.items() if task.family == "word problem"}


def each(variants: dict[str, Task]) -> pytest.MarkDecorator:
    """Parametrise `task` over variants."""
    return pytest.mark.parametrize("task", variants.values(), ids=variants)
