"""A document with everything that a document may have."""

from __future__ import annotations

from dataclasses import replace

from statetrack.report.document import Document, Figure, HeatMap, Series, Table

HOSTILE = "<script>alert('1')</script> & <b> | a_b *c* 100% $x$ [1](2) \\end{table}"
LENGTHS = [10, 20, 40, 80, 160, 320]
MODELS = {"DeltaNet [-1,1]": 1.0, "DeltaNet [0,1]": 0.1}


def _lines() -> list[Series]:
    lines = []
    for model, last in MODELS.items():
        y = [1.0, 1.0, 1.0, last, last, last]
        spread = [v / 20 for v in y]
        low = [v - s for v, s in zip(y, spread, strict=True)]
        lines.append(Series(model, LENGTHS, y, low, y, group=model))
        lines.append(Series(f"{model}, seed 0", LENGTHS, y, group=model, faint=True))
        lines.append(Series(f"{model}, seed 1", LENGTHS, low, group=model, faint=True))
    lines.append(Series("the paper", [40, 320], [1.0, 0.9], dashed=True))
    return lines


def _halved(line: Series) -> Series:
    """On the raw axis, where chance is 0.5."""
    low, y, high = (v and [0.5 + x / 2 for x in v] for v in (line.low, line.y, line.high))
    return replace(line, y=y or [], low=low, high=high)


LENGTH = Figure(
    "Accuracy against length",
    "sequence length",
    "scaled accuracy",
    _lines(),
    log_x=True,
    marks=((40, "trained up to 40"),),
    y_range=(-0.1, 1.05),
    raw=[_halved(line) for line in _lines()],
    raw_label="raw accuracy",
    note="The mean of 2 seeds with its 95 % interval.",
    name="length",
)
SPECTRUM = Figure(
    "Eigenvalues", "real part", "imaginary part", [Series("layer 0", [-1, 0.5, 1], [0, 0.5, 0])],
    points=True,
)  # fmt: skip
PANELS = Figure(
    "Perplexity", "position", "perplexity", (),
    panels=[
        Figure(
            name, "position", "perplexity",
            [Series(model, [1, 2, 4], [9, 8, y]) for model in MODELS],
            marks=((2, "trained at 2"),),
        )
        for name, y in (("code", 7), ("maths", 6), ("prose", 5))
    ],
)  # fmt: skip
HEAT = Figure(
    "Reflections", "head", "layer", (),
    heat=HeatMap(["0", "1"], ["0", "1", "2"], [[0.0, 0.5, 1.0], [1.0, 0.1, None]], "share"),
)  # fmt: skip
SCORES = Table(
    "Scaled accuracy on 40-256",
    ["model", "best", "median", "interval", "paper", "parameters"],
    [
        ["DeltaNet [-1,1]", 1.0, 0.99951, "0.990 to 1.000", 1.0, 12_345],
        ["DeltaNet [0,1]", 0.017, -0.0001, None, None, 12_345],
    ],
    note="The majority baseline is 0.",
    name="scores",
)
DOCUMENT = Document(
    "sample",
    "Parity",
    ["DeltaNet solves it in [-1,1].", "Made by `statetrack reproduce`."],
    [SCORES],
    [LENGTH, SPECTRUM],
    ["Steps are cut from 100,000 to 400."],
    {"command": "statetrack reproduce", "CPU seconds": 1234.5, "versions": {"torch": "2.9"}},
    {"DeltaNet, seed 0": {"training": {"lr": 0.001}}},
)
