"""Write a document in every format, or print it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from statetrack.files import check_folder, check_new, plain_name, read_json, write_atomic
from statetrack.report.document import Document, Figure, Table
from statetrack.report.figures import picture_files, shared_styles
from statetrack.report.html import to_html
from statetrack.report.text import cell_text, to_csv, to_json, to_latex, to_markdown
from statetrack.terminal import PlainConsole, print_table

DOCUMENT = "document.json"


def write_document(document: Document, folder: Path) -> None:
    """Write a document in every format.

    The page index.html contains everything and can be sent as it is. Beside it are report.md, one
    CSV and one LaTeX file a table, one PNG and one SVG file a figure, and document.json with the
    data. Files of an earlier report are overwritten.

    Args:
        document: the document.
        folder: where to write it; it is created if it does not exist.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tables, figures = file_names(document.tables), file_names(document.figures)
    write_atomic(folder / DOCUMENT, to_json(document))
    for table, name in zip(document.tables, tables, strict=True):
        write_atomic(folder / f"{name}.csv", to_csv(table))
        write_atomic(folder / f"{name}.tex", to_latex(table, name))
    styles = shared_styles(document.figures)
    for figure, name in zip(document.figures, figures, strict=True):
        for ending, data in picture_files(figure, styles).items():
            write_atomic(folder / f"{name}{ending}", data)
    write_atomic(folder / "report.md", to_markdown(document, tables, figures))
    write_atomic(folder / "index.html", to_html(document, tables, figures))


def check_report_folder(folder: Path, name: str) -> None:
    """Raise a UserError unless a folder is new or empty, or holds a report of the same name."""
    check_folder(folder)
    earlier = folder / DOCUMENT
    found = read_json(earlier) if earlier.is_file() else None
    if not isinstance(found, dict) or found.get("name") != name:
        check_new(folder)


def file_names(parts: Sequence[Table | Figure]) -> list[str]:
    """Name the files of tables or figures: by name or title, numbered where these repeat."""
    names: list[str] = []
    for part in parts:
        stem = plain_name(part.name or part.title.lower())
        number = 1 + sum(name.partition("--")[0] == stem for name in names)
        names.append(stem if number == 1 else f"{stem}--{number}")
    return names


def print_document(console: PlainConsole, document: Document) -> None:
    """Print the title, summary, tables and notes of a document."""
    console.print(document.title, style="bold")
    for text in document.summary:
        console.print(text)
    print_tables(console, document.tables)
    for note in document.notes:
        console.print(f"- {note}", style="dim")


def publish_document(console: PlainConsole, document: Document, folder: Path | None) -> None:
    """Print a document, and write it if there is a folder.

    Args:
        console: where to print.
        document: the document.
        folder: where to write it in every format.
    """
    print_document(console, document)
    if folder is not None:
        write_document(document, folder)
        console.print(f"Open {folder / 'index.html'} for the page.", soft_wrap=True)


def print_tables(console: PlainConsole, tables: Sequence[Table]) -> None:
    """Print the tables that have rows, with their notes."""
    for table in tables:
        if table.rows:
            rows = [[cell_text(cell) for cell in row] for row in table.rows]
            print_table(console, table.title, list(table.columns), rows)
            if table.note:
                console.print(table.note, style="dim")
