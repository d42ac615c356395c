"""A user's own sequences with targets, from a JSONL or Parquet file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from statetrack.config import one_of, option
from statetrack.errors import UserError
from statetrack.files import regular, unreadable
from statetrack.tasks.base import IGNORE, SPLITS, Ints, Task, register
from statetrack.tasks.rows import ROW_FORMATS, file_rows

PREFIX = "dataset:"
KEYS = ("input", "target", "length", "split")  # `length` is written by `tasks export`, not read
HELD_OUT = {"test": (0.0, 0.1), "validation": (0.1, 0.2)}  # shares of sequences without a split
MAX_ID = 1_000_000
KINDS = {int: f"a whole number in 0..{MAX_ID - 1}", str: "a text"}


class Sequences(NamedTuple):
    """The sequences of a file, shortest first."""

    vocab: tuple[str, ...]  # PAD last
    tokens: list[Ints]
    targets: list[Ints]
    splits: Ints  # [sequences], as in SPLITS
    checksum: str


@register
@dataclass(frozen=True)
class Dataset(Task):
    """The sequences of a file: `dataset:FILE.jsonl` or `dataset:FILE.parquet`.

    A row has `input` and `target`, two lists of the same length: ids, or the names of tokens. A
    target of -1 or null is not asked. `split`, if the rows have it, is train, validation or test;
    otherwise a tenth of the sequences is for validation and a tenth for test, by a hash of the
    input. If the rows name no validation sequences, a tenth of train is for validation.

    The length of a sequence is its number of tokens. Those between the least and the greatest
    length asked for are equally likely; an evaluation uses each at most once.
    """

    family = "data set"
    examples = ()  # there is no file that every machine has
    about = "the targets in a file"
    metric = "token"

    checksum: str = option("", "SHA-256 that the file must have; any if absent")
    _split: str = field(default="", init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name.removeprefix(PREFIX):
            raise UserError(f"a data set needs a file: {PREFIX}FILE.jsonl or {PREFIX}FILE.parquet")
        if self.checksum not in ("", self.sequences.checksum):
            raise UserError(f"{self.file} has changed: its SHA-256 is not {self.checksum}")
        object.__setattr__(self, "checksum", self.sequences.checksum)

    @classmethod
    def matches(cls, name: str) -> bool:
        return name.startswith(PREFIX)

    @property
    def file(self) -> Path:
        """The file that holds the sequences."""
        return Path(self.name.removeprefix(PREFIX))

    @cached_property
    def sequences(self) -> Sequences:
        """The contents of the file."""
        try:
            facts = regular(self.file).stat()
        except OSError as error:
            raise unreadable(self.file, error) from None
        return _read(self.file, facts.st_mtime_ns, facts.st_size)

    @property
    def vocab(self) -> tuple[str, ...]:
        return self.sequences.vocab

    @property
    def pad(self) -> int:
        return len(self.vocab) - 1

    @cached_property
    def chance(self) -> float:
        return 1 / len(_answers(self.sequences.targets))

    @property
    def content(self) -> int:
        return hash(self.checksum)

    def for_split(self, split: str) -> Task:
        one_of("split", split, SPLITS)
        own = replace(self)
        object.__setattr__(own, "_split", split)
        if not len(own.given_lengths):
            raise UserError(f"{self.file} has no {split} sequences")
        return own

    @cached_property
    def _own(self) -> Ints:
        """The sequences of this split, by number; shortest first."""
        splits = self.sequences.splits
        chosen = splits == SPLITS[self._split] if self._split else np.ones_like(splits, dtype=bool)
        return np.flatnonzero(chosen)

    @cached_property
    def given_lengths(self) -> Ints:
        return np.array([len(self.sequences.tokens[i]) for i in self._own], dtype=np.int64)

    def sample_tokens(self, rng: np.random.Generator, lengths: Ints, size: int) -> Ints:
        tokens = np.full((len(lengths), size), self.pad)
        for length in np.unique(lengths):
            asked = np.flatnonzero(lengths == length)
            known = self._own[self.given_lengths == length]
            if not len(known):
                raise UserError(f"{self.file} has no sequence of length {length}")
            chosen = rng.choice(known, len(asked), replace=len(asked) > len(known))
            tokens[asked, :length] = [self.sequences.tokens[i] for i in chosen]
        return tokens

    @cached_property
    def _solutions(self) -> dict[bytes, Ints]:
        return {
            tokens.tobytes(): targets
            for tokens, targets in zip(self.sequences.tokens, self.sequences.targets, strict=True)
        }

    def targets(self, tokens: Ints) -> Ints:
        out = np.full(tokens.shape, IGNORE)
        sizes = (tokens != self.pad).sum(1)
        for row, size in enumerate(sizes):
            found = self._solutions.get(tokens[row, :size].tobytes())
            if found is None:
                raise UserError(f"a sequence is none of {self.file}, which alone has targets")
            out[row, :size] = found
        return out


@lru_cache(maxsize=4)
def _read(path: Path, _changed: int, _size: int) -> Sequences:
    """Read a file; when it changed, and its size, are keys of the cache."""
    if path.suffix not in ROW_FORMATS:
        raise UserError(f"{path} must end in one of {', '.join(ROW_FORMATS)}")
    with open(path, "rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    inputs: list[list[Any]] = []
    targets: list[list[Any]] = []
    splits: list[str | None] = []
    lines: dict[str, int] = {}  # where each input stands
    kind: type | None = None
    for number, row in file_rows(path):
        where = f"{path}, line {number}"
        _check_keys(row, where)
        kind = kind or type(next(iter(row["input"]), None))
        tokens = _tokens(row, "input", kind, where)
        asked = [None if t == IGNORE else t for t in _tokens(row, "target", kind, where)]
        if len(asked) != len(tokens):
            raise UserError(f"{where}: 'target' has {len(asked)} values, 'input' {len(tokens)}")
        if all(t is None for t in asked):
            raise UserError(f"{where}: 'target' asks for nothing: all its values are null or -1")
        first = lines.setdefault(json.dumps(tokens), len(inputs))
        if first < len(inputs) and targets[first] != asked:
            raise UserError(f"{where}: 'target' differs from that of the same input before")
        inputs.append(tokens)
        targets.append(asked)
        splits.append(row.get("split"))
    if not inputs:
        raise UserError(f"{path} has no sequences")
    names: list[Any]
    if kind is str:
        names = sorted({t for row in (*inputs, *targets) for t in row if t is not None})
        if "PAD" in names:
            raise UserError(f"{path}: a token must not be called 'PAD', like the padding")
    else:
        names = [*range(1 + max(t for row in (*inputs, *targets) for t in row if t is not None))]
    ids = {name: i for i, name in enumerate(names)} | {None: IGNORE}
    order = sorted(range(len(inputs)), key=lambda i: len(inputs[i]))
    coded = [[np.array([ids[t] for t in rows[i]]) for i in order] for rows in (inputs, targets)]
    if len(_answers(coded[1])) < 2:
        raise UserError(f"{path} has one answer only: nothing to learn")
    own = _splits(inputs, splits, path)[order]
    return Sequences((*map(str, names), "PAD"), coded[0], coded[1], own, checksum)


def _check_keys(row: Any, where: str) -> None:
    if not isinstance(row, dict):
        raise UserError(f"{where} must be an object with the keys 'input' and 'target'")
    for key in row:
        if key not in KEYS:
            raise UserError(f"{where}: unknown key {key!r}; known: {', '.join(KEYS)}")
    for key in ("input", "target"):
        if key not in row:
            raise UserError(f"{where} lacks the key {key!r}")
        if not isinstance(row[key], list) or not row[key]:
            raise UserError(f"{where}: {key!r} must be a list of tokens, at least one")
    if row.get("split") is not None:
        one_of(f"{where}: 'split'", row["split"], SPLITS)


def _tokens(row: dict[str, Any], key: str, kind: type, where: str) -> list[Any]:
    """Return a list of tokens, all of one kind; a target may be None or IGNORE."""
    blank = (None, IGNORE) if key == "target" else ()
    kind = kind if kind in KINDS else int
    for i, token in enumerate(row[key]):
        fits = type(token) is kind and (kind is str or token in range(MAX_ID))
        if not fits and token not in blank:
            raise UserError(f"{where}: {key!r}[{i}] must be {KINDS[kind]}; got {token!r}")
    return list(row[key])


def _splits(inputs: list[list[Any]], named: list[str | None], path: Path) -> Ints:
    """Return the split of each sequence, as in SPLITS."""
    found = set(named)
    if None in found and len(found) > 1:
        raise UserError(f"{path}: either all rows have the key 'split' or none")
    divided, held_out = None, HELD_OUT
    if None not in found:
        divided = "train"
        held_out = {k: v for k, v in HELD_OUT.items() if k == "validation" and k not in found}
    out = []
    for tokens, split in zip(inputs, named, strict=True):
        digest = hashlib.blake2b(json.dumps(tokens).encode(), digest_size=8).digest()
        share = int.from_bytes(digest, "big") / 2**64
        chosen = [k for k, (low, high) in held_out.items() if low <= share < high]
        out.append(SPLITS[chosen[0] if chosen and split == divided else split or "train"])
    return np.array(out)


def _answers(targets: Sequence[Ints]) -> Ints:
    """Return the distinct targets that are asked for."""
    values = np.unique(np.concatenate(targets))
    return values[values != IGNORE]
