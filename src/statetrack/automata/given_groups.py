"""User-defined groups: from generating permutations, a multiplication table, or a JSON file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from statetrack.automata.closure import close
from statetrack.automata.groups import MAX_GROUP_ORDER, Group
from statetrack.automata.search import TooManyStatesError
from statetrack.errors import UserError
from statetrack.files import read_json

MAX_POINTS = 1_000  # that a permutation acts on


def group_from_generators(name: str, permutations: Sequence[str | Sequence[int]]) -> Group:
    """Return the group that some permutations generate.

    Elements are numbered in the lexicographic order of their images (a(0), a(1), ...), so the
    identity is element 0. The product is composition from right to left: (a * b)(i) = a(b(i)).

    Args:
        name: The name of the group in messages.
        permutations: Each as disjoint cycles of points counted from 1, "(1 2)(3 4 5)", or as the
            images of points counted from 0, (1, 0, 3, 4, 2). Points that are not mentioned stay
            fixed.

    Raises:
        UserError: A permutation is malformed, or the group has more than MAX_ORDER elements.
    """
    if not permutations:
        raise UserError(f"group {name} needs at least one generator, such as '(1 2 3)'")
    images = [_cycles(p, name) if isinstance(p, str) else _images(p, name) for p in permutations]
    points = max(map(len, images))
    generators = np.array([p + list(range(len(p), points)) for p in images])
    try:
        closure = close(generators, MAX_GROUP_ORDER)
    except TooManyStatesError:
        raise UserError(
            f"group {name} has more than {MAX_GROUP_ORDER:,} elements, which is the most supported"
        ) from None
    # element i is g * parent for a generator g, so row i is i * b = g * (parent * b) for all b;
    # steps[c, g] is g * c
    table = np.empty((len(closure.elements),) * 2, dtype=np.int32)
    table[0] = np.arange(len(table))
    for i in range(1, len(table)):
        table[i] = closure.steps[table[closure.parents[i]], closure.letters[i]]
    order = np.lexsort(closure.elements.T[::-1])  # the last key of lexsort is the primary one
    new_number = np.argsort(order).astype(np.int32)
    return Group(name, new_number[table[np.ix_(order, order)]], closure.elements[order])


def _cycles(text: str, name: str) -> list[int]:
    """Parse "(1 2)(3 4 5)" into the images of points counted from 0."""
    if not re.fullmatch(r"\s*(\(\s*([0-9]+([\s,]+[0-9]+)*)?\s*\)\s*)+", text):
        raise UserError(f"group {name}: a generator must look like '(1 2)(3 4 5)'; got {text!r}")
    # int() raises on very long strings, and nine digits are above MAX_POINTS already
    cycles = [
        [int(digits.lstrip("0")[:9] or "0") for digits in re.findall("[0-9]+", cycle)]
        for cycle in re.findall(r"\(.*?\)", text)
    ]
    moved = [point for cycle in cycles for point in cycle]
    if moved and not 1 <= min(moved) <= max(moved) <= MAX_POINTS:
        raise UserError(f"group {name}: points must be 1 to {MAX_POINTS:,}; got {text!r}")
    for point, times in Counter(moved).items():
        if times > 1:
            raise UserError(f"group {name}: cycles must be disjoint; {point} is twice in {text!r}")
    images = list(range(max(moved, default=1)))
    for cycle in cycles:
        for point, image in zip(cycle, cycle[1:] + cycle[:1], strict=True):
            images[point - 1] = image - 1
    return images


def _images(images: Sequence[int], name: str) -> list[int]:
    """Check that the images of points counted from 0 are a permutation."""
    try:
        values = [int(image) for image in images]
        is_permutation = values == list(images) and sorted(values) == list(range(len(values)))
    except (TypeError, ValueError):
        is_permutation = False
    if not is_permutation or not 1 <= len(values) <= MAX_POINTS:
        raise UserError(
            f"group {name}: a generator as a list must be the images of points counted from 0, "
            f"1 to {MAX_POINTS:,} of them, each once; got {images!r}"
        )
    return values


def group_from_table(name: str, table: ArrayLike) -> Group:
    """Return the group with a given multiplication table, table[a][b] = a * b.

    If the identity is not element 0 it is moved to the front; the others keep their order.

    Raises:
        UserError: The table is not that of a group; the message names the axiom and an example.
    """
    checked = _closed(table, name)
    identity = _identity(checked, name)
    _check_inverses(checked, identity, name)
    _check_associative(checked, name)
    order = np.argsort(np.arange(len(checked)) != identity, kind="stable")
    new_number = np.argsort(order).astype(np.int32)
    return Group(name, new_number[checked[np.ix_(order, order)]], None)


def _closed(table: ArrayLike, name: str) -> NDArray[np.int64]:
    """Return the table as an array, or raise if it is not square with entries 0..n-1."""
    try:
        array = np.asarray(table)
    except ValueError:  # rows of different lengths
        array = np.empty(0)
    n = len(array) if array.ndim else 0
    if array.shape != (n, n) or not n or array.dtype.kind not in "iu":
        raise UserError(f"the table of group {name} must be square and of whole numbers")
    if n > MAX_GROUP_ORDER:
        raise UserError(
            f"group {name} has {n:,} elements; at most {MAX_GROUP_ORDER:,} are supported"
        )
    outside = np.argwhere((array < 0) | (array >= n))
    if len(outside):
        a, b = outside[0]
        raise UserError(
            f"the table of {name} is not a group (closure): {a} * {b} is {array[a, b]}, "
            f"but elements are 0 to {n - 1}"
        )
    return array.astype(np.int64)


def _identity(table: NDArray[np.int64], name: str) -> int:
    """Return the element e with e * b = b and b * e = b for all b, or raise."""
    elements = np.arange(len(table))
    left = (table == elements).all(axis=1)  # [n]: whether e * b = b for all b
    right = (table == elements[:, None]).all(axis=0)
    if (left & right).any():
        return int((left & right).argmax())
    problem = "no element e has e * b = b for all b"
    if left.any():
        e = int(left.argmax())
        a = int((table[:, e] != elements).argmax())
        problem = f"{e} * b is b for all b, but {a} * {e} is {table[a, e]}"
    raise UserError(f"the table of {name} is not a group (identity): {problem}")


def _check_inverses(table: NDArray[np.int64], identity: int, name: str) -> None:
    gives_identity = table == identity
    inverse = gives_identity & gives_identity.T  # [n, n]: a * b and b * a are the identity
    without = np.flatnonzero(~inverse.any(axis=1))
    if len(without):
        raise UserError(
            f"the table of {name} is not a group (inverses): {without[0]} has no inverse, "
            f"no b for which both products are the identity {identity}"
        )


def _check_associative(table: NDArray[np.int64], name: str) -> None:
    """Raise unless (a g) c = a (g c) for all a, g, c, by Light's test.

    It tests all a and c, but only the g of a generating set: in any table, the g that satisfy the
    equation are closed under products. The generating set is found on the way, by adding the first
    element that is no product of those tested so far.
    """
    reached = np.zeros(len(table), dtype=np.bool_)
    while not reached.all():
        g = int((~reached).argmax())
        wrong = np.argwhere(table[table[:, g]] != table[:, table[g]])
        if len(wrong):
            a, c = wrong[0]
            raise UserError(
                f"the table of {name} is not a group (associativity): ({a} * {g}) * {c} is "
                f"{table[table[a, g], c]}, but {a} * ({g} * {c}) is {table[a, table[g, c]]}"
            )
        reached[g] = True
        size = 0
        # close the reached elements under products, until their number stays the same
        while size < (size := reached.sum()):
            found = np.flatnonzero(reached)
            reached[table[np.ix_(found, found)]] = True


def read_group(path: Path | str) -> Group:
    """Read a group from a JSON file; its name is that of the file without the suffix.

    The file is {"table": [[0, 1], [1, 0]]} or {"generators": ["(1 2)", "(1 2 3)"]}.
    """
    data: Any = read_json(Path(path))
    name = Path(path).stem
    if not isinstance(data, dict) or list(data) not in (["table"], ["generators"]):
        got = ", ".join(map(str, data)) if isinstance(data, dict) else type(data).__name__
        raise UserError(f"{path} must be an object with 'table' or 'generators'; got {got}")
    if "table" in data:
        return group_from_table(name, data["table"])
    generators = data["generators"]
    if not isinstance(generators, list) or not all(isinstance(g, str | list) for g in generators):
        raise UserError(f"{path}: generators must be a list such as ['(1 2)', '(1 2 3)']")
    return group_from_generators(name, generators)
