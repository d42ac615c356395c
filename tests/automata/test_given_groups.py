"""Groups from generators, tables and files: sympy as a second opinion, and each axiom broken."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sympy.combinatorics import Permutation, PermutationGroup

from statetrack.automata import group, group_from_generators, group_from_table, read_group
from statetrack.errors import UserError


@given(st.lists(st.permutations(range(5)), min_size=1, max_size=3))
def test_sympy_generates_the_same(generators: list[list[int]]) -> None:
    ours = group_from_generators("G", generators)
    theirs = PermutationGroup([Permutation(p) for p in generators])
    assert ours.permutations is not None
    elements = [tuple(p) for p in ours.permutations.tolist()]
    assert elements == sorted(tuple(p.array_form) for p in theirs.elements)
    number = {p: i for i, p in enumerate(elements)}
    for a in range(0, ours.order, 7):
        for b in range(0, ours.order, 5):
            composed = tuple(elements[a][i] for i in elements[b])
            assert ours.table[a, b] == number[composed]


@pytest.mark.parametrize(
    ("generators", "name"),
    [
        (["(1 2)", "(1 2 3)"], "S3"),
        (["(1 2)", "(1 2 3 4 5)"], "S5"),
        (["(1 2 3)", "(1 2)(3 4)"], "A4"),
        ([(1, 2, 0, 3, 4), "(1,2,3,4,5)"], "A5"),
        (["(1 2 3 4 5 6 7)", " ( 5 6 7 ) () "], "A7"),
    ],
)
def test_the_numbering_is_that_of_names(generators: list[Any], name: str) -> None:
    ours = group_from_generators("G", generators)
    assert ours.name == "G"
    np.testing.assert_array_equal(ours.permutations, group(name).permutations)
    np.testing.assert_array_equal(ours.table, group(name).table)


def test_cycles() -> None:
    ours = group_from_generators("G", ["(1 2)(3 4 5)"])
    assert ours.permutations is not None
    assert ours.order == 6
    assert [1, 0, 3, 4, 2] in ours.permutations.tolist()
    assert group_from_generators("G", ["()"]).order == 1


def test_leading_zeros() -> None:
    assert group_from_generators("G", ["(0000000001 2)"]).order == 2
    with pytest.raises(UserError, match="points must be 1 to 1,000"):
        group_from_generators("G", ["(0000000001001 2)"])


@pytest.mark.parametrize(
    ("generators", "message"),
    [
        ([], "needs at least one generator"),
        (["1 2"], "must look like '(1 2)(3 4 5)'; got '1 2'"),
        (["(1 2"], "must look like"),
        (["(a b)"], "must look like"),
        ([""], "must look like"),
        (["(0 1)"], "points must be 1 to 1,000; got '(0 1)'"),
        (["(1 1001)"], "points must be 1 to 1,000"),
        (["(1 2)(2 3)"], "cycles must be disjoint; 2 is twice in '(1 2)(2 3)'"),
        ([(0, 0, 1)], "each once; got (0, 0, 1)"),
        ([(1, 2, 3)], "counted from 0"),
        ([(0.5, 1.5)], "counted from 0"),
        ([("a",)], "counted from 0"),
        ([()], "counted from 0"),
        (["(1 2)", "(1 2 3 4 5 6 7)"], "group G has more than 2,520 elements"),
    ],
)
def test_bad_generators(generators: list[Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)) as error:
        group_from_generators("G", generators)
    assert "group G" in str(error.value)


@pytest.mark.parametrize("name", ["S3", "Q8", "Z12", "A5", "S6", "D4_x_Z3"])
def test_a_group_is_taken(name: str) -> None:
    table = group(name).table
    np.testing.assert_array_equal(group_from_table("G", table.tolist()).table, table)


@given(st.sampled_from(["S3", "Q8", "D5", "A4"]), st.randoms(use_true_random=False))
def test_an_identity_elsewhere_is_moved_to_the_front(name: str, random: Any) -> None:
    table = group(name).table.tolist()
    new = list(range(len(table)))
    random.shuffle(new)
    shuffled = np.empty((len(table), len(table)), dtype=int)
    for a, row in enumerate(table):
        for b, product in enumerate(row):
            shuffled[new[a], new[b]] = new[product]
    moved = group_from_table("G", shuffled).table
    # the others keep their order
    order = [new[0]] + [x for x in range(len(table)) if x != new[0]]
    for a, old_a in enumerate(order):
        assert [order[x] for x in moved[a]] == [shuffled[old_a, old_b] for old_b in order]
    assert moved[0].tolist() == list(range(len(table)))


# a loop: identity and inverses, but (1 * 1) * 2 = 2 and 1 * (1 * 2) = 4
LOOP = [[0, 1, 2, 3, 4], [1, 0, 3, 4, 2], [2, 4, 0, 1, 3], [3, 2, 4, 0, 1], [4, 3, 1, 2, 0]]
BAD = [
    ([[0, 1], [1, 2]], "(closure): 1 * 1 is 2, but elements are 0 to 1"),
    ([[0, -1], [1, 0]], "(closure): 0 * 1 is -1"),
    ([[1, 1], [1, 1]], "(identity): no element e has e * b = b for all b"),
    ([[0, 1], [0, 1]], "(identity): 0 * b is b for all b, but 1 * 0 is 0"),
    ([[0, 1], [1, 1]], "(inverses): 1 has no inverse"),
    # 1 * 2 = 0 from the left only
    ([[0, 1, 2], [1, 1, 0], [2, 2, 2]], "(inverses): 1 has no inverse"),
    (LOOP, "(associativity): (1 * 1) * 2 is 2, but 1 * (1 * 2) is 4"),
    ([[0, 1], [1]], "must be square and of whole numbers"),
    ([[0, 1]], "must be square"),
    ([], "must be square"),
    (0, "must be square"),
    ([[0.0]], "must be square"),
    ([["0"]], "must be square"),
    ([[True]], "must be square"),
    (np.zeros((2521, 2521), dtype=int), "group G has 2,521 elements; at most 2,520"),
]


@pytest.mark.parametrize(("table", "message"), BAD)
def test_a_table_that_is_not_a_group(table: Any, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        group_from_table("G", table)


@given(st.integers(0, 10**6))
def test_one_wrong_entry_is_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = group("S4").table.copy()
    a, b = rng.integers(1, 24, 2)
    table[a, b] = (table[a, b] + rng.integers(1, 24)) % 24
    with pytest.raises(UserError, match="is not a group") as error:
        group_from_table("G", table)
    triple = re.search(r"\((\d+) \* (\d+)\) \* (\d+) is (\d+), but .* is (\d+)", str(error.value))
    if triple:  # what it says is so
        x, y, z, left, right = map(int, triple.groups())
        assert table[table[x, y], z] == left != right == table[x, table[y, z]]


def test_read_group(tmp_path: Path) -> None:
    path = tmp_path / "klein.json"
    path.write_text(json.dumps({"table": [[a ^ b for b in range(4)] for a in range(4)]}))
    klein = read_group(path)
    assert klein.name == "klein"
    np.testing.assert_array_equal(klein.table, group("Z2_x_Z2").table)
    path.write_text(json.dumps({"generators": ["(1 2)", [1, 2, 0]]}))
    np.testing.assert_array_equal(read_group(str(path)).table, group("S3").table)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "must be an object with 'table' or 'generators'"),
        ([[0]], "must be an object with 'table' or 'generators'; got list"),
        ({"table": [[0]], "generators": []}, "got table, generators"),
        ({"generators": "(1 2)"}, "generators must be a list"),
        ({"generators": [1]}, "generators must be a list"),
        ({"table": [[0, 1], [1, 1]]}, "the table of odd is not a group (inverses)"),
    ],
)
def test_bad_files(tmp_path: Path, data: Any, message: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(data))
    with pytest.raises(UserError, match=re.escape(message)):
        read_group(path)
