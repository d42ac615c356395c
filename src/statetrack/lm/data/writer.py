"""Write a data folder: documents are appended to shards, `data.json` is written at the end."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from statetrack.errors import UserError
from statetrack.files import PREFIX, check_new, sole_writer, write_atomic, write_json
from statetrack.lm.data.shards import (
    DESCRIPTION,
    DTYPES,
    SPLITS,
    TOKENIZER,
    TOKENIZER_SETTINGS,
    DataDescription,
    SplitFiles,
    StoredFile,
)

SHARD_TOKENS = 2**27
PARTS = f"{PREFIX}parts"  # the folder of files that are being written


def write_tokens(
    folder: Path,
    documents: Mapping[str, Iterable[Sequence[int]]],
    *,
    vocab_size: int,
    eos: int,
    bos_id: int | None = None,
    bos: bool = False,
    tokenizer: str = "",
    options: dict[str, Any] | None = None,
    shard_tokens: int = SHARD_TOKENS,
) -> DataDescription:
    """Write documents of tokens to a new data folder.

    Args:
        folder: The data folder; it must be new or empty.
        documents: The documents of "train" and "validation", without BOS and EOS.
        vocab_size: How many tokens there are.
        eos: The token that ends each document.
        bos_id: The token BOS, if there is one.
        bos: Whether to put BOS before each document.
        tokenizer: The contents of `tokenizer.json`.
        options: How the documents were made, for `data.json`.
        shard_tokens: The greatest number of tokens in a file.

    Returns:
        The content of `data.json`.
    """
    with data_writer(folder, shard_tokens) as writer:
        writer.start(vocab_size=vocab_size, eos=eos, bos_id=bos_id, bos=bos, tokenizer=tokenizer)
        for split, given in documents.items():
            writer.add(split, given)
        return writer.finish(options or {})


@contextmanager
def data_writer(folder: Path, shard_tokens: int = SHARD_TOKENS) -> Iterator[DataWriter]:
    """Lock a new folder and yield the writer that fills it.

    The files appear in the folder with `DataWriter.finish`; without it nothing is left. Files that
    a killed process left are removed or, if they were complete, moved to their place.

    Raises:
        UserError: The folder is not empty, or another process is writing to it.
    """
    with sole_writer(folder):
        _move(folder)
        check_new(folder)
        parts = folder / PARTS
        shutil.rmtree(parts, ignore_errors=True)
        parts.mkdir()
        writer = DataWriter(folder, shard_tokens)
        try:
            yield writer
        finally:
            writer.close()
            shutil.rmtree(parts)


def complete(folder: Path) -> bool:
    """Whether a folder is a data folder; if its writer was killed while moving files, finish it."""
    if (folder / PARTS / DESCRIPTION).exists():
        with sole_writer(folder):
            _move(folder)
    return (folder / DESCRIPTION).exists()


def _move(folder: Path) -> None:
    """Move finished files to their place, `data.json` last."""
    parts = folder / PARTS
    if (parts / DESCRIPTION).exists():
        for file in sorted(parts.iterdir(), key=lambda file: file.name == DESCRIPTION):
            os.replace(file, folder / file.name)


class DataWriter:
    """Writes the files of a data folder: `start`, `add` as often as needed, `finish`."""

    def __init__(self, folder: Path, shard_tokens: int) -> None:
        self.folder, self.shard_tokens = folder, shard_tokens
        self._splits: dict[str, _SplitWriter] = {}
        self._about: dict[str, Any] = {}

    def start(
        self,
        *,
        vocab_size: int,
        eos: int,
        bos_id: int | None,
        bos: bool,
        tokenizer: str,
        settings: str | None = None,
    ) -> None:
        """Store the tokenizer and the tokens that begin and end a document.

        Args:
            vocab_size: how many tokens there are.
            eos: the token that ends each document.
            bos_id: the token BOS, if there is one.
            bos: whether to put BOS before each document.
            tokenizer: the contents of `tokenizer.json`.
            settings: the contents of `tokenizer_config.json`, if there should be one.

        Raises:
            UserError: there is no BOS token, but `bos` asks for it.
        """
        if bos and bos_id is None:
            raise UserError("the tokenizer has no BOS token to put before documents")
        dtype = "uint16" if vocab_size <= 2**16 else "uint32"
        write_atomic(self.folder / PARTS / TOKENIZER, tokenizer)
        if settings is not None:
            write_atomic(self.folder / PARTS / TOKENIZER_SETTINGS, settings)
        self._about = {
            "vocab_size": vocab_size,
            "dtype": dtype,
            "eos": eos,
            "bos": bos,
            "bos_id": bos_id,
            "tokenizer": StoredFile(TOKENIZER, hashlib.sha256(tokenizer.encode()).hexdigest()),
        }
        before = [bos_id] if bos and bos_id is not None else []
        for split in SPLITS:
            stem = self.folder / PARTS / split
            self._splits[split] = _SplitWriter(
                stem, np.dtype(DTYPES[dtype]), vocab_size, before, eos, self.shard_tokens
            )

    def add(self, split: str, documents: Iterable[Sequence[int]]) -> int:
        """Append documents to a split; returns the number of its tokens so far."""
        return self._splits[split].add(documents)

    def finish(self, options: dict[str, Any]) -> DataDescription:
        """Close the files, write `data.json` and move all to the data folder."""
        splits: dict[str, Any] = {name: split.finish() for name, split in self._splits.items()}
        description = DataDescription(**self._about, **splits, options=options)
        write_json(self.folder / PARTS / DESCRIPTION, description.to_json())
        _move(self.folder)
        return description

    def close(self) -> None:
        """Close files that are still open."""
        for split in self._splits.values():
            split.close()


class _SplitWriter:
    """Cuts the tokens of a split into shards, and notes where documents start."""

    def __init__(
        self,
        stem: Path,
        dtype: np.dtype[Any],
        vocab_size: int,
        before: list[int],
        eos: int,
        shard_tokens: int,
    ) -> None:
        self.stem, self.dtype, self.vocab_size = stem, dtype, vocab_size
        self.before, self.eos, self.shard_tokens = before, eos, shard_tokens
        self.tokens = self.documents = 0
        self.shards: list[StoredFile] = []
        self.shard: _HashedFile | None = None
        # a large set has too many for memory; an .npy file begins with their number, so they are
        # written to another file first
        self.starts = _HashedFile(stem.with_name(f"{stem.name}-documents.raw"))

    def add(self, documents: Iterable[Sequence[int]]) -> int:
        flat: list[int] = []
        starts = []
        for document in documents:
            starts.append(self.tokens + len(flat))
            flat += self.before
            flat += document
            flat.append(self.eos)
        tokens = np.array(flat, dtype=np.int64)
        if tokens.size and not (tokens.min() >= 0 and tokens.max() < self.vocab_size):
            raise UserError(f"token ids must lie in 0..{self.vocab_size - 1}; got {tokens.max()}")
        self.starts.write(np.array(starts, dtype="<i8"))
        self.documents += len(starts)
        self._append(tokens.astype(self.dtype))
        return self.tokens

    def _append(self, tokens: NDArray[Any]) -> None:
        while tokens.size:
            if self.shard is None:
                name = f"{self.stem.name}-{len(self.shards):05}.bin"
                self.shard = _HashedFile(self.stem.with_name(name))
            free = self.shard_tokens - self.tokens % self.shard_tokens
            part, tokens = tokens[:free], tokens[free:]
            self.shard.write(part)
            self.tokens += len(part)
            if len(part) == free:
                self._end_shard()

    def _end_shard(self) -> None:
        if self.shard is not None:
            count = self.shard.size // self.dtype.itemsize
            self.shards.append(StoredFile(self.shard.path.name, self.shard.end(), count))
            self.shard = None

    def finish(self) -> SplitFiles:
        self._end_shard()
        self.starts.end()
        path = self.stem.with_name(f"{self.stem.name}-documents.npy")
        with open(self.starts.path, "rb") as raw:
            npy = _HashedFile(path)
            header = {"descr": "<i8", "fortran_order": False, "shape": (self.documents,)}
            np.lib.format.write_array_header_1_0(npy, header)
            while block := raw.read(1 << 20):
                npy.write(block)
        self.starts.path.unlink()
        stored = StoredFile(path.name, npy.end())
        return SplitFiles(self.tokens, self.documents, tuple(self.shards), stored)

    def close(self) -> None:
        for file in (self.starts, self.shard):
            if file is not None:
                file.file.close()


class _HashedFile:
    """A file that is written from its start to its end, with its checksum."""

    def __init__(self, path: Path) -> None:
        self.path, self.size, self.sha256 = path, 0, hashlib.sha256()
        self.file: IO[bytes] = open(path, "xb")  # noqa: SIM115 (open until the shard is full)

    def write(self, data: bytes | NDArray[Any]) -> None:
        block = data if isinstance(data, bytes) else data.tobytes()
        self.file.write(block)
        self.sha256.update(block)
        self.size += len(block)

    def end(self) -> str:
        """Flush the file to the disk and close it; return its checksum."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        return self.sha256.hexdigest()
