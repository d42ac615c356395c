"""Tokens on disk: the files of a data folder, and reading them through a memory map.

A data folder has `data.json` (written last: a folder without it is incomplete), `tokenizer.json`,
`tokenizer_config.json` and, for each split, `SPLIT-00000.bin`, ... (little-endian tokens) and
`SPLIT-documents.npy` (where each document starts, int64). Documents follow each other without gaps;
each ends with EOS.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from statetrack.config import check_types, from_dict, one_of, to_dict
from statetrack.errors import UserError
from statetrack.files import read_json, regular, unreadable

SCHEMA = 1
DESCRIPTION, TOKENIZER = "data.json", "tokenizer.json"
TOKENIZER_SETTINGS = "tokenizer_config.json"
SPLITS = ("train", "validation")
DTYPES = {"uint16": "<u2", "uint32": "<u4"}

Ints = NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class StoredFile:
    """A file of a data folder and its checksum."""

    name: str
    sha256: str
    tokens: int = 0  # of a shard


@dataclasses.dataclass(frozen=True)
class SplitFiles:
    """The files of a split, and how much they hold."""

    tokens: int
    documents: int
    shards: tuple[StoredFile, ...]
    starts: StoredFile


@dataclasses.dataclass(frozen=True)
class DataDescription:
    """The content of `data.json`."""

    vocab_size: int
    dtype: Literal["uint16", "uint32"]
    eos: int
    bos: bool  # whether `bos_id` stands before each document
    bos_id: int | None
    tokenizer: StoredFile
    train: SplitFiles
    validation: SplitFiles
    options: dict  # type: ignore[type-arg]  # what the folder was made of, and how

    def __post_init__(self) -> None:
        check_types(self)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything but `options`: equal for equal tokens, whatever their source."""
        content = {key: value for key, value in to_dict(self).items() if key != "options"}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the contents of `data.json`."""
        return {"schema": SCHEMA, "fingerprint": self.fingerprint, **to_dict(self)}


def read_description(folder: Path) -> DataDescription:
    """Read `data.json` of a data folder.

    Raises:
        UserError: The folder is not a data folder, or its `data.json` has been changed.
    """
    file = Path(folder) / DESCRIPTION
    if not file.exists():
        remedy = "make one with statetrack lm data --out FOLDER"
        raise UserError(f"{folder} is not a data folder: it has no {DESCRIPTION}; {remedy}")
    read = read_json(file)
    if not isinstance(read, dict) or read.pop("schema", None) != SCHEMA:
        raise UserError(f"{file} does not describe a data folder with schema {SCHEMA}")
    fingerprint = read.pop("fingerprint", None)
    description = from_dict(DataDescription, read, str(file))
    if description.fingerprint != fingerprint:
        raise UserError(f"{file} has been changed: its fingerprint does not match its contents")
    return description


class TokenData:
    """The tokens of one split of a data folder, memory-mapped.

    Attributes:
        folder: The data folder.
        split: "train" or "validation".
        description: the content of `data.json`.
        num_tokens: How many tokens the split has, BOS and EOS included.
        document_starts: [documents] where each document starts, increasing from 0.
    """

    def __init__(self, folder: Path, split: str) -> None:
        one_of("split", split, SPLITS)
        self.folder, self.split = Path(folder), split
        self.description = read_description(self.folder)
        self.files: SplitFiles = getattr(self.description, split)
        if not self.files.tokens:
            remedy = "make a folder with --split both and --validation between 0 and 1"
            raise UserError(f"{folder} has no {split} tokens: {remedy}")
        self.num_tokens = self.files.tokens
        self._shards = [self._mapped(shard) for shard in self.files.shards]
        self._ends = list(accumulate(len(shard) for shard in self._shards))
        if self._ends[-1] != self.num_tokens:
            raise UserError(f"{self.folder / DESCRIPTION}: the shards of {split} do not add up")
        self.document_starts = self._starts()

    @classmethod
    def open(cls, folder: Path | str, split: str = "train") -> TokenData:
        """Open a split of a data folder; check the files' sizes, not their contents.

        Raises:
            UserError: The folder is not a data folder, or one of its files is missing, truncated
                or differs from the description in `data.json`.
        """
        return cls(Path(folder), split)

    @property
    def vocab_size(self) -> int:
        """The number of tokens in the vocabulary."""
        return self.description.vocab_size

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the folder's tokens and tokenizer."""
        return self.description.fingerprint

    @property
    def tokenizer_file(self) -> Path:
        """The tokenizer that made the tokens, in the format of `tokenizers`."""
        return self.folder / TOKENIZER

    def read(self, start: int, stop: int) -> Ints:
        """Return the tokens start..stop-1.

        Raises:
            UserError: A token is not in the vocabulary: the file is corrupt.
        """
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens {start}..{stop} of {self.num_tokens}")
        out = np.empty(stop - start, dtype=np.int64)
        shard, place = bisect_right(self._ends, start), start
        while place < stop:
            end = self._ends[shard]
            first = end - len(self._shards[shard])
            part = self._shards[shard][place - first : min(stop, end) - first]
            out[place - start : place - start + len(part)] = part
            if part.max() >= self.vocab_size:
                raise self._corrupt(self.files.shards[shard], "a token is not in the vocabulary")
            place, shard = place + len(part), shard + 1
        return out

    def verify(self, rank: int = 0, processes: int = 1) -> None:
        """Read the files of the split and the tokenizer, and compare their checksums.

        Args:
            rank: The number of this process, if several share the files.
            processes: How many do.

        Raises:
            UserError: A file has changed since it was written.
        """
        files = (*self.files.shards, self.files.starts, self.description.tokenizer)
        for stored in files[rank::processes]:
            path = self._present(stored)
            with open(path, "rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != stored.sha256:
                    raise self._corrupt(stored, "its checksum differs")

    def _mapped(self, shard: StoredFile) -> NDArray[Any]:
        path = self._present(shard)
        dtype = np.dtype(DTYPES[self.description.dtype])
        if path.stat().st_size != shard.tokens * dtype.itemsize:
            has = f"{path.stat().st_size:,} bytes instead of {shard.tokens * dtype.itemsize:,}"
            raise self._corrupt(shard, f"it has {has}")
        return np.memmap(path, dtype=dtype, mode="r")

    def _starts(self) -> Ints:
        path = self._present(self.files.starts)
        try:
            starts = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise self._corrupt(self.files.starts, str(error)) from None
        if starts.dtype != np.int64 or starts.shape != (self.files.documents,) or starts[0] != 0:
            raise self._corrupt(self.files.starts, "it does not hold where each document starts")
        return starts

    def _present(self, stored: StoredFile) -> Path:
        try:
            return regular(self.folder / stored.name)
        except OSError as error:
            raise unreadable(self.folder / stored.name, error) from None

    def _corrupt(self, stored: StoredFile, reason: str) -> UserError:
        return UserError(f"{self.folder / stored.name} is corrupt: {reason}; make the folder anew")
