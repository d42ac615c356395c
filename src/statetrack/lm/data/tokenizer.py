"""Tokenizers: read from a folder or the Hugging Face hub, or trained here."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from statetrack.errors import UserError
from statetrack.files import read_json, unreadable
from statetrack.lm.data.config import SPECIAL_TOKENS
from statetrack.lm.data.shards import TOKENIZER, TOKENIZER_SETTINGS

# names that are tried if no tokenizer_config.json beside a tokenizer.json mentions the token
EOS_NAMES = (SPECIAL_TOKENS[1], "<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[EOS]")
BOS_NAMES = (SPECIAL_TOKENS[0], "<|begin_of_text|>", "<s>", "<bos>", "[BOS]")


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer and the tokens that end a document and may stand before it."""

    tokenizer: tokenizers.Tokenizer
    eos: int
    bos_id: int | None

    @property
    def vocab_size(self) -> int:
        """One more than the largest token."""
        return 1 + max(self.tokenizer.get_vocab(with_added_tokens=True).values())

    def to_json(self, *, bos: bool = False) -> str:
        """Return the contents of `tokenizer.json`.

        With `bos` it puts BOS before every text; any other post-processor is removed.
        """
        made = tokenizers.Tokenizer.from_str(self.tokenizer.to_str())
        made.post_processor = None
        if bos and self.bos_id is not None:
            name = made.id_to_token(self.bos_id)
            made.post_processor = processors.TemplateProcessing(
                single=[name, "$A"], pair=[name, "$A", "$B"], special_tokens=[(name, self.bos_id)]
            )
        return str(made.to_str(pretty=True))

    def settings(self, *, bos: bool = False) -> str:
        """Return the contents of `tokenizer_config.json`; with `bos` it names BOS."""
        name = self.tokenizer.id_to_token
        bos_name = name(self.bos_id) if bos and self.bos_id is not None else None
        return settings_json(name(self.eos), bos_name, plain=True)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text, without BOS and EOS.

        The name of a special token in a text is read as any other characters.
        """
        encoded = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [one.ids for one in encoded]


def settings_json(eos: str | None, bos: str | None, *, plain: bool) -> str:
    """Return the contents of `tokenizer_config.json`, by which transformers finds EOS and BOS.

    Args:
        eos: the name of EOS, which is also the padding.
        bos: the name of BOS, if texts begin with it.
        plain: whether the names of special tokens in a text are plain text, as in `encode`.
    """
    named = {"eos_token": eos, "bos_token": bos, "pad_token": eos}
    kept = {key: name for key, name in named.items() if name is not None}
    made = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    split = {"split_special_tokens": True} if plain else {}
    return json.dumps({**made, **split, **kept}, indent=2) + "\n"


def load_tokenizer(name: str) -> TextTokenizer:
    """Load a tokenizer.

    Args:
        name: A `tokenizer.json`, a folder that has one, such as that of a run of `lm train`, or a
            name on the Hugging Face hub. EOS and BOS are those of the `tokenizer_config.json`
            beside it; what it does not mention is looked for under the usual names.

    Raises:
        UserError: There is no such tokenizer, it cannot be read, or it has no EOS.
    """
    path = Path(name)
    if path.is_dir():
        own, of_run = path / TOKENIZER, path / "model" / TOKENIZER
        path = of_run if of_run.exists() and not own.exists() else own
    elif not path.exists():
        path = _download(name)
    try:
        read = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # `tokenizers` raises no other
        raise unreadable(path, error, " as a tokenizer") from None
    read.no_truncation()
    read.no_padding()
    settings = path.parent / TOKENIZER_SETTINGS
    named = read_json(settings) if settings.exists() else None
    eos = _special(read, named, "eos_token", EOS_NAMES)
    if eos is None:
        raise UserError(f"{path} has no EOS token, which ends a document: name it in {settings}")
    return _plain_text(TextTokenizer(read, eos, _special(read, named, "bos_token", BOS_NAMES)))


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> TextTokenizer:
    """Train a byte-level BPE; the same texts give the same tokenizer.

    Raises:
        UserError: The texts are too few for so many tokens.
    """
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    if bpe.get_vocab_size() < vocab_size:
        has = f"{bpe.get_vocab_size()} of {vocab_size} tokens"
        raise UserError(f"the train documents give only {has}; choose a smaller --vocab-size")
    bos, eos = range(len(SPECIAL_TOKENS))  # the trainer puts them first
    return _plain_text(TextTokenizer(bpe, eos, bos))


def _plain_text(tokenizer: TextTokenizer) -> TextTokenizer:
    """Let the names of special tokens in a text be encoded as plain text."""
    tokenizer.tokenizer.encode_special_tokens = True
    return tokenizer


def _special(
    tokenizer: tokenizers.Tokenizer, settings: object, key: str, usual: Sequence[str]
) -> int | None:
    """Return the id of the token that the settings name, or else of the first usual name."""
    names = list(usual)
    if isinstance(settings, dict) and key in settings:
        named = settings[key]
        names = [named["content"] if isinstance(named, dict) else named] if named else []
    known = (tokenizer.token_to_id(name) for name in names)
    return next((token for token in known if token is not None), None)


def _download(name: str) -> Path:
    """Return the local copy of a tokenizer of the hub, with its settings beside it."""
    from transformers.utils import cached_file  # slow to load

    # huggingface_hub logs a warning for each attempt to connect
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        path = Path(cached_file(name, TOKENIZER))
        cached_file(name, TOKENIZER_SETTINGS)
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        places = "is not a file or folder, and the Hugging Face hub does not provide it"
        raise UserError(f"the tokenizer {name} {places}: {reason}") from None
    return path
