"""`Compiled`, the base class of compiled networks (tables) and compiled models (weights)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from statetrack.automata import DFA
from statetrack.compiler.limits import MAX_PROOF_STATES
from statetrack.compiler.proof import Mistake, Proof
from statetrack.compiler.text_to_dfa import Language
from statetrack.compiler.wording import abridge, counted, size_of
from statetrack.config import unknown
from statetrack.devices import on_cpu
from statetrack.errors import UserError, check_type
from statetrack.files import free_folder, plain_name, whole_folder, write_json

TOKENS_AT_ONCE = 1 << 20  # of the words that `read_words` reads
NORM_SLACK = 1e-12  # by which a computed norm may exceed 1
FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SCHEMA = 1
LANGUAGE_FILE = "language.json"


class Source(NamedTuple):
    """The language and the options that `compile` was given."""

    language: Language
    target: str
    method: str
    delay: str
    tokens_per_element: int = 1


class Checked(NamedTuple):
    """The result of checking every step: the certificate, the evidence, the first mistake."""

    certificate: dict[str, Any]
    formats: list[str]  # the number types in which every step was checked
    evidence: str
    mistake: Mistake | None


class Compiled(ABC):
    """A network that computes the state of a DFA after each symbol.

    Subclasses say how they read tokens, what is checked in a proof, and how they are written.
    """

    dfa: DFA
    title: str  # what it is, in words
    source: Source | None = None  # None if `compile` did not make it from a language
    settings: str = ""  # the target and the method, if `compile` made it
    alternative: str = ""  # a target that would need fewer layers, in words
    forms: tuple[object, ...] = ()  # the cascade, if there is one, and the stages

    @abstractmethod
    def __call__(self, tokens: Tensor) -> Tensor:
        """[B, T] symbols, by number -> [B, T] the states of the DFA after each."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device of the weights or tables."""

    @abstractmethod
    def certificate(self) -> dict[str, Any]:
        """Compute the facts from which it follows that no rounding can occur in chunks."""

    @abstractmethod
    def summary(self) -> str:
        """Say in one line what it consists of."""

    @abstractmethod
    def _layers(self) -> list[str]:
        """Describe every layer in one line."""

    @abstractmethod
    def _check(self, max_states: int) -> Checked:
        """Check everything that a proof needs."""

    @abstractmethod
    def _write(self, folder: Path, language: Language) -> None:
        """Write the weights or tables; raise a UserError if they could not be read again."""

    @overload
    def accepts(self, given: Tensor) -> Tensor: ...
    @overload
    def accepts(self, given: str) -> bool: ...
    @overload
    def accepts(self, given: list[str] | tuple[str, ...]) -> list[bool]: ...
    def accepts(self, given: Tensor | str | Sequence[str]) -> Tensor | bool | list[bool]:
        """Say whether words are in the language.

        Args:
            given: [B, T] symbols, by number; or a word such as "abab"; or a list of words.

        Returns:
            [B, T], for the word up to each symbol; or for the word; or for each word.
        """
        if isinstance(given, Tensor) or not isinstance(given, str | list | tuple):
            states = self(given)  # type: ignore[arg-type]
            return torch.tensor(self.dfa.accepting, device=states.device)[states]
        words = [given] if isinstance(given, str) else list(given)
        for word in words:
            if not isinstance(word, str):
                allowed = "a word, a list of words or a tensor [B, T] of symbols"
                raise UserError(f"give {allowed}; got a list with {word!r}")
        accepted = [row["result"] == "accept" for row in self.read_words(words)]
        return accepted[0] if isinstance(given, str) else accepted

    def read_words(self, words: list[str]) -> list[dict[str, Any]]:
        """Say for each word whether it is accepted, and in which state it ends."""
        encoded = [encode(word, self.dfa.alphabet, f"symbol in {word!r}:") for word in words]
        longest = max(1, *map(len, encoded)) if encoded else 1
        rows = max(1, TOKENS_AT_ONCE // longest)
        states = []
        for at in range(0, len(encoded), rows):
            part = encoded[at : at + rows]
            tokens = np.zeros((len(part), longest), dtype=np.int64)  # later symbols change nothing
            for row, symbols in zip(tokens, part, strict=True):
                row[: len(symbols)] = symbols
            after = self(torch.from_numpy(tokens).to(self.device)).cpu().numpy()
            states += [
                int(row[len(symbols) - 1]) if symbols else self.dfa.start
                for row, symbols in zip(after, part, strict=True)
            ]
        results: list[dict[str, Any]] = []
        for word, state in zip(words, states, strict=True):
            verdict = "accept" if self.dfa.accepting[state] else "reject"
            results.append({"word": word, "result": verdict, "state": state})
            if self.dfa.outputs is not None:
                results[-1]["output"] = self.dfa.outputs[state]
        return results

    @on_cpu()
    def prove(self, max_states: int = MAX_PROOF_STATES) -> Proof:
        """Prove that it computes the DFA for words of any length, or find a word that refutes it.

        Every step, from every state on every symbol, is taken by the real ops, in float32 and
        bfloat16 (where that holds all numbers); the results must be right bit for bit. That chunks
        of tokens are as exact as single ones follows from the certificate; without it the claim is
        "token by token" only. The ops run where the network is: a proof on one device says nothing
        of another one.

        Args:
            max_states: the most states of the network that the proof may visit.

        Raises:
            UserError: more states than that can be reached, or the network rounds by design.
        """
        checked = self._check(max_states)
        how = "token by token" + " and in chunks" * bool(checked.certificate["exact"])
        states, formats = counted(self.dfa.states, "state"), " and ".join(checked.formats)
        claim = f"{self.title} computes {self.name} ({states}), {how}, in {formats}"
        claim += "" if self.device.type == "cpu" else f" on {self.device.type}"
        word, reason = checked.mistake or (None, "")
        return Proof(claim, checked.evidence, word, reason, checked.certificate)

    @property
    def name(self) -> str:
        """The language's name, if it has one."""
        if self.source is None:
            return "the DFA"
        tokens = self.source.tokens_per_element
        each = f" with {tokens} tokens per element" if tokens > 1 else ""
        return self.source.language.name + each

    def report(self, proof: Proof | None = None, *, verbose: bool = False) -> str:
        """Say whether it is exact, and what it consists of.

        Args:
            proof: the result of `prove`, if it was called.
            verbose: add the settings and intermediate forms of the compiler, and every layer.
        """
        title = self.title[:1].upper() + self.title[1:]
        kind = "" if self.source is None else f" ({self.source.language.kind})"
        lines = [
            f"{self._unproved() if proof is None else proof}.",
            f"{title} for a DFA with {size_of(self.dfa)}{kind}: {self.summary()}.",
        ]
        lines += [self.alternative] if self.alternative else []
        if verbose:
            lines += [f"Settings: {self.settings}."] if self.settings else []
            lines += self._certified()
            lines += [*abridge([*map(str, self.forms)], "stage")]
            lines += abridge(self._layers(), "layer")
        return "\n".join(lines)

    def _certified(self) -> list[str]:
        """Why it is exact, if that is known without a proof."""
        return []

    def _unproved(self) -> str:
        """The verdict without a proof."""
        return f"Built to compute {self.name} exactly at any length; prove() proves it"

    def save(self, folder: Path | str | None = None) -> Path:
        """Write it to a new folder; language.json, last, says how it was compiled.

        Args:
            folder: by default the first of runs/compiled-NAME-1, -2, ... that is free.

        Returns:
            The folder; `load` and `statetrack run` read it.
        """
        if self.source is None:
            raise UserError(f"{self.title} was not compiled from a language: it cannot be saved")
        language = self.source.language
        if folder is None:
            name = plain_name(language.text).strip("_") or "language"
            tokens = self.source.tokens_per_element
            name += f"-{tokens}-tokens" if tokens > 1 else ""
            folder = free_folder(Path("runs"), f"compiled-{name}")
        folder = Path(folder)
        with whole_folder(folder) as made:
            self._write(made, language)
            about = {
                "schema": SCHEMA,
                "language": language.text,
                "kind": language.kind,
                "group": None if isinstance(language.value, DFA) else language.text,
                # of blocks it has millions of transitions, and the group tells them all
                "dfa": self.dfa.to_json() if self.source.tokens_per_element == 1 else None,
                **{name: getattr(self.source, name) for name in Source._fields[1:]},
            }
            write_json(made / LANGUAGE_FILE, about)
        return folder


def as_tokens(tokens: Tensor, symbols: int) -> Tensor:
    """Return a batch of symbols, by number, as int64; raise a UserError for anything else."""
    check_type("tokens", tokens, Tensor, "a tensor [B, T]")
    fraction = tokens.is_floating_point() or tokens.is_complex()
    if tokens.dim() != 2 or 0 in tokens.shape or fraction:
        raise UserError(
            f"tokens must be whole numbers [B, T], at least one; got {tokens.dtype} of shape "
            f"{list(tokens.shape)}"
        )
    tokens = tokens.long()
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= symbols:
        raise UserError(f"tokens must be symbols from 0 to {symbols - 1}; got {low} to {high}")
    return tokens


def encode(word: str, names: Sequence[str], kind: str) -> list[int]:
    """Return the numbers of a word's symbols, separated by spaces unless each is a single letter.

    Names of several letters, such as PAD, are found without spaces as well, unless they consist of
    single letters that are names themselves: with 1, 2 and 12, the text 21 might be a slip for 12.

    Args:
        word: the text.
        names: of the symbols, by number.
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
