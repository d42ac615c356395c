"""The options of `statetrack lm data`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from statetrack.config import at_least, check_types, option, within
from statetrack.errors import UserError
from statetrack.lm.data.templates import HUB_SETS, Template

SPECIAL_TOKENS = ("<|bos|>", "<|eos|>")  # of tokenizers that are trained here
SMALLEST_VOCAB = 256 + len(SPECIAL_TOKENS)  # all bytes
LARGEST_VOCAB = 2**20


@dataclass(frozen=True)
class DataConfig:
    """Sources of text, how they are split, and the tokenizer."""

    source: tuple[str, ...] = option(
        ("stdlib",),
        "stdlib (of this Python), files (text, .jsonl, .parquet), folders, "
        f"{', '.join(HUB_SETS)}, hf:NAME or hf:NAME:CONFIG",
    )
    field: str = option("text", "the key of JSONL, Parquet and Hugging Face rows with the text")
    template: str | None = option(
        None, "a text with {KEY}s in place of --field, such as 'Q: {question} A: {answer}'"
    )
    suffix: tuple[str, ...] = option((".py",), "the endings of the files to read in folders")
    split: Literal["both", "train", "validation"] = option("both", "which splits to write")
    validation: float | None = option(
        None,
        "share of documents, or the last share of a text file, for validation; 0.05 if absent, of "
        "Hugging Face sets 0.0005",
    )
    seed: int = option(0, "seed of the split", low=0, high=2**32 - 1)
    max_documents: int | None = option(
        None, "read at most so many documents of each source; of each split, if it has splits"
    )
    tokenizer: str | None = option(
        None, "a tokenizer.json, its folder or a name on the hub; a BPE is trained if absent"
    )
    vocab_size: int = option(
        4096, "tokens of a BPE that is trained", low=SMALLEST_VOCAB, high=LARGEST_VOCAB
    )
    bos: bool = option(False, "put BOS before each document; EOS always follows it")

    def __post_init__(self) -> None:
        check_types(self)
        if not self.source:
            raise UserError("--source needs a file, a folder or a name")
        if self.validation is not None:
            within("validation", self.validation, 0, 1)
        if self.max_documents is not None:
            at_least("max_documents", self.max_documents, 1)
        if self.template is not None:
            Template(self.template)
        if self.tokenizer is None and (self.split == "validation" or self.validation == 1):
            raise UserError("without train documents no tokenizer can be trained: give --tokenizer")
