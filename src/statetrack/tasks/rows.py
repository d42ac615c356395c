"""Rows of JSONL and Parquet files, one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from json import JSONDecodeError
from pathlib import Path
from typing import Any

from statetrack.errors import UserError
from statetrack.files import parse_json, regular, unreadable

PARQUET_ROWS = 1024  # that are in memory at a time


def file_rows(path: Path, columns: Sequence[str] | None = None) -> Iterator[tuple[int, Any]]:
    """Give the number, from 1, and the contents of each row of a .jsonl or .parquet file.

    Args:
        path: The file. Blank lines of a .jsonl are passed over.
        columns: The only ones that are read of a .parquet; all if absent.

    Raises:
        UserError: The file cannot be read, a line is no JSON, or a column is missing.
    """
    try:
        yield from ROW_FORMATS[path.suffix](regular(path), columns)
    except (OSError, ValueError, NotImplementedError) as error:  # of which pyarrow's errors are
        if isinstance(error, UserError):
            raise
        raise unreadable(path, error) from None


def require_pyarrow() -> Any:
    """Import pyarrow, or raise a UserError that says what to install."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError("parquet needs pyarrow: pip install 'statetrack[parquet]'") from None
    return pyarrow


def _jsonl_rows(path: Path, columns: Sequence[str] | None) -> Iterator[tuple[int, Any]]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    row = parse_json(line.rstrip())
                except JSONDecodeError as error:
                    where = f" (line {number}, column {error.colno})"
                    raise unreadable(path, ValueError(error.msg), where) from None
                except ValueError as error:
                    raise unreadable(path, error, f" (line {number})") from None
                yield number, row


def _parquet_rows(path: Path, columns: Sequence[str] | None) -> Iterator[tuple[int, Any]]:
    with require_pyarrow().parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names
        for column in columns or ():
            if column not in names:
                raise UserError(f"{path} has no column {column!r}; it has: {', '.join(names)}")
        batches = file.iter_batches(PARQUET_ROWS, columns=columns)
        yield from enumerate(chain.from_iterable(batch.to_pylist() for batch in batches), 1)


ROW_FORMATS = {".jsonl": _jsonl_rows, ".parquet": _parquet_rows}
