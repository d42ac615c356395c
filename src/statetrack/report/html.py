"""Write a document as one HTML page, which needs no other file and no network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files

from statetrack.report.document import Document, Figure, Table
from statetrack.report.figures import (
    LegendEntry,
    inline_svg,
    legend,
    lines,
    shared_styles,
    variants,
)
from statetrack.report.text import CODE, cell_text, fact_text, numeric_columns


def to_html(document: Document, tables: list[str], figures: list[str]) -> str:
    """Return the page of a document.

    Args:
        document: the document.
        tables: the names of the tables' files, without their endings.
        figures: those of the figures' files.
    """
    title = escape(document.title)
    parts = [f"<h1>{title}</h1>"]
    parts += [f'<p class="summary">{paragraph(text)}</p>' for text in document.summary]
    parts += [table_html(t, name) for t, name in zip(document.tables, tables, strict=True)]
    styles = shared_styles(document.figures)
    named = zip(document.figures, figures, strict=True)
    parts += [figure_html(figure, styles, name) for figure, name in named]
    if document.notes:
        notes = "".join(f"<li>{paragraph(note)}</li>" for note in document.notes)
        parts.append(f"<h2>Notes</h2><ul>{notes}</ul>")
    if document.facts:
        rows = "".join(
            f'<tr><th scope="row">{escape(name)}</th><td>{escape(fact_text(value))}</td></tr>'
            for name, value in document.facts.items()
        )
        parts.append(
            f'<h2>How it was made</h2><div class="wide"><table><tbody>{rows}</tbody></table></div>'
        )
    if document.configs:
        parts.append("<h2>Configurations</h2>")
        parts += [
            f"<details><summary>{escape(name)}</summary>"
            f"<pre>{escape(json.dumps(config, indent=2))}</pre></details>"
            for name, config in document.configs.items()
        ]
    parts.append("<footer><p>Made by statetrack. The numbers are in document.json.</p></footer>")
    here = files("statetrack.report")
    style, script = (here.joinpath(name).read_text() for name in ("page.css", "page.js"))
    body = "\n".join(parts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}
</main>
<script>
{script}</script>
</body>
</html>
"""


def paragraph(text: str) -> str:
    """Escape a text; text between backticks becomes code."""
    parts = [escape(part) for part in CODE.split(text)]
    return "".join(f"<code>{t}</code>" if i % 2 else t for i, t in enumerate(parts))


def table_html(table: Table, name: str) -> str:
    """Return a table in a box that scrolls sideways where the screen is narrow."""
    classes = [' class="number"' if numeric else "" for numeric in numeric_columns(table)]
    head = "".join(
        f'<th scope="col"{kind}>{escape(text)}</th>'
        for text, kind in zip(table.columns, classes, strict=True)
    )
    rows = []
    for row in table.rows:
        texts = [escape(cell_text(cell)) for cell in row]
        cells = zip(texts[1:], classes[1:], strict=True)
        rest = "".join(f"<td{kind}>{text}</td>" for text, kind in cells)
        rows.append(f'<tr><th scope="row"{classes[0]}>{texts[0]}</th>{rest}</tr>')
    title = escape(table.title)
    note = f'<p class="note">{paragraph(table.note)}</p>' if table.note else ""
    return (
        f'<section id="table-{escape(name)}"><h2>{title}</h2>'
        f'<div class="wide" tabindex="0" role="region" aria-label="{title}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        f"{note}</section>"
    )


def figure_html(figure: Figure, styles: Mapping[str, int], name: str) -> str:
    """Return a figure with its legend, drawn in every way; all but the first are hidden."""
    title_id = f"title-{escape(name)}"
    drawings = []
    for i, variant in enumerate(variants(figure)):
        svg = inline_svg(figure, variant, styles, title_id, f"{name}-{i}")
        drawings.append(
            f'<div class="wide" data-variant="{i}" data-raw="{variant.raw:d}" '
            f'data-log="{variant.log:d}"{" hidden" if i else ""}>{svg}</div>'
        )
    entries = legend(lines(figure), styles)
    items = "".join(f"<li>{_legend_html(e, figure.scatter)}</li>" for e in entries)
    shown = f'<ul class="legend" aria-label="series">{items}</ul>' if entries else ""
    note = f'<p class="note">{paragraph(figure.note)}</p>' if figure.note else ""
    kind = ' class="points"' if figure.points else ""
    return (
        f'<figure id="figure-{escape(name)}"{kind}>'
        f'<figcaption id="{title_id}">{escape(figure.title)}</figcaption>'
        f'<div class="controls"></div>{"".join(drawings)}'
        f"{shown}{note}</figure>"
    )


def _legend_html(entry: LegendEntry, points: bool) -> str:
    """Return an entry of the legend with a short piece of its line, or a point."""
    series = " ".join(map(str, entry.series))
    dashes = "0 99" if points else " ".join(f"{3 * n:g}" for n in entry.dashes(entry.dashed))
    sample = f'stroke="{entry.colour}" stroke-width="{9 if points else 3}"'
    sample += f' stroke-dasharray="{dashes}"' if dashes else ""
    sample += ' stroke-linecap="round" stroke-dashoffset="-13"' if points else ""
    return (
        f'<span data-series="{series}"><svg viewBox="0 0 28 12" aria-hidden="true">'
        f'<line x1="1" x2="27" y1="6" y2="6" {sample}/></svg>{escape(entry.label)}</span>'
    )
