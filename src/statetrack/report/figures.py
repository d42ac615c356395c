"""Draw the figures of a document, as PNG and SVG."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from statetrack.report.document import Figure, HeatMap, Series

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

# Okabe and Ito's colours, which the colour-blind tell apart and which show on white and on black,
# then purple and brown; markers tell lines apart without colours, dashes where more share a colour
COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c8c8c", "#9467bd",
    "#a0643c",
)  # fmt: skip
MARKERS = "os^DvPX*"
DASHES = ((), (6, 1.5), (4, 1.5, 1, 1.5), (1, 1))
DASHED = (3, 2)
MARKED = 8  # markers on a long line
LETTER = 0.068  # inches of an average letter in a legend
MAX_ENTRIES = 14  # lines that can be told apart in one figure
HEAT_TICKS = 16  # names of rows or columns of a heat map
HEAT_COLOURS = 32


@dataclass(frozen=True)
class Variant:
    """One way to draw a figure."""

    raw: bool = False  # the raw axis instead of the scaled one
    log: bool = False  # a logarithmic x-axis


@dataclass(frozen=True)
class LegendEntry:
    """A line of the legend, with the series that it switches on and off."""

    label: str
    style: int  # index of colour, marker and dashes
    dashed: bool
    series: tuple[int, ...]

    @property
    def colour(self) -> str:
        """The colour of its series."""
        return COLOURS[self.style % len(COLOURS)]

    def dashes(self, dashed: bool) -> tuple[float, ...]:
        """The dashes of a series in line widths; () for a solid line."""
        return DASHED if dashed else DASHES[self.style // len(COLOURS) % len(DASHES)]


def panels(figure: Figure) -> Sequence[Figure]:
    """Return the panels of a figure; a figure without any is its own."""
    return figure.panels or (figure,)


def lines(figure: Figure, raw: bool = False) -> list[Series]:
    """Return the series of all panels, numbered in this order on a page."""
    return [line for panel in panels(figure) for line in (panel.raw if raw else panel.series)]


def variants(figure: Figure) -> list[Variant]:
    """List the ways to draw a figure, its default first."""
    default = not figure.scatter and figure.log_x
    x = [value for series in (*lines(figure), *lines(figure, raw=True)) for value in series.x]
    both = not figure.scatter and bool(x) and 0 < min(x) < max(x)
    logs = [default, not default] if both else [default]
    return [Variant(raw, log) for raw in ([False, True] if figure.raw else [False]) for log in logs]


def shared_styles(figures: Sequence[Figure]) -> dict[str, int]:
    """Give each group the same style in all figures of a document, if there are enough colours."""
    every = [line for figure in figures for line in lines(figure)]
    groups = dict.fromkeys(line.group or line.label for line in every)
    return {g: i for i, g in enumerate(groups)} if len(groups) <= len(COLOURS) else {}


def legend(series: Sequence[Series], styles: Mapping[str, int] | None = None) -> list[LegendEntry]:
    """Group series for the legend: faint ones belong to the first full line of their group.

    Args:
        series: the lines of a figure.
        styles: those of the document's groups; by default they are numbered.
    """
    styles = dict(styles or {})
    entries: dict[str, LegendEntry] = {}
    for full in (True, False):
        for i, line in enumerate(series):
            if line.faint == full:
                continue
            style = styles.setdefault(line.group or line.label, len(styles))
            shared = [e for e in entries.values() if line.faint and line.group and e.style == style]
            key = shared[0].label if shared else line.label if full else line.group or line.label
            old = entries.get(key, LegendEntry(key, style, line.dashed, ()))
            entries[key] = LegendEntry(key, old.style, old.dashed, (*old.series, i))
    return list(entries.values())


def draw(figure: Figure, styles: Mapping[str, int] | None = None) -> Picture:
    """Draw a figure with its legend."""
    return _draw(figure, variants(figure)[0], styles, with_legend=True)


def picture_files(figure: Figure, styles: Mapping[str, int] | None = None) -> dict[str, bytes]:
    """Return a figure with its legend as files, by their endings: .png and .svg."""
    picture = draw(figure, styles)
    picture.draw_without_rendering()
    picture.set_layout_engine("none")  # the layout is computed once, not again for each file
    return {f".{kind}": _save(picture, kind, figure.title) for kind in ("png", "svg")}


def inline_svg(
    figure: Figure, variant: Variant, styles: Mapping[str, int], title: str, name: str
) -> str:
    """Return a figure as an element for a page.

    Each series is a group of class `series` with the attribute `data-series`; black lines and texts
    get the page's text colour; the page has the title and the legend.

    Args:
        figure: the figure.
        variant: how to draw it.
        styles: of the document's groups.
        title: the id of the element with the figure's title.
        name: unique on the page.
    """
    picture = _draw(figure, variant, styles, with_legend=False)
    text = _save(picture, "svg", name).decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r' id="[A-Za-z0-9.]+_[0-9]+"', "", text)  # nothing refers to these
    text = re.sub(r'<g id="series-(\d+)(-faint)?">', _series_group, text)
    text = re.sub(r"(\d+\.\d\d)\d+", r"\1", text).replace("#000000", "currentColor")
    text = re.sub(r"\n\s*", "\n", text)
    size = re.search(r'viewBox="[^"]*"', text)
    head = f'<svg role="img" aria-labelledby="{title}" {size[0] if size else ""}>'
    return re.sub(r"<svg[^>]*>", head, text, count=1)


def _series_group(found: re.Match[str]) -> str:
    kind = "series faint" if found[2] else "series"
    return f'<g class="{kind}" data-series="{found[1]}">'


def _save(picture: Picture, kind: str, salt: str) -> bytes:
    import matplotlib

    data = io.BytesIO()
    metadata: Any = {"Date": None, "Creator": None} if kind == "svg" else None
    # equal figures give equal files
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        picture.savefig(data, format=kind, dpi=150, metadata=metadata)
    return data.getvalue()


def _draw(
    figure: Figure, variant: Variant, styles: Mapping[str, int] | None, *, with_legend: bool
) -> Picture:
    from matplotlib.figure import Figure as Picture  # slow to load

    parts = panels(figure)
    entries = legend(lines(figure, variant.raw), styles)
    grid, size = (1, 1), (5.2, 5.0) if figure.points else (7.2, 4.2)
    if figure.rows:
        size = (7.2, 1.2 + 0.32 * len(entries))
    if len(parts) > 1:  # two in a row
        grid = (-(-len(parts) // 2), 2)
        size = (9.6, 3.6 * grid[0])
    # two columns if the longest label fits half the width
    longest = max((len(entry.label) for entry in entries), default=0)
    columns = 2 if LETTER * longest + 0.5 <= size[0] / 2 else 1
    if with_legend and len(entries) > 1:
        size = (size[0], size[1] + 0.22 * -(-len(entries) // columns))
    fixed = not (with_legend or figure.panels or figure.heat)
    picture = Picture(figsize=size, layout=None if fixed else "constrained")
    if not with_legend:
        picture.patch.set_alpha(0)
    if fixed:
        picture.subplots_adjust(left=0.1, right=0.98, top=0.93, bottom=0.13)
    handles: dict[str, Artist] = {}
    first = 0  # number of the panel's first series
    for number, panel in enumerate(parts, 1):
        axes = picture.add_subplot(*grid, number)
        handles |= _draw_panel(axes, panel, variant, entries, first) | handles
        if with_legend or figure.panels:
            axes.set_title(panel.title, fontsize=10, pad=18 if panel.marks else 6)
        first += len(lines(panel, variant.raw))
    if with_legend and figure.panels:
        picture.suptitle(figure.title, fontsize=11)
    if with_legend and len(entries) > 1:
        place: Any = "outside lower center"
        # long handles: beside its marker a dashed line must look dashed
        picture.legend(
            list(handles.values()), list(handles), loc=place, ncols=columns, fontsize=8,
            handlelength=3.5,
        )  # fmt: skip
    return picture


def _draw_panel(
    axes: Axes, panel: Figure, variant: Variant, entries: Sequence[LegendEntry], first: int
) -> dict[str, Artist]:
    """Draw lines, of which the first one has number `first`, or a heat map; return the handles."""
    axes.patch.set_alpha(0)
    if panel.heat is not None:
        _draw_heat(axes, panel, panel.heat)
        return {}
    own = dict(enumerate(lines(panel, variant.raw), first))
    handles: dict[str, Artist] = {}
    for entry in entries:
        for i in (i for i in entry.series if i in own):
            drawn = _draw_series(axes, own[i], entry, panel.scatter)
            for artist in drawn:
                artist.set_gid(f"series-{i}" + "-faint" * own[i].faint)
            handles.setdefault(entry.label, drawn[0])
    _draw_axes(axes, panel, variant)
    return handles


def _draw_series(axes: Axes, line: Series, entry: LegendEntry, points: bool) -> list[Any]:
    """Draw a series and its interval; return the artists, that of the line first."""
    x, y = np.array(line.x, dtype=float), np.array(line.y, dtype=float)  # NaN for None
    marker = MARKERS[entry.style % len(MARKERS)]
    if points:
        found = axes.plot(x, y, marker, ms=3, alpha=0.5, mew=0, color=entry.colour)
        return list(found)
    single = len(x) == 1
    dashes = entry.dashes(line.dashed)
    style: dict[str, Any] = {"color": entry.colour, "linestyle": (0, dashes) if dashes else "-"}
    if line.faint:
        style |= {"lw": 0.8, "alpha": 0.45} | ({"marker": ".", "ms": 3} if single else {})
    else:
        # shifted by line, so that lines that coincide show each other's markers
        first = 0 if len(x) <= MARKED else (entry.style * 37 % 100) / 100 / MARKED
        every = 1 if len(x) <= MARKED else (first, 1 / MARKED)
        style |= {"lw": 1.7, "marker": marker, "ms": 4.5, "markevery": every}
    drawn: list[Any] = list(axes.plot(x, y, **style))
    if line.low is not None and line.high is not None:
        low, high = np.array(line.low, dtype=float), np.array(line.high, dtype=float)
        if single:
            drawn.append(axes.vlines(x, low, high, color=entry.colour, lw=1.2))
        else:
            drawn.append(axes.fill_between(x, low, high, color=entry.colour, alpha=0.18, lw=0))
    return drawn


def _draw_axes(axes: Axes, figure: Figure, variant: Variant) -> None:
    axes.set_xlabel(figure.x_label)
    axes.set_ylabel(figure.raw_label if variant.raw and figure.raw_label else figure.y_label)
    if variant.log:
        axes.set_xscale("log")
        _name_ticks(axes)
    if figure.y_range is not None and not variant.raw:
        axes.set_ylim(figure.y_range)
    elif figure.points:
        _draw_unit_circle(axes)
    elif figure.rows:
        axes.set_yticks([])
    for x, text in figure.marks:
        axes.axvline(x, color="#000000", lw=0.9, ls="--", alpha=0.6)
        axes.annotate(text, (x, 1), xycoords=("data", "axes fraction"), xytext=(3, 3),
                      textcoords="offset points", fontsize=8, annotation_clip=False)  # fmt: skip
    axes.grid(alpha=0.25)
    axes.spines[["top", "right", *(["left"] if figure.rows else [])]].set_visible(False)


def _draw_heat(axes: Axes, figure: Figure, heat: HeatMap) -> None:
    import matplotlib

    values = np.array(heat.values, dtype=float)  # NaN for None
    low, high = heat.value_range
    colours = matplotlib.colormaps["viridis"].resampled(HEAT_COLOURS)
    # cells have borders of their own colour: else the background shows between them
    border: Any = {"edgecolors": "face", "lw": 0.3}
    mesh = axes.pcolormesh(values, cmap=colours, vmin=low, vmax=high, **border)
    for set_ticks, names in ((axes.set_xticks, heat.columns), (axes.set_yticks, heat.rows)):
        shown = range(0, len(names), -(-len(names) // HEAT_TICKS))
        set_ticks([i + 0.5 for i in shown], [names[i] for i in shown], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(figure.x_label)
    axes.set_ylabel(figure.y_label)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    bar = axes.figure.colorbar(mesh, ax=axes, label=heat.label, fraction=0.05, pad=0.02)
    bar.outline.set_visible(False)
    assert bar.solids is not None
    bar.solids.set(rasterized=False, **border)  # an SVG without images


def _name_ticks(axes: Axes) -> None:
    """Write the ticks of a logarithmic axis as numbers, powers of two where few fit."""
    low, high = axes.get_xlim()
    powers = 2.0 ** np.arange(np.ceil(np.log2(low)), np.floor(np.log2(high)) + 1)
    if 3 <= len(powers) <= 11 and low >= 0.5:
        axes.set_xticks(powers, [f"{n:,.0f}" for n in powers])
        axes.set_xticks([], minor=True)
        axes.set_xlim(low, high)
    elif low >= 0.5:
        axes.xaxis.set_major_formatter("{x:,.0f}")
        if high > 10 * low:
            axes.xaxis.set_minor_formatter("")


def _draw_unit_circle(axes: Axes) -> None:
    turn = np.exp(2j * np.pi * np.linspace(0, 1, 361))
    axes.plot(turn.real, turn.imag, color="#8c8c8c", lw=0.8, zorder=0)
    axes.set_aspect("equal")
