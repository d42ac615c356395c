"""Documents of files and folders, each in its split."""

from __future__ import annotations

import hashlib
import os
import sysconfig
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
PIECE = 1_000_000  # characters after which a text file continues as another document
VALIDATION_SHARE = 0.05


class Document(NamedTuple):
    """A text and the split it belongs to."""

    split: str
    text: str


def documents(config: DataConfig, skipped: list[str] | None = None) -> Iterator[Document]:
    """Read the documents of all sources, in an order that is always the same.

    A row of JSONL, Parquet or a Hugging Face set is a document, and so is a file of text; one of
    more than a million characters is several, cut at the ends of lines. Empty ones are left out.

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
            asked = "" if config.split == "both" else f" for {config.split}"
            raise UserError(f"{source} has no documents{asked}")


def split_of(key: str, config: DataConfig, default: float = VALIDATION_SHARE) -> str:
    """Return the split of a document by a hash of its name; other documents have no influence.

    Args:
        key: the name of the document.
        config: the seed and the share for validation.
        default: the share if the configuration has none.
    """
    share = default if config.validation is None else config.validation
    digest = hashlib.blake2b(f"{config.seed}:{key}".encode(), digest_size=8).digest()
    return "validation" if int.from_bytes(digest, "big") < share * 2**64 else "train"


def _read(source: str, config: DataConfig, skipped: list[str]) -> Iterator[Document]:
    if source in HUB_SETS or source.startswith("hf:"):
        from statetrack.lm.data.hub import hub_documents  # `datasets` takes seconds to load

        return hub_documents(source, config)
    if source == STDLIB:
        folder = Path(sysconfig.get_path("stdlib"))
        found = _folder(folder, (".py",), config, skipped, NOT_STDLIB)
    elif Path(source).is_dir():
        found = _folder(Path(source), config.suffix, config, skipped)
    elif Path(source).exists():
        found = _file(Path(source), config)
    else:
        names = ", ".join((STDLIB, *HUB_SETS, "hf:NAME"))
        raise UserError(f"{source} does not exist; a source is a file, a folder or one of {names}")
    return islice(found, config.max_documents)


def _folder(
    folder: Path,
    suffixes: Sequence[str],
    config: DataConfig,
    skipped: list[str],
    excluded: Collection[str] = (),
) -> Iterator[Document]:
    for path in _files(folder, suffixes, excluded):
        name = path.relative_to(folder).as_posix()
        if path.suffix in ROW_FORMATS:
            yield from _rows(path, name, config)
            continue
        try:
            pieces = list(_pieces(path))
        except UnicodeDecodeError:
            skipped.append(name)
            continue
        split = split_of(name, config)  # of the file as a whole
        yield from (Document(split, piece) for piece in pieces)


def _files(folder: Path, suffixes: Sequence[str], excluded: Collection[str]) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - set(excluded))
        paths = (Path(root, name) for name in sorted(names))
        yield from (path for path in paths if path.suffix in suffixes and path.is_file())


def _file(path: Path, config: DataConfig) -> Iterator[Document]:
    if path.suffix in ROW_FORMATS:
        yield from _rows(path, path.name, config)
        return
    try:
        for number, piece in enumerate(_pieces(path)):
            yield Document(split_of(f"{path.name}:{number}", config), piece)
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from None


def _pieces(path: Path) -> Iterator[str]:
    with open(regular(path), encoding="utf-8", newline="") as file:
        while lines := file.readlines(PIECE):
            yield "".join(lines)


def _rows(path: Path, name: str, config: DataConfig) -> Iterator[Document]:
    template = Template(config.template or f"{{{config.field}}}")
    for number, row in file_rows(path, template.keys):
        text = template.fill(row, f"{path}, line {number}")
        yield Document(split_of(f"{name}:{number}", config), text)
