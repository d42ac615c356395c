"""Stages that add the elements of a group to the inputs."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from statetrack.automata import group
from statetrack.errors import UserError
from statetrack.recipes.stages import Growth, growing_stages, input_sets
from statetrack.tasks.word_problem import GroupWordProblem

S5 = GroupWordProblem(name="S5")


def test_reflection_lengths_are_distances_from_the_identity() -> None:
    """Checked by multiplying swaps: the elements at distance d are products of d swaps."""
    s5 = group("S5")
    lengths = s5.reflection_lengths()
    swaps = np.flatnonzero(s5.moved_points() == 2)
    reached = {0: 0}
    frontier = [0]
    while frontier:
        following = []
        for g in frontier:
            for x in s5.table[g, swaps].tolist():
                if x not in reached:
                    reached[x] = reached[g] + 1
                    following.append(x)
        frontier = following
    assert lengths.tolist() == [reached[g] for g in range(120)]
    with pytest.raises(UserError, match="Z5 is not given by permutations"):
        group("Z5").reflection_lengths()


def test_inputs_grow_ten_at_a_time_by_reflection_length_to_all_elements() -> None:
    sets = input_sets(S5, "S5_up_to_3", 10)
    assert [len(inputs) for inputs in sets] == [31, 41, 51, 61, 71, 81, 91, 101, 111, 120]
    assert sets[-1] == tuple(range(120))
    lengths = S5.group.reflection_lengths()
    for before, after in pairwise(sets):
        assert set(before) < set(after)
        added = lengths[sorted(set(after) - set(before))]
        left = lengths[sorted(set(range(120)) - set(after))]
        assert added.max() <= left.min(initial=9)


def test_stages_have_the_default_schedule() -> None:
    stages = growing_stages(S5, "S5_up_to_3")
    assert [stage.steps for stage in stages] == [500, *[400] * 9, 900]
    assert [stage.schedule for stage in stages] == ["constant"] * 10 + ["cosine"]
    assert [stage.warmup for stage in stages] == [None, *[0.0] * 10]
    assert [stage.until for stage in stages] == [*[0.98] * 10, None]
    assert stages[-1].task is None  # the run's own: all elements
    assert all(stage.task.vocab == S5.vocab for stage in stages[:-1] if stage.task)


@pytest.mark.parametrize("steps", [11, 1000, 312_500])
def test_stages_fit_any_number_of_steps(steps: int) -> None:
    stages = growing_stages(S5, "S5_up_to_3", Growth(), steps)
    assert sum(stage.steps for stage in stages) == steps


def test_other_groups_and_several_tokens() -> None:
    a5 = GroupWordProblem(name="A5")
    assert len(input_sets(a5, "A5_up_to_3", 20)[-1]) == 60
    four = GroupWordProblem(name="S5", tokens_per_element=4)
    tasks = [stage.task for stage in growing_stages(four, "S5_only_swaps")[:-1]]
    assert all(isinstance(t, GroupWordProblem) and t.tokens_per_element == 4 for t in tasks)
    with pytest.raises(UserError, match="S5_up_to_3 has inputs that S5_only_swaps has not"):
        input_sets(GroupWordProblem(name="S5_only_swaps"), "S5_up_to_3")
