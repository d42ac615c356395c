"""Documents of files and folders, each in its split."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from statetrack.errors import UserError
from statetrack.files import regular, unreadable
from statetrack.lm.data.config import DataConfig
from statetrack.lm.data.shards import SPLITS
from statetrack.lm.data.templates import HUB_SETS, Template
from statetrack.tasks.rows import ROW_FORMATS, file_rows

STDLIB = "stdlib"
NOT_STDLIB = {"site-packages", "dist-packages", "__pycache__"}
PIECE = 1_000_000  # bytes after which a text file continues as another document
VALIDATION_SHARE = 0.05
SHOWN_ENDINGS = 5  # that a message names


class Document(NamedTuple):
    """A text and the split it belongs to."""

    split: str
    text: str


def documents(config: DataConfig, skipped: list[str] | None = None) -> Iterator[Document]:
    """Read the documents of all sources, in an order that is always the same.

    A row of JSONL, Parquet or a Hugging Face set is a document, and so is a file of text in a
    folder. A file of text that is itself a source is one for each split: its end is held out. Text
    of more than a megabyte is several documents, cut at the ends of lines. Empty ones are left out.

    Args:
        config: The sources, and how to split them.
        skipped: Takes the names of files in folders that are not UTF-8, which are left out.

    Raises:
        UserError: A source does not exist, is corrupt, lacks a key, or has no documents.
    """
    wanted = SPLITS if config.split == "both" else (config.split,)
    for source in config.source:
        found = False
        for document in _read(source, config, [] if skipped is None else skipped):
            if document.text and document.split in wanted:
                found = True
                yield document
        if not found:
            raise _nothing(source, config)


def split_of(key: str, config: DataConfig, default: float = VALIDATION_SHARE) -> str:
    """Return the split of a document by a hash of its name; other documents have no influence.

    Args:
        key: the name of the document.
        config: the seed and the share for validation.
        default: the share if the configuration has none.
    """
    digest = hashlib.blake2b(f"{config.seed}:{key}".encode(), digest_size=8).digest()
    return (
        "validation" if int.from_bytes(digest, "big") < _share(config, default) * 2**64 else "train"
    )


def _share(config: DataConfig, default: float = VALIDATION_SHARE) -> float:
    return default if config.validation is None else config.validation


def _read(source: str, config: DataConfig, skipped: list[str]) -> Iterator[Document]:
    if source in HUB_SETS or source.startswith("hf:"):
        from statetrack.lm.data.hub import hub_documents  # `datasets` takes seconds to load

        return hub_documents(source, config)
    if source == STDLIB:
        folder = Path(sysconfig.get_path("stdlib"))
        found = _folder(folder, (".py",), config, skipped, NOT_STDLIB)
    elif Path(source).is_dir():
        found = _folder(Path(source), config.suffix, config, skipped)
    elif not Path(source).exists():
        names = ", ".join((STDLIB, *HUB_SETS, "hf:NAME"))
        raise UserError(f"{source} does not exist; a source is a file, a folder or one of {names}")
    elif Path(source).suffix in ROW_FORMATS:
        found = _rows(Path(source), Path(source).name, config)
    else:
        return _text_file(Path(source), config)
    return islice(found, config.max_documents)


def _folder(
    folder: Path,
    suffixes: Sequence[str],
    config: DataConfig,
    skipped: list[str],
    excluded: Collection[str] = (),
) -> Iterator[Document]:
    for path in _files(folder, excluded):
        if path.suffix not in suffixes:
            continue
        name = path.relative_to(folder).as_posix()
        if path.suffix in ROW_FORMATS:
            yield from _rows(path, name, config)
            continue
        try:
            pieces = list(_pieces(path, 0, path.stat().st_size))
        except UnicodeDecodeError:
            skipped.append(name)
            continue
        split = split_of(name, config)  # of the file as a whole
        yield from (Document(split, piece) for piece in pieces)


def _files(folder: Path, excluded: Collection[str] = ()) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - set(excluded))
        paths = (Path(root, name) for name in sorted(names))
        yield from (path for path in paths if path.is_file())


def _nothing(source: str, config: DataConfig) -> UserError:
    """Return the error that says why a source has no documents."""
    endings = Counter(path.suffix for path in _files(Path(source)))  # none unless it is a folder
    if endings and endings.keys().isdisjoint(config.suffix):
        common = [ending for ending, _ in endings.most_common(SHOWN_ENDINGS) if ending]
        remedy = f": give --suffix {' '.join(common)}" if common else ""
        return UserError(f"{source} has no files that end in {', '.join(config.suffix)}{remedy}")
    asked = "" if config.split == "both" else f" for {config.split}"
    return UserError(f"{source} has no documents{asked}")


def _text_file(path: Path, config: DataConfig) -> Iterator[Document]:
    """Read a file of text, whose end is for validation, at most `max_documents` of each split."""
    try:
        size = regular(path).stat().st_size
        cut = _cut(path, size, _share(config))
        for split, start, stop in (("train", 0, cut), ("validation", cut, size)):
            for piece in islice(_pieces(path, start, stop), config.max_documents):
                yield Document(split, piece)
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from None


def _cut(path: Path, size: int, share: float) -> int:
    """Return where the last `share` of a file begins: after a line or, within long ones, a space.

    It is the size if neither ends before the end of the file: then nothing is held out.
    """
    start = int(size * (1 - share))
    if share in (0, 1):
        return start
    with open(path, "rb") as file:
        file.seek(start)
        text = file.read(PIECE)
    cuts = (start + text.find(end) + 1 for end in (b"\n", b" "))
    return next((cut for cut in cuts if start < cut < size), size)


def _pieces(path: Path, start: int, stop: int) -> Iterator[str]:
    """Read the bytes start..stop-1 of a text in pieces of at least PIECE, to the end of a line."""
    with open(path, "rb") as file:
        file.seek(start)
        while piece := file.read(min(PIECE, stop - file.tell())):
            yield (piece + file.readline(stop - file.tell())).decode()


def _rows(path: Path, name: str, config: DataConfig) -> Iterator[Document]:
    template = Template(config.template or f"{{{config.field}}}")
    for number, row in file_rows(path, template.keys):
        text = template.fill(row, f"{path}, line {number}")
        yield Document(split_of(f"{name}:{number}", config), text)
