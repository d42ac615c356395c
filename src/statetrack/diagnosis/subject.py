"""What is diagnosed: the model, sequences that it reads, and the word that it repeats."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from statetrack.automata import DFA
from statetrack.automata.counters import cycle_length
from statetrack.compiler.compiled import encode
from statetrack.compiler.folders import holds_tables, is_compiled, is_hardened, load
from statetrack.compiler.model import CompiledModel
from statetrack.compiler.network import CompiledRNN
from statetrack.config import within
from statetrack.devices import cpu_copy
from statetrack.errors import UserError
from statetrack.models import SequenceModel
from statetrack.tasks import generator
from statetrack.training import Run, RunConfig

PROBED_TOKENS = 1024  # in sequences of at most PROBED_LENGTH
PROBED_LENGTH = 64
MAX_PAIRED_SYMBOLS = 64  # of a DFA whose words of two symbols are tried as the default word

Diagnosable = nn.Module | CompiledModel | Run | Path | str


class Subject(NamedTuple):
    """A model with the sequences on which it is probed, all of them on the CPU."""

    title: str
    vocab: tuple[str, ...]
    model: nn.Module
    tokens: Tensor  # [B, T]
    exists: Tensor  # [B, T], False for padding
    dfa: DFA | None = None  # of the task, or what was compiled
    run: RunConfig | None = None
    untrained: nn.Module | None = None  # the model before training

    def default_word(self) -> list[int]:
        """A word that the task's DFA counts, or the task's most frequent token."""
        word = None if self.dfa is None else counting_word(self.dfa)
        if word is not None:
            return [self.vocab.index(name) for name in word]
        if self.run is None and self.dfa is None:
            raise UserError("a model without a task has no default word: give one, such as '1'")
        return [int(torch.bincount(self.tokens[self.exists]).argmax())]


def find_subject(
    model: Diagnosable, vocab: Sequence[str] | None, checkpoint: int | None
) -> Subject:
    """Open a run or take a model, and choose the sequences."""
    if isinstance(model, Path | str) and holds_tables(Path(model)):
        model = load(Path(model))
    if isinstance(model, Run | Path | str):
        return _of_run(model if isinstance(model, Run) else Run.open(Path(model)), checkpoint)
    if checkpoint is not None:
        raise UserError("checkpoint is for runs; a model has only the weights that it has")
    if isinstance(model, CompiledRNN):
        symbols = model.dfa.alphabet
        tokens = _random(0, len(symbols))
        return Subject(model.title, symbols, cpu_copy(model), *tokens, model.dfa)
    if isinstance(model, CompiledModel):
        tokens = _random(1, 1 + len(model.dfa.alphabet))
        return Subject(model.title, model.vocab, cpu_copy(model.model), *tokens, model.dfa)
    if not hasattr(model, "transitions"):
        kinds = "a run, its folder, what compile made or a module with transitions(tokens)"
        raise UserError(f"diagnose takes {kinds}; got a {type(model).__name__}")
    config: Any = getattr(model, "config", None)
    if vocab is None and config is None:
        raise UserError(f"{type(model).__name__} has no config.vocab_size: give the vocab")
    names = tuple(vocab or map(str, range(config.vocab_size)))
    title = type(model).__name__ if config is None else config.title
    return Subject(title, names, cpu_copy(model), *_random(0, len(names)))


def _of_run(run: Run, checkpoint: int | None) -> Subject:
    config = run.config
    task, training = config.task, config.training
    untrained = None
    if not is_compiled(run.folder) and not is_hardened(run.folder):
        with torch.random.fork_rng(devices=[]):  # as `train` makes it
            torch.manual_seed(training.seed)
            untrained = SequenceModel(config.model)
    length = min(training.max_length, max(training.min_length, PROBED_LENGTH))
    length = task.near_length(length)
    rows = max(1, PROBED_TOKENS // task.input_size(length))
    batch = task.sample(generator(training.data_seed, "test", 0), np.full(rows, length))
    tokens = torch.from_numpy(batch.tokens)
    return Subject(
        f"{config.model.title} on {task.name}",
        task.vocab,
        run.model(checkpoint),
        tokens,
        tokens != task.pad,
        task.automaton(),
        config,
        untrained,
    )


def _random(low: int, high: int) -> tuple[Tensor, Tensor]:
    """Random tokens [B, T], all of which exist."""
    rng = torch.Generator().manual_seed(0)
    shape = (PROBED_TOKENS // PROBED_LENGTH, PROBED_LENGTH)
    tokens = torch.randint(low, high, shape, generator=rng)
    return tokens, torch.ones_like(tokens, dtype=torch.bool)


def counting_word(dfa: DFA) -> list[str] | None:
    """The word with the longest cycle: of one symbol or, where none of those counts, of two."""
    symbols = range(len(dfa.alphabet))
    for size in (1, 2) if len(symbols) <= MAX_PAIRED_SYMBOLS else (1,):
        words = list(product(symbols, repeat=size))
        lengths = [cycle(dfa, word) for word in words]
        if max(lengths) > 1:
            return [dfa.alphabet[i] for i in words[int(np.argmax(lengths))]]
    return None


def cycle(dfa: DFA, word: Sequence[int]) -> int:
    """The m modulo which the states count powers of a word; 1 if they do not."""
    action = np.arange(dfa.states)
    for symbol in word:
        action = dfa.delta[action, symbol]
    return cycle_length(action)


def parse_word(word: str | Sequence[int], vocab: Sequence[str], max_tokens: int) -> list[int]:
    """The ids of a word's tokens."""
    if isinstance(word, str):
        ids = encode(word, vocab, "token in word")
    else:
        try:
            ids = [int(i) for i in word]
        except (TypeError, ValueError, RuntimeError):
            got = type(word).__name__
            raise UserError(f"a word must be a text or a list of tokens' ids; got {got}") from None
        for i in ids:
            within("a token's id", i, 0, len(vocab) - 1)
    if not 1 <= len(ids) <= max_tokens // 8:
        raise UserError(f"the word must have 1..{max_tokens // 8} tokens; got {len(ids)}")
    return ids
