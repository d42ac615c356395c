"""Which series share a style, and the ways to draw a figure."""

from __future__ import annotations

from dataclasses import replace

from statetrack.report.document import Series
from statetrack.report.figures import COLOURS, Variant, legend, shared_styles, variants
from tests.report.sample import LENGTH, SPECTRUM


def test_legend() -> None:
    entries = legend(LENGTH.series)
    assert [entry.label for entry in entries] == ["DeltaNet [-1,1]", "DeltaNet [0,1]", "the paper"]
    assert [entry.series for entry in entries] == [(0, 1, 2), (3, 4, 5), (6,)]
    assert len({entry.colour for entry in entries}) == 3
    assert [entry.dashed for entry in entries] == [False, False, True]


def test_seeds_without_a_mean_have_the_name_of_their_group() -> None:
    seeds = [Series(f"m, seed {i}", [1], [1], group="m", faint=True) for i in range(2)]
    assert [(e.label, e.series) for e in legend(seeds)] == [("m", (0, 1))]


def test_a_dashed_line_shares_the_colour_of_its_group() -> None:
    lines = [Series("ours", [1], [1], group="m"), Series("paper", [1], [1], group="m", dashed=True)]
    ours, paper = legend(lines)
    assert ours.colour == paper.colour
    assert (ours.dashed, paper.dashed) == (False, True)


def test_lines_that_share_a_colour_differ_in_their_dashes() -> None:
    entries = legend([Series(str(i), [1], [1]) for i in range(2 * len(COLOURS))])
    assert len({(e.colour, e.dashes(e.dashed)) for e in entries}) == len(entries)


def test_a_model_has_one_colour_in_all_figures() -> None:
    other = replace(LENGTH, series=LENGTH.series[3:4])
    styles = shared_styles([LENGTH, other])
    assert legend(other.series, styles)[0].colour == legend(LENGTH.series, styles)[1].colour
    many = replace(LENGTH, series=[Series(str(i), [1], [1]) for i in range(8)])
    assert shared_styles([many]) == {}  # there are not enough


def test_variants() -> None:
    assert variants(LENGTH) == [
        Variant(False, True), Variant(False, False), Variant(True, True), Variant(True, False),
    ]  # fmt: skip
    assert variants(SPECTRUM) == [Variant()]
    from_zero = replace(LENGTH, series=[Series("a", [0, 1], [0, 1])], raw=[], log_x=False)
    assert variants(from_zero) == [Variant()]  # 0 has no place on a logarithmic axis
