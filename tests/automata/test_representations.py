"""Permutation representations: faithful, homomorphic and as small as theory says."""

from __future__ import annotations

import numpy as np
import pytest

from statetrack.automata import (
    group,
    group_from_generators,
    group_from_table,
    minimal_permutation_representation,
    representations,
)
from statetrack.errors import UserError

POINTS = {
    "S3": 3, "D4": 4, "A5": 5, "Z12": 7, "Z60": 12, "S5": 5, "Q8": 8, "Z8": 8, "D6": 5, "D5": 5,
    "D30": 10, "A4_x_Z5": 9, "Z2_x_Z2_x_Z2_x_Z2": 8, "Q8_x_Z3": 11, "Z4_x_Z6": 4 + 2 + 3,
    "S3_x_S3": 6, "S5_x_Z2": 7, "S5_x_S3": 8, "S4_x_S4": 8,
}  # fmt: skip


def check_representation(table: np.ndarray, permutations: np.ndarray) -> None:
    n, points = permutations.shape
    everything = np.broadcast_to(np.arange(points), (n, points))
    np.testing.assert_array_equal(np.sort(permutations, axis=1), everything)
    assert len({tuple(p) for p in permutations.tolist()}) == n == len(table)
    composed = permutations[:, permutations]  # [a, b, i] = a(b(i))
    np.testing.assert_array_equal(permutations[table], composed)


@pytest.mark.parametrize("name", POINTS)
def test_the_least_number_of_points(name: str) -> None:
    g = group(name)
    permutations = minimal_permutation_representation(g)
    check_representation(g.table, permutations)
    assert permutations.shape == (g.order, POINTS[name])


@pytest.mark.parametrize("name", ["S3", "S4", "A4", "A5", "S5"])
def test_a_table_alone_is_enough(name: str) -> None:
    g = group_from_table("G", group(name).table)
    assert g.permutations is None
    permutations = minimal_permutation_representation(g)
    check_representation(g.table, permutations)
    assert permutations.shape[1] == int(name[1:])


@pytest.mark.parametrize("name", ["S5", "A5", "S6", "D7"])
def test_a_natural_action_is_kept(name: str) -> None:
    g = group(name)
    np.testing.assert_array_equal(minimal_permutation_representation(g), g.permutations)


def test_a_wasteful_action_is_not_kept() -> None:
    g = group_from_generators("G", ["(1 2 3 4 5 6)(7 8)(20 21)"])  # Z6 on 21 points
    permutations = minimal_permutation_representation(g)
    check_representation(g.table, permutations)
    assert permutations.shape == (6, 5)


def test_a_large_group_without_points() -> None:
    g = group("S5_x_Z5")
    permutations = minimal_permutation_representation(g)
    check_representation(g.table, permutations)
    assert permutations.shape[1] == 5 + 5  # the regular action has 600


def test_what_cannot_be_told_least_is_an_error() -> None:
    g = group("D12_x_D12")  # 7 + 7 points are enough
    with pytest.raises(UserError, match=r"D12_x_D12 has too many subgroups .* one on \d+ points"):
        minimal_permutation_representation(g)


def test_without_a_search_only_what_the_orders_demand_is_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(representations, "MAX_WORK", 0)
    assert minimal_permutation_representation(group("S4")).shape[1] == 4  # 24 does not divide 3!
    assert minimal_permutation_representation(group("Z8")).shape[1] == 8  # a cycle of 8
    with pytest.raises(UserError, match=r"group Z6 has too many subgroups .* one on 6 points"):
        minimal_permutation_representation(group("Z6"))  # 2 + 3 are enough


def test_the_trivial_group() -> None:
    permutations = minimal_permutation_representation(group_from_table("G", [[0]]))
    assert permutations.tolist() == [[0]]
