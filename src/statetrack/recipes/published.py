"""The numbers that the paper published: scaled accuracy on lengths 40-256.

Keys are the titles of our tables. `FINAL` is the version of ICLR 2025, `EARLY` the anonymous one;
each has the best of three seeds (Table 3) and their median with its median absolute deviation
(Table 5). Of the figures no numbers are published, only what the text says of them.
"""

from __future__ import annotations

from typing import NamedTuple

PARITY = "parity"
ARITHMETIC = "modular arithmetic"
BRACKETS = "with brackets"
NO_MULT = "with brackets, no mult"
COLUMNS = (PARITY, ARITHMETIC, BRACKETS, NO_MULT)


class Published(NamedTuple):
    """The best seed, the median and the MAD; None where the paper has no number."""

    best: float | None
    median: float | None
    mad: float | None


def _version(best: str, median: str) -> dict[tuple[str, str], Published]:
    """Parse the rows of Tables 3 and 5: a title, then one number (or median/MAD) per column."""
    bests = dict(_row(line) for line in best.strip().splitlines())
    found = {}
    for line in median.strip().splitlines():
        title, cells = _row(line)
        for i, (column, cell) in enumerate(zip(COLUMNS, cells, strict=False)):
            middle, mad = map(float, cell.split("/"))
            top = float(bests[title][i]) if i < len(bests[title]) else None
            found[title, column] = Published(top, middle, mad)
    return found


def _row(line: str) -> tuple[str, list[str]]:
    title, _, cells = line.partition(":")
    return title.strip(), cells.split()


FINAL = _version(
    best="""
    Transformer:     0.022 0.031 0.067
    mLSTM [0,1]:     0.087 0.040 0.114
    sLSTM:           1.000 0.787 0.178
    Mamba [0,1]:     0.000 0.095 0.123
    Mamba [-1,1]:    1.000 0.241 0.116
    DeltaNet [0,1]:  0.017 0.314 0.194
    DeltaNet [-1,1]: 1.000 0.971 0.260
    """,
    median="""
    Transformer:     0.003/0.013 0.018/0.009 0.064/0.003 0.025/0.000
    mLSTM [0,1]:     0.018/0.035 0.027/0.013 0.114/0.000 0.034/0.001
    sLSTM:           1.000/0.000 0.124/0.000 0.163/0.015 0.153/0.020
    Mamba [0,1]:     0.000/0.000 0.066/0.029 0.116/0.007 0.072/0.008
    Mamba [-1,1]:    1.000/0.000 0.214/0.027 0.098/0.009 0.126/0.010
    DeltaNet [0,1]:  0.010/0.005 0.214/0.056 0.162/0.018 0.113/0.009
    DeltaNet [-1,1]: 0.999/0.006 0.826/0.146 0.227/0.011 0.129/0.016
    """,
)
EARLY = _version(  # a MAD of 0 is printed as no MAD
    best="""
    mLSTM [0,1]:     0.087 0.122 0.120
    sLSTM:           1.000 0.135 0.133
    Mamba [0,1]:     0.000 0.003 0.018
    Mamba [-1,1]:    1.000 0.111 0.036
    DeltaNet [0,1]:  0.017 0.187 0.182
    DeltaNet [-1,1]: 1.000 0.612 0.339
    """,
    median="""
    mLSTM [0,1]:     0.018/0.035 0.093/0.028 0.097/0.022
    sLSTM:           1.000/0.000 0.130/0.004 0.082/0.003
    Mamba [0,1]:     0.000/0.000 0.000/0.005 0.016/0.002
    Mamba [-1,1]:    1.000/0.000 0.079/0.032 0.029/0.007
    DeltaNet [0,1]:  0.010/0.005 0.126/0.002 0.174/0.008
    DeltaNet [-1,1]: 0.999/0.006 0.422/0.189 0.212/0.008
    """,
)
NOT_PUBLISHED = Published(None, None, None)

FIGURE_1 = (
    "Figure 1 of the paper shows the mean and the standard deviation over three seeds for 20,000 "
    "steps: [-1,1] reaches 1, [0,1] stays near 0. It prints no numbers."
)
FIGURE_6 = (
    "Figure 6 of the paper shows accuracy against length. It prints no numbers; its text says that "
    "the Transformer fits the training lengths almost perfectly and does not extrapolate."
)
