"""Words as people write them, read by compiled networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from statetrack.config import unknown
from statetrack.errors import UserError

if TYPE_CHECKING:
    from statetrack.compiler.model import CompiledModel
    from statetrack.compiler.network import CompiledRNN

Words = str | list[str] | tuple[str, ...]
TOKENS = 1 << 20  # read at once


def read_words(net: CompiledRNN | CompiledModel, words: list[str]) -> list[dict[str, Any]]:
    """For each word whether the network accepts it, and the state that it ends in."""
    encoded = [encode(word, net.dfa.alphabet, f"symbol in {word!r}:") for word in words]
    longest = max(1, *map(len, encoded)) if encoded else 1
    states = []
    for at in range(0, len(encoded), max(1, TOKENS // longest)):
        part = encoded[at : at + max(1, TOKENS // longest)]
        tokens = np.zeros((len(part), longest), dtype=np.int64)  # later symbols change nothing
        for row, symbols in zip(tokens, part, strict=True):
            row[: len(symbols)] = symbols
        after = net(torch.from_numpy(tokens)).numpy()
        states += [
            int(row[len(symbols) - 1]) if symbols else net.dfa.start
            for row, symbols in zip(after, part, strict=True)
        ]
    outputs = net.dfa.outputs
    rows: list[dict[str, Any]] = []
    for word, state in zip(words, states, strict=True):
        accepted = bool(net.dfa.accepting[state])
        result = {"word": word, "result": "accept" if accepted else "reject", "state": state}
        rows.append(result if outputs is None else {**result, "output": outputs[state]})
    return rows


def accepts_words(net: CompiledRNN | CompiledModel, words: Words) -> bool | list[bool]:
    """Whether a network accepts a word, or each of several."""
    several = [words] if isinstance(words, str) else list(words)
    for word in several:
        if not isinstance(word, str):
            allowed = "a word, a list of words or a tensor [B, T] of symbols"
            raise UserError(f"give {allowed}; got a list with {word!r}")
    rows = read_words(net, several)
    accepted = [row["result"] == "accept" for row in rows]
    return accepted[0] if isinstance(words, str) else accepted


def encode(word: str, names: Sequence[str], kind: str) -> list[int]:
    """The numbers of a word's symbols, which spaces separate unless each is a single letter.

    Longer names are no obstacle, such as PAD, unless they are made of single letters that are names
    themselves: where there are 1, 2 and 12, the text 21 might be a slip for 12.

    kind: what the names are names of, for the error.
    """
    numbers = {name: i for i, name in enumerate(names)}
    letters = all(len(name) == 1 for name in names)
    apart = any(len(name) > 1 and all(letter in numbers for letter in name) for name in names)
    found = []
    for part in word.split():
        for symbol in [part] if apart or part in numbers else part:
            if symbol not in numbers:
                raise unknown(kind, symbol if letters else part, names)
            found.append(numbers[symbol])
    return found
