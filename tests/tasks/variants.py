"""The tasks that the tests here go through."""

from __future__ import annotations

import pytest

from statetrack.tasks import FAMILIES, Task, make_task

EXAMPLES = [example for family in FAMILIES for example in family.examples]

VARIANTS: dict[str, Task] = {
    **{example: make_task(example) for example in EXAMPLES},
    "S5 4 tokens special": make_task("S5", tokens_per_element=4),
    "S5 4 tokens repeat": make_task("S5", tokens_per_element=4, filler="repeat"),
    "S5 4 tokens special both": make_task("S5", tokens_per_element=4, filler="special_both"),
    "Z60 2 tokens special": make_task("Z60", tokens_per_element=2),
    "S5_only_swaps 3 tokens repeat": make_task(
        "S5_only_swaps", tokens_per_element=3, filler="repeat"
    ),
    "A4_x_Z5 last": make_task("A4_x_Z5", supervision="last"),
    "parity dense": make_task("parity", supervision="dense"),
    "modular_arithmetic dense": make_task("modular_arithmetic", supervision="dense"),
    "modular_arithmetic_brackets no mult": make_task("modular_arithmetic_brackets", mult=False),
    "cycle_navigation of 6": make_task("cycle_navigation", cycle_size=6),
    "tomita5 dense": make_task("tomita5", supervision="dense"),
    "tomita4 membership": make_task("tomita4", predict="membership"),
    "dyck1_depth3 next symbols": make_task("dyck1_depth3", predict="next_symbols"),
}
PARITY = {label: task for label, task in VARIANTS.items() if task.family == "parity"}
WORD_PROBLEMS = {label: task for label, task in VARIANTS.items() if task.family == "word problem"}


def each(variants: dict[str, Task]) -> pytest.MarkDecorator:
    """Parametrise `task` over variants."""
    return pytest.mark.parametrize("task", variants.values(), ids=variants)
