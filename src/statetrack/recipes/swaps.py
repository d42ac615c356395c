"""Figure 3: a permutation as a product of swaps, each a Householder matrix."""

from __future__ import annotations

import numpy as np

from statetrack.compiler.factor import permutation, product, swaps
from statetrack.recipes.recipe import Recipe, Results, Settings, facts, register
from statetrack.report.document import Cell, Document, Figure, Series, Table
from statetrack.sweep.job import Job

POINTS = (1, 2, 0, 4, 3)  # the image of each of five points: a cycle of three and one of two


def jobs(settings: Settings, results: Results) -> list[Job]:
    """List nothing: the figure is computed, not trained."""
    return []


def document(settings: Settings, results: Results) -> Document:
    """Factor the permutation, check the product, and follow the objects through the swaps."""
    n, factors, pairs = len(POINTS), permutation(POINTS), swaps(POINTS)
    matrix = product(factors, n)
    exact = bool((matrix[POINTS, np.arange(n)] == 1).all() and np.abs(matrix).sum() == n)
    rows: list[list[Cell]] = [
        [len(factors) - i, f"e{a + 1} - e{b + 1}", str(factor.v.astype(int).tolist()),
         "; ".join(str(row) for row in factor.dense().astype(int).tolist())]
        for i, (factor, (a, b)) in enumerate(zip(factors, pairs, strict=True))
    ]  # fmt: skip
    return Document(
        name="swaps",
        title=RECIPE.title,
        summary=[
            f"The permutation {_text()} of {n} points is the product of {len(factors)} swaps, "
            f"I - v v^T with v = e_i - e_j: the product of the matrices is "
            f"{'exactly' if exact else 'NOT'} the permutation matrix."
        ],
        tables=[
            Table(
                "The factors, from left to right",
                ["acts as number", "v", "v as a vector", "I - v v^T by rows"],
                rows,
                "A permutation takes as many swaps as it has points, less its cycles.",
                name="factors",
            ),
            Table(
                "The product",
                [f"column {i + 1}" for i in range(n)],
                matrix.astype(int).tolist(),
                name="product",
            ),
        ],
        figures=[
            Figure(
                "Objects on their way through the swaps",
                "swaps so far",
                "place",
                _paths(pairs),
                y_range=(n + 0.5, 0.5),
                name="paths",
            )
        ],
        facts=facts("swaps", settings, [], results),
    )


def _paths(pairs: list[tuple[int, int]]) -> list[Series]:
    """Return the place of each object after every swap; the last factor acts first."""
    places = [list(range(len(POINTS)))]
    for i, j in reversed(pairs):
        exchange = {i: j, j: i}
        places.append([exchange.get(place, place) for place in places[-1]])
    x = list(range(len(places)))
    return [
        Series(f"object {thing + 1}", x, [row[thing] + 1 for row in places], group=str(thing))
        for thing in range(len(POINTS))
    ]


def _text() -> str:
    return "(" + " ".join(str(point + 1) for point in POINTS) + ")"


RECIPE = register(
    Recipe(
        name="swaps",
        aliases=("fig3",),
        title="A permutation as a product of swaps (Figure 3)",
        jobs=jobs,
        document=document,
    )
)
