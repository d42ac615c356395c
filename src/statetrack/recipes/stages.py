"""Stages that add the elements of a group to the inputs of its word problem, a few at a time.

Full S5 in one layer stays at chance when all 120 elements come at once. It is learned when the
inputs begin with few, simple elements and grow in the order of their reflection length, the number
of Householder factors that an element needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from statetrack.config import at_least
from statetrack.errors import UserError
from statetrack.tasks.word_problem import GroupWordProblem
from statetrack.training import Stage


@dataclass(frozen=True)
class Growth:
    """Steps and added elements of the stages; the defaults take minutes on one core."""

    batch: int = 10  # elements that a stage adds
    first: int = 500  # steps with the elements at the start, at most
    each: int = 400  # steps after every addition, at most
    last: int = 900  # further steps with all elements, in which the learning rate falls
    until: float | None = 0.98  # accuracy that ends a stage; its other steps go to the last one

    def __post_init__(self) -> None:
        for name in ("batch", "first", "each", "last"):
            at_least(name, getattr(self, name), 1)

    def scaled_to(self, steps: int, additions: int) -> Growth:
        """Return the same proportions for another total number of steps."""
        share = steps / (self.first + additions * self.each + self.last)
        first, each = (max(1, int(n * share)) for n in (self.first, self.each))
        return replace(self, first=first, each=each, last=steps - first - additions * each)


def input_sets(task: GroupWordProblem, start: str, batch: int = 10) -> list[tuple[int, ...]]:
    """Return the inputs of each stage: those of the task `start`, then `batch` more every time.

    New elements come in the order of their reflection length, then of their number.

    Args:
        task: the task of the last stage, of a permutation group.
        start: a task on the same group, such as S5_up_to_3, whose inputs come first.
        batch: elements that are added at a time; the last addition may have fewer.

    Raises:
        UserError: `start` has an input that the task has not.
    """
    first = GroupWordProblem(name=start)
    if not set(first.inputs.tolist()) <= set(task.inputs.tolist()):
        raise UserError(f"{start} has inputs that {task.name} has not, so it cannot come first")
    lengths = task.group.reflection_lengths()
    later = np.setdiff1d(task.inputs, first.inputs)
    later = later[np.argsort(lengths[later], kind="stable")]
    sets = [np.sort(first.inputs)]
    for at in range(0, len(later), batch):
        sets.append(np.sort(np.concatenate([sets[-1], later[at : at + batch]])))
    return [tuple(inputs.tolist()) for inputs in sets]


def growing_stages(
    task: GroupWordProblem, start: str, growth: Growth | None = None, steps: int | None = None
) -> tuple[Stage, ...]:
    """Return stages whose inputs grow from those of the task `start` to all of the task's.

    The learning rate is constant except in the last stage, where it falls as a cosine; only the
    first stage has a warm-up. A stage ends early when it is learned; if elements are added before
    the present ones are learned, the model learns neither.

    Args:
        task: the task of the last stage, of a permutation group.
        start: a task on the same group, such as S5_up_to_3, whose inputs come first.
        growth: elements and steps of a stage.
        steps: the sum of all steps, to which those of `growth` are scaled; None: as they are.
    """
    growth = growth or Growth()
    sets = input_sets(task, start, growth.batch)
    if steps is not None:
        growth = growth.scaled_to(steps, len(sets) - 1)
    numbers = [growth.first, *[growth.each] * (len(sets) - 1)]
    stages = [
        Stage(
            steps=number,
            task=replace(task, generators=inputs),
            schedule="constant",
            warmup=None if i == 0 else 0.0,
            until=growth.until,
        )
        for i, (number, inputs) in enumerate(zip(numbers, sets, strict=True))
    ]
    return (*stages, Stage(steps=growth.last, schedule="cosine", warmup=0.0))
