"""The tokens on which a language model is evaluated, from data folders or text files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from statetrack.config import at_least
from statetrack.errors import UserError
from statetrack.files import regular, unreadable
from statetrack.lm.data.shards import DESCRIPTION, Ints, TokenData
from statetrack.lm.load import LanguageModel
from statetrack.tasks.rows import ROW_FORMATS

BLOCK = 1 << 20  # characters of a text file that are tokenised at once
CONTENT = ("normalizer", "pre_tokenizer", "model")  # keys of tokenizer.json that decide the tokens


class EvaluationData(NamedTuple):
    """A sequence of tokens."""

    name: str
    num_tokens: int
    read: Callable[[int, int], Ints]  # the tokens start..stop-1
    fingerprint: str  # equal for equal tokens
    byte_ends: Ints | None = None  # of a text file: how many bytes precede the end of each token

    def count_chunks(self, length: int, most: int | None = None) -> int:
        """Return how many chunks of a length there are, each with a token after it to predict.

        Args:
            length: tokens of a chunk.
            most: count no more than so many.

        Raises:
            UserError: there is none, or a number is out of range.
        """
        at_least("max_length", length, 2)
        if most is not None:
            at_least("chunks", most, 1)
        found = (self.num_tokens - 1) // length
        if found < 1:
            raise UserError(
                f"{self.name} has {self.num_tokens:,} tokens; a chunk needs {length + 1:,}: "
                "choose a smaller --max-length or more data"
            )
        return found if most is None else min(most, found)


def open_all(paths: Sequence[Path], language: LanguageModel, needed: int) -> list[EvaluationData]:
    """Open each of `paths` with `open_data`, and give them distinct names."""
    if not paths:
        raise UserError("--data is missing: give data folders of `lm data`, or text files")
    names = distinct_names(paths)
    opened = (open_data(path, language, needed) for path in paths)
    return [data._replace(name=name) for data, name in zip(opened, names, strict=True)]


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Name each path by as few of its last parts as make it unique: a/wide, b/wide.

    Raises:
        UserError: a path is given twice.
    """
    whole = [path.resolve() for path in paths]
    parts = [(path.parent if path.name == "model" else path).parts for path in whole]
    for path, own in zip(paths, parts, strict=True):
        if parts.count(own) > 1:
            raise UserError(f"{path} is given twice")
    names = []
    for own in parts:
        ends = (own[-n:] for n in range(1, len(own)))
        end = next((e for e in ends if sum(p[-len(e) :] == e for p in parts) == 1), own[1:])
        names.append("/".join(end))
    return names


def open_data(path: Path, language: LanguageModel, needed: int) -> EvaluationData:
    """Open a data folder or a text file as tokens of a model.

    Args:
        path: a data folder of `statetrack lm data`, whose validation split is read, or a text
            file, which is tokenised in blocks that end at the end of a line; it begins with BOS if
            the model's tokenizer puts it before a text.
        language: the model.
        needed: stop reading a text file after so many tokens.

    Raises:
        UserError: there is nothing to read, the file has rows and no text, the model has no
            tokenizer, or the data folder was made with another one or differs from it in whether
            documents begin with BOS.
    """
    path = Path(path)
    data = check_path(path)
    tokenizer = language.tokenizer
    if tokenizer is None:
        raise UserError(f"{language.name} has no tokenizer.json: it cannot read text")
    if data is None:
        return _text_file(path, tokenizer, needed)
    check_tokenizer(data, _backend(tokenizer), bos=bool(_bos(tokenizer)), name=language.name)
    if data.vocab_size > language.model.config.vocab_size:
        vocabulary = (
            f"{data.vocab_size:,} tokens, {language.name} {language.model.config.vocab_size:,}"
        )
        raise UserError(f"the vocabulary of {path / DESCRIPTION} has {vocabulary}")
    return EvaluationData(path.name, data.num_tokens, data.read, data.fingerprint)


def check_path(path: Path) -> TokenData | None:
    """Check what `open_data` can check without a model; return the split if it is a data folder.

    Raises:
        UserError: see `open_data`.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist: give a data folder or a text file")
    if path.is_dir():
        return TokenData.open(path, "validation")
    if path.suffix in ROW_FORMATS:
        made = "--tokenizer CHECKPOINT --split validation --validation 1"
        raise UserError(
            f"{path} has rows, which need a data folder: `statetrack lm data --source {path} "
            f"{made} --out DIR`"
        )
    if not next(_blocks(path), ""):
        raise UserError(f"{path} is empty")
    return None


def check_tokenizer(data: TokenData, tokenizer: Tokenizer, *, bos: bool, name: str) -> None:
    """Raise a UserError if a model's tokenizer is not that of a data folder.

    Args:
        data: the data folder.
        tokenizer: the model's.
        bos: whether it puts BOS before a text.
        name: of the model.
    """
    path = data.folder
    try:
        made_with = Tokenizer.from_str(data.tokenizer_file.read_text())
    except Exception as error:  # tokenizers raises no other type
        raise UserError(f"cannot read {data.tokenizer_file}: {error}") from None
    if _identity(made_with) != _identity(tokenizer):
        raise UserError(
            f"{path} was made with another tokenizer than that of {name}: make a data folder with "
            "the model's tokenizer.json, or give a text file"
        )
    if data.description.bos and not bos:
        raise UserError(
            f"the documents of {path} begin with BOS, but the tokenizer of {name} does not put it "
            "before a text: make the data folder without --bos"
        )
    if bos and not data.description.bos:
        raise UserError(
            f"the documents of {path} do not begin with BOS, which the tokenizer of {name} puts "
            "before a text: make the data folder with --bos"
        )


def _text_file(path: Path, tokenizer: PreTrainedTokenizerBase, needed: int) -> EvaluationData:
    backend = _backend(tokenizer)
    tokens = [np.array(_bos(tokenizer), np.int64)]
    ends = [np.zeros(len(tokens[0]), np.int64)]
    size = 0  # bytes of the blocks so far
    for block in _blocks(path):
        encoded = backend.encode(block, add_special_tokens=False)
        tokens.append(np.array(encoded.ids, np.int64))
        sizes = _byte_ends(block)
        ends.append(size + sizes[[end for _, end in encoded.offsets]])
        size += int(sizes[-1])
        if sum(map(len, tokens)) >= needed:
            break
    if not any(map(len, tokens[1:])):
        raise UserError(f"{path} has no tokens: the tokenizer gives none for its text")
    found = np.concatenate(tokens)
    fingerprint = f"{path.resolve()} from {tokens[0]} in {_identity(backend)}"
    return EvaluationData(
        path.stem, len(found), lambda a, b: found[a:b], fingerprint, np.concatenate(ends)
    )


def _byte_ends(text: str) -> Ints:
    """Return [len(text) + 1] the number of bytes in UTF-8 of the first n characters."""
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    sizes = 1 + sum((codes >= first).astype(np.int64) for first in (0x80, 0x800, 0x10000))
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def _blocks(path: Path) -> Iterator[str]:
    """Read a text file in blocks of whole lines."""
    try:
        with regular(path).open(encoding="utf-8") as file:
            while block := file.read(BLOCK):
                yield block + file.readline()
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error, " as text in UTF-8") from None


def _bos(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return BOS if the tokenizer puts it before a text, else nothing."""
    first: list[int] = tokenizer("").input_ids[:1]
    return first if first == [tokenizer.bos_token_id] else []


def _backend(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    backend: Tokenizer = tokenizer.backend_tokenizer
    return backend


def _identity(tokenizer: Tokenizer) -> str:
    """Return everything by which a tokenizer turns text into tokens, as JSON."""
    parts: dict[str, Any] = json.loads(tokenizer.to_str())
    kept = {name: parts[name] for name in CONTENT}
    return json.dumps([kept, sorted(tokenizer.get_vocab().items())], sort_keys=True)
