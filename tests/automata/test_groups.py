"""Group tables: the axioms, sympy as a second opinion, the reference numbering, and errors."""

from __future__ import annotations

import re

import numpy as np
import pytest
from sympy.combinatorics import Permutation

from statetrack.automata import group
from statetrack.errors import UserError
from tests.golden import read

ORDERS = {
    "S2": 2,
    "S3": 6,
    "S4": 24,
    "S5": 120,
    "A3": 3,
    "A4": 12,
    "A5": 60,
    "Z2": 2,
    "Z60": 60,
    "A4_x_Z5": 60,
    "D3": 6,
    "D12": 24,
    "Q8": 8,
    "D5_x_Q8": 80,
    "S3_x_Z2_x_A4": 144,
    "S6": 720,
    "A7": 2520,
}
SMALL = [name for name, order in ORDERS.items() if order <= 144]


@pytest.mark.parametrize(("name", "order"), ORDERS.items(), ids=ORDERS)
def test_order(name: str, order: int) -> None:
    assert group(name).order == order
    assert group(name).name == name


@pytest.mark.parametrize("name", ORDERS)
def test_the_identity_is_0(name: str) -> None:
    table = group(name).table
    np.testing.assert_array_equal(table[0], np.arange(len(table)))
    np.testing.assert_array_equal(table[:, 0], np.arange(len(table)))


@pytest.mark.parametrize("name", ORDERS)
def test_a_table_is_a_latin_square(name: str) -> None:
    table = group(name).table
    everything = np.broadcast_to(np.arange(len(table)), table.shape)
    np.testing.assert_array_equal(np.sort(table, axis=1), everything)
    np.testing.assert_array_equal(np.sort(table, axis=0), everything.T)


@pytest.mark.parametrize("name", ORDERS)
def test_inverses_are_two_sided(name: str) -> None:
    table = group(name).table
    right = (table == 0).argmax(axis=1)
    elements = np.arange(len(table))
    assert not table[elements, right].any()
    assert not table[right, elements].any()


@pytest.mark.parametrize("name", SMALL)
def test_associative(name: str) -> None:
    table = group(name).table
    np.testing.assert_array_equal(table[table], table[:, table])  # (ab)c and a(bc), for all a, b, c


@pytest.mark.parametrize("name", [name for name in ORDERS if name not in SMALL])
def test_associative_on_samples(name: str) -> None:
    table = group(name).table
    a, b, c = np.random.default_rng(0).integers(0, len(table), (3, 100_000))
    np.testing.assert_array_equal(table[table[a, b], c], table[a, table[b, c]])


@pytest.mark.parametrize("name", ["S3", "S4", "S5", "A4", "A5"])
def test_sympy_agrees(name: str) -> None:
    points = int(name[1:])
    n = {"S3": 6, "S4": 24, "S5": 120, "A4": 24, "A5": 120}[name]
    elements = [Permutation.unrank_lex(points, rank) for rank in range(n)]
    if name.startswith("A"):
        elements = [p for p in elements if p.is_even]
    number = {tuple(p.array_form): i for i, p in enumerate(elements)}
    # sympy applies the left factor first: its q * p is our p * q, where (p * q)(i) = p(q(i))
    table = [[number[tuple((q * p).array_form)] for q in elements] for p in elements]
    np.testing.assert_array_equal(group(name).permutations, [p.array_form for p in elements])
    np.testing.assert_array_equal(group(name).table, table)


@pytest.mark.parametrize("n", [3, 4, 5, 12, 200])
def test_dihedral_groups(n: int) -> None:
    g = group(f"D{n}")
    assert g.permutations is not None
    assert g.permutations.shape == (2 * n, n)
    polygon = {frozenset((i, (i + 1) % n)) for i in range(n)}
    elements = [tuple(p) for p in g.permutations.tolist()]
    assert len(set(elements)) == 2 * n
    for p in elements:  # the symmetries of a polygon are those of its sides
        assert {frozenset((p[i], p[(i + 1) % n])) for i in range(n)} == polygon
    rotation = [tuple((i + k) % n for i in range(n)) for k in range(n)]
    assert elements[:n] == rotation
    for a in range(0, 2 * n, 1 + n // 20):
        for b in range(2 * n):
            assert elements[g.table[a, b]] == tuple(elements[a][i] for i in elements[b])


def test_quaternions() -> None:
    one, i, j = np.eye(2), np.array([[1j, 0], [0, -1j]]), np.array([[0, 1], [-1, 0]])
    matrices = [sign * unit for unit in (one, i, j, i @ j) for sign in (1, -1)]
    for a, x in enumerate(matrices):
        for b, y in enumerate(matrices):
            np.testing.assert_array_equal(matrices[group("Q8").table[a, b]], x @ y)


@pytest.mark.parametrize("name", ["S5", "Z60", "D12", "Q8", "A4_x_Z5", "A7", "Z2_x_Z2_x_Z2"])
def test_generators(name: str) -> None:
    g = group(name)
    generators = g.generators()
    reached, frontier = {0}, {0}
    while frontier:
        frontier = {int(g.table[x, y]) for x in generators for y in frontier} - reached
        reached |= frontier
    assert len(reached) == g.order
    assert len(generators) <= {"Z60": 1, "Z2_x_Z2_x_Z2": 3, "A7": 3}.get(name, 2)
    for left_out in generators:
        rest = [x for x in generators if x != left_out]
        assert not g.subgroup(rest).all()


def test_subgroups_inverses_and_orders() -> None:
    z12 = group("Z12")
    assert np.flatnonzero(z12.subgroup([8])).tolist() == [0, 4, 8]
    assert np.flatnonzero(z12.subgroup([8, 6])).tolist() == [0, 2, 4, 6, 8, 10]
    assert np.flatnonzero(z12.subgroup([])).tolist() == [0]
    assert z12.inverses().tolist() == [0, *range(11, 0, -1)]
    assert z12.element_orders().tolist() == [1, 12, 6, 4, 3, 12, 2, 12, 3, 4, 6, 12]
    s4 = group("S4")
    assert s4.permutations is not None
    orders = [Permutation(p).order() for p in s4.permutations.tolist()]
    assert s4.element_orders().tolist() == orders
    assert s4.subgroup([1, 2, 6]).all()  # neighbours swapped


def test_the_left_factor_acts_last() -> None:
    s3 = group("S3")
    swap_first_two, swap_last_two = 2, 1  # 213 and 132
    assert s3.permutations is not None
    # 0 -> 0 -> 1, 1 -> 2 -> 2, 2 -> 1 -> 0
    assert list(s3.permutations[s3.table[swap_first_two, swap_last_two]]) == [1, 2, 0]


def test_cyclic_groups_add() -> None:
    table = group("Z60").table
    assert all(table[a, b] == (a + b) % 60 for a in range(60) for b in range(60))


def test_the_last_factor_runs_fastest() -> None:
    product, s3, z2, a4 = (group(g).table for g in ("S3_x_Z2_x_A4", "S3", "Z2", "A4"))

    def split(x: int) -> tuple[int, int, int]:
        return x // 24, x // 12 % 2, x % 12

    for x in range(144):
        for y in range(0, 144, 5):
            (a, b, c), (d, e, f) = split(x), split(y)
            assert split(int(product[x, y])) == (s3[a, d], z2[b, e], a4[c, f])


def test_moved_points() -> None:
    # cycle types of S5: (), (ab), (abc), (abcd) or (ab)(cd), (abcde) or (abc)(de)
    assert list(np.bincount(group("S5").moved_points())) == [1, 0, 10, 20, 30 + 15, 24 + 20]


@pytest.mark.parametrize("name", ["Z60", "A4_x_Z5"])
def test_moved_points_needs_points(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} is not given by permutations"):
        group(name).moved_points()


def parse(label: list[int] | str) -> tuple[tuple[int, ...], int]:
    """[2, 1, 3], "a^2" or "(2, 1, 3):a^2" as a permutation and an exponent."""
    if isinstance(label, list):
        return tuple(label), 0
    permutation, _, power = label.rpartition(":")
    exponent = {"e": 0, "a": 1}.get(power)
    if exponent is None:
        exponent = int(power.removeprefix("a^"))
    return tuple(map(int, re.findall(r"\d+", permutation))), exponent


def test_reference_elements() -> None:
    *groups, cayley = read("group_elements")
    assert {g["group"] for g in groups} == {"S3", "S5", "A5", "A4", "Z60", "Z5", "A4_x_Z5"}
    for golden_group in groups:
        ours = group(golden_group["group"])
        elements = [parse(label) for label in golden_group["elements"]]
        assert len(set(elements)) == ours.order == golden_group["order"]
        modulus = 1 + max(exponent for _, exponent in elements)
        for a, (p, i) in enumerate(elements):
            for b, (q, j) in enumerate(elements):
                composed = tuple(p[point - 1] for point in q)
                assert elements[ours.table[a, b]] == (composed, (i + j) % modulus)
        if ours.permutations is not None:
            assert [tuple(row) for row in ours.permutations + 1] == [p for p, _ in elements]
    table = cayley["cayley_table_row_left_col_right"]
    np.testing.assert_array_equal(group(cayley["group"]).table, table)


UNKNOWN = [
    *("Q9", "S", "S0", "s5", "S5_x_", "_x_S5", "S05", "S5_x_Q9", "S5 ", "S5\n", "", "S1234567"),
    "Z1\u0662",  # an Arabic 2: one group, one name
]


@pytest.mark.parametrize("name", UNKNOWN, ids=ascii)
def test_unknown_group(name: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"unknown group {name!r}")):
        group(name)


@pytest.mark.parametrize("name", ["Z1", "S1", "A2", "A1", "S5_x_Z1", "D1", "D2"])
def test_trivial_group(name: str) -> None:
    with pytest.raises(UserError, match=f"^group {name}: "):
        group(name)


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("S8", "40,320"),
        ("S7", "5,040"),
        ("Z2521", "2,521"),
        ("D1261", "2,522"),
        ("Z60_x_S5_x_S5", "864,000"),
    ],
    ids=lambda value: value,
)
def test_too_large_group(name: str, order: str) -> None:
    with pytest.raises(UserError, match=f"^group {name} has {order} elements"):
        group(name)


def test_a_group_far_too_large_to_write_its_order() -> None:
    with pytest.raises(UserError, match="S2000"):
        group("S2000")
