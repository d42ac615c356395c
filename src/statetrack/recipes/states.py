"""Figure 2: the states of a scalar recurrence on the input 1111..., by its eigenvalue."""

from __future__ import annotations

import torch

from statetrack.recipes.recipe import Recipe, Results, Settings, facts, register
from statetrack.report.document import Document, Figure, Series, Table
from statetrack.sweep.job import Job

EIGENVALUES = (0.5, 0.9, -0.9, -1.0)
TOKENS = 24
SETTLED_BY = 10_000  # tokens after which a state in bfloat16 counts as never constant


def states_on_ones(eigenvalue: float, tokens: int) -> torch.Tensor:
    """Return h_0..h_tokens of h_t = a h_{t-1} + (1 - a) / 2, h_0 = 0: (1 - a^t) / 2."""
    return (1 - torch.tensor(eigenvalue, dtype=torch.float64) ** torch.arange(tokens + 1)) / 2


def settles(eigenvalue: float) -> int | None:
    """Return the token from which on the state is constant in bfloat16; None if there is none."""
    rounded = states_on_ones(eigenvalue, SETTLED_BY).bfloat16()
    last = int((rounded != rounded[-1]).nonzero().max())
    return last + 1 if last < SETTLED_BY - 1 else None


def jobs(settings: Settings, results: Results) -> list[Job]:
    """List nothing: the figure is computed, not trained."""
    return []


def document(settings: Settings, results: Results) -> Document:
    """Compute the states for each eigenvalue, and from when on they are constant in bfloat16."""
    t = list(range(TOKENS + 1))
    series = []
    for a in EIGENVALUES:
        h = states_on_ones(a, TOKENS).tolist()
        for odd, word in ((0, "even"), (1, "odd")):
            label = f"a = {a:g}, {word} number of ones"
            series.append(Series(label, t[odd::2], h[odd::2], group=f"a = {a:g}", dashed=odd == 1))
    ends = {a: settles(a) for a in EIGENVALUES}
    constant = [f"{a:g} from t = {end}" for a, end in ends.items() if end is not None]
    for_ever = [f"{a:g}" for a, end in ends.items() if end is None]
    summary = []
    if for_ever:
        summary.append(
            f"The state tells even from odd for ever (checked to {SETTLED_BY:,} tokens) for the "
            f"eigenvalue {', '.join(for_ever)} only."
        )
    if constant:
        summary.append(f"In bfloat16 it becomes constant for {', '.join(constant)}.")
    return Document(
        name="states",
        title=RECIPE.title,
        summary=summary,
        tables=[
            Table(
                "From when on the state is constant in bfloat16",
                ["eigenvalue", "token"],
                [[a, "never" if end is None else end] for a, end in ends.items()],
                name="settles",
            )
        ],
        figures=[
            Figure(
                "States on 1111...",
                "t",
                "state h_t",
                series,
                y_range=(-0.06, 1.06),
                note="h_t = a h_{t-1} + (1 - a) / 2 from h_0 = 0. The paper's Figure 2 draws the "
                "same kind of recurrence.",
                name="states",
            )
        ],
        facts=facts("states", settings, [], results),
    )


RECIPE = register(
    Recipe(
        name="states",
        aliases=("fig2",),
        title="Which eigenvalues keep the parity of 1111... (Figure 2)",
        jobs=jobs,
        document=document,
    )
)
