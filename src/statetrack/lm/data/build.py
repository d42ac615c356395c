"""Make a data folder: read the sources, train or load the tokenizer, write shards."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from statetrack.config import to_dict
from statetrack.errors import UserError
from statetrack.lm.data.config import DataConfig
from statetrack.lm.data.shards import SPLITS, DataDescription, TokenData, read_description
from statetrack.lm.data.sources import STDLIB, Document, documents
from statetrack.lm.data.tokenizer import TextTokenizer, load_tokenizer, train_tokenizer
from statetrack.lm.data.writer import complete, data_writer

BATCH = 2**20  # characters that are tokenised at once
TOKENIZER_TRAINING = 10**8  # characters that a tokenizer is trained on, at most


class DataProgress(NamedTuple):
    """The progress of `build_data`."""

    doing: str  # the current stage
    documents: int
    characters: int
    tokens: int
    seconds: float  # since the stage began


def build_data(
    config: DataConfig, folder: Path, on_progress: Callable[[DataProgress], None] | None = None
) -> DataDescription:
    """Tokenise the sources into a data folder, unless it holds the same already.

    Memory is bounded by the longest document, and the longest file of a folder.

    Args:
        config: Sources, split and tokenizer.
        folder: A new or empty folder, or one that was made with the same configuration.
        on_progress: Called after every million characters.

    Returns:
        The content of `data.json`.

    Raises:
        UserError: A source or the tokenizer cannot be read, a split would be empty, or the folder
            was made with another configuration or is corrupt.
    """
    folder = Path(folder)
    options = _options(config)
    if complete(folder):
        return _same(folder, options)
    show = on_progress or (lambda progress: None)
    skipped: list[str] = []
    with data_writer(folder) as writer:
        tokenizer = _tokenizer(config, show)
        writer.start(
            vocab_size=tokenizer.vocab_size,
            eos=tokenizer.eos,
            bos_id=tokenizer.bos_id,
            bos=config.bos,
            tokenizer=tokenizer.to_json(bos=config.bos),
            settings=tokenizer.settings(bos=config.bos),
        )
        sizes = dict.fromkeys(SPLITS, 0)
        for batch in _batches(documents(config, skipped), "tokenising", show, sizes):
            encoded = tokenizer.encode([document.text for document in batch])
            for split in SPLITS:
                own = (
                    ids
                    for ids, document in zip(encoded, batch, strict=True)
                    if document.split == split
                )
                sizes[split] = writer.add(split, own)
        _check_sizes(config, sizes)
        return writer.finish({**options, "skipped": skipped})


def _tokenizer(config: DataConfig, show: Callable[[DataProgress], None]) -> TextTokenizer:
    if config.tokenizer is not None:
        return load_tokenizer(config.tokenizer)
    read = (document for document in documents(config) if document.split == "train")
    first = next(read, None)
    if first is None:
        raise _empty("train")
    whole = chain([first], read)
    batches = _batches(whole, "training the tokenizer", show, {}, TOKENIZER_TRAINING)
    texts = (document.text for document in chain.from_iterable(batches))
    return train_tokenizer(texts, config.vocab_size)


def _batches(
    read: Iterator[Document],
    doing: str,
    show: Callable[[DataProgress], None],
    sizes: dict[str, int],
    limit: int | None = None,
) -> Iterator[list[Document]]:
    """Group documents to about `BATCH` characters, up to `limit` in all, and show progress."""
    begin = time.monotonic()
    number = characters = 0
    batch: list[Document] = []
    size = 0
    for document in read:
        batch.append(document)
        size += len(document.text)
        if size >= BATCH:
            yield batch
            number, characters = number + len(batch), characters + size
            batch, size = [], 0
            seconds = time.monotonic() - begin
            show(DataProgress(doing, number, characters, sum(sizes.values()), seconds))
            if limit is not None and characters >= limit:
                return
    if batch:
        yield batch


def _options(config: DataConfig) -> dict[str, Any]:
    made = {"python": platform.python_version()} if STDLIB in config.source else {}
    return {**to_dict(config), **made}


def _same(folder: Path, options: dict[str, Any]) -> DataDescription:
    """Return the description of a finished folder; raise if it has other options or is corrupt."""
    description = read_description(folder)
    for key in {**options, **description.options}:
        old, new = description.options.get(key), options.get(key)
        if key != "skipped" and old != new:
            raise UserError(
                f"{folder} was made with {key} {old!r}, not {new!r}; choose another folder"
            )
    for split in SPLITS:
        if getattr(description, split).tokens:
            TokenData.open(folder, split).verify()
    return description


def _check_sizes(config: DataConfig, sizes: dict[str, int]) -> None:
    for split, tokens in sizes.items():
        unwanted = {"train": 1, "validation": 0}[split]  # the share that leaves none to the split
        if not tokens and config.split in ("both", split) and config.validation != unwanted:
            raise _empty(split)


def _empty(split: str) -> UserError:
    share = {"train": "smaller", "validation": "larger"}[split]
    return UserError(
        f"no document fell to {split}: give more documents or a {share} --validation share, or "
        "name a text file as --source, whose end is held out"
    )
