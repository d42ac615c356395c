"""Documents of data sets on the Hugging Face hub."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import datasets

from statetrack.errors import UserError
from statetrack.lm.data.config import DataConfig
from statetrack.lm.data.shards import SPLITS
from statetrack.lm.data.sources import Document, split_of
from statetrack.lm.data.templates import (
    EVALUATION_SEED,
    EVALUATION_SHARE,
    HUB_SETS,
    HubSet,
    Template,
)

Row = tuple[str, int, dict[str, Any]]  # split, number, contents


def hub_documents(source: str, config: DataConfig) -> Iterator[Document]:
    """Read a data set by its short name or as `hf:NAME` or `hf:NAME:CONFIG`.

    A split called validation is used as it is. Without one, the rows of train are split: as
    `DataConfig` says or, by default, with the share and seed of the paper's evaluation.

    Args:
        source: the name.
        config: which splits to read, how to split, and the text of a row.

    Raises:
        UserError: the set cannot be read, or a row lacks a key.
    """
    hub_set = HUB_SETS.get(source) or _by_name(source, config)
    template = Template(config.template or hub_set.template)
    # huggingface_hub logs a warning for each attempt to connect
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        for split, key, row in _rows(hub_set, config):
            yield Document(split, template.fill(row, f"{source}, row {key}"))
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        if isinstance(error, UserError):
            raise
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"cannot read {hub_set.path} from the Hugging Face hub: {reason}") from None


def _by_name(source: str, config: DataConfig) -> HubSet:
    path, _, name = source.removeprefix("hf:").partition(":")
    return HubSet(path, name or None, f"{{{config.field}}}", True)


def _rows(hub_set: HubSet, config: DataConfig) -> Iterator[Row]:
    wanted = SPLITS if config.split == "both" else (config.split,)
    path, name = hub_set.path, hub_set.config
    names = datasets.get_dataset_split_names(path, name)
    if "validation" in names:
        for split in wanted:
            rows = datasets.load_dataset(path, name, split=split, streaming=True)
            yield from _numbered(split, rows, config)
    elif config.validation is None and not hub_set.streaming:
        whole = datasets.load_dataset(path, name, split="train")
        halves = whole.train_test_split(EVALUATION_SHARE, seed=EVALUATION_SEED)
        for split in wanted:
            rows = halves["test" if split == "validation" else "train"]
            yield from _numbered(split, rows, config)
    else:
        rows = datasets.load_dataset(path, name, split="train", streaming=True)
        for _, i, row in _numbered("train", rows, config):
            yield split_of(str(i), config, EVALUATION_SHARE), i, row


def _numbered(split: str, rows: Iterable[Any], config: DataConfig) -> Iterator[Row]:
    return ((split, i, row) for i, row in enumerate(islice(rows, config.max_documents), 1))
