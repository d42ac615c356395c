"""Which series share a style, and the ways to draw a figure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from statetrack.report.document import HeatMap, Series
from statetrack.report.figures import (
    COLOURS,
    Variant,
    draw,
    inline_svg,
    legend,
    lines,
    picture_files,
    shared_styles,
    variants,
)
from statetrack.report.results import spectrum_figure
from tests.report.sample import HEAT, LENGTH, MODELS, PANELS, SPECTRUM


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
    many = replace(LENGTH, series=[Series(str(i), [1], [1]) for i in range(len(COLOURS) + 1)])
    assert shared_styles([many]) == {}  # there are not enough


def test_variants() -> None:
    assert variants(LENGTH) == [
        Variant(False, True), Variant(False, False), Variant(True, True), Variant(True, False),
    ]  # fmt: skip
    assert variants(SPECTRUM) == [Variant()]
    from_zero = replace(LENGTH, series=[Series("a", [0, 1], [0, 1])], raw=[], log_x=False)
    assert variants(from_zero) == [Variant()]  # 0 has no place on a logarithmic axis


def test_panels_share_one_legend() -> None:
    entries = legend(lines(PANELS))
    assert [(e.label, e.series) for e in entries] == [
        (model, (i, i + 2, i + 4)) for i, model in enumerate(MODELS)
    ]
    drawn = draw(PANELS)
    assert [axes.get_title() for axes in drawn.axes] == ["code", "maths", "prose"]
    assert [len(axes.lines) for axes in drawn.axes] == [3, 3, 3]  # two models and a mark
    for number, axes in enumerate(drawn.axes):
        line = PANELS.panels[number].series[0]
        assert list(axes.lines[0].get_ydata()) == list(line.y)
    assert shared_styles([PANELS]) == {model: i for i, model in enumerate(MODELS)}


def test_each_series_of_a_panel_can_be_switched_on_the_page() -> None:
    svg = inline_svg(PANELS, variants(PANELS)[0], {}, "title", "name")
    assert [svg.count(f'data-series="{i}"') for i in range(7)] == [1] * 6 + [0]
    assert all(text in svg for text in ("code", "maths", "prose", "trained at 2"))


def test_panels_have_a_linear_and_a_logarithmic_axis() -> None:
    assert variants(PANELS) == [Variant(False, False), Variant(False, True)]


def test_a_heat_map_has_a_cell_a_value_with_the_first_row_on_top() -> None:
    svg = inline_svg(HEAT, variants(HEAT)[0], {}, "title", "name")
    assert "<image" not in svg  # a page refers to nothing
    assert all(text in svg for text in (">layer<", ">head<", ">share<"))
    axes = draw(HEAT).axes[0]
    (mesh,) = axes.collections
    assert mesh.get_array().filled(-1).tolist() == [[0.0, 0.5, 1.0], [1.0, 0.1, -1]]
    bottom, top = axes.get_ylim()
    assert (bottom, top) == (2, 0)


def test_a_heat_map_names_some_of_many_columns() -> None:
    names = [str(i) for i in range(100)]
    figure = replace(HEAT, heat=HeatMap(["0"], names, [[i / 100 for i in range(100)]], "share"))
    axes = draw(figure).axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == names[::7]


def _spectrum(*values: complex) -> dict[str, Any]:
    layer = {"real": [v.real for v in values], "imag": [v.imag for v in values]}
    return {"spectrum": {"layers": [None, layer]}}


def test_eigenvalues_in_rows_or_in_the_complex_plane() -> None:
    real = {"a": [_spectrum(-1, 0.5, 0.5, 1)], "b": [{}, _spectrum(0, 1)], "c": [{}]}
    rows = spectrum_figure("eigenvalues", real)
    assert rows is not None
    assert (rows.rows, rows.points) == (True, False)
    assert [line.label for line in rows.series] == ["a", "b"]
    assert [line.x for line in rows.series] == [[-1, 0.5, 1], [0, 1]]
    first, second = (line.y for line in rows.series)
    assert min(first) > max(second)  # in the order of the legend, from the top
    plane = spectrum_figure("eigenvalues", {**real, "d": [_spectrum(1j, -1j)]})
    assert plane is not None
    assert (plane.rows, plane.points) == (False, True)
    assert [line.y for line in plane.series] == [[0, 0, 0], [0, 0], [-1, 1]]
    for figure in (rows, plane):
        assert {".png", ".svg"} == set(picture_files(figure))
    assert spectrum_figure("eigenvalues", {"c": [{}]}) is None
