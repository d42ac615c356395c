"""From a model or a run to its diagnosis."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from statetrack.config import at_least, unknown, within
from statetrack.errors import UserError
from statetrack.layers import Transition
from statetrack.models import SequenceModel
from statetrack.tasks import generator
from statetrack.theory.diagnostics.period import Recurrence, find_periods
from statetrack.theory.diagnostics.report import Diagnosis, Layer
from statetrack.theory.diagnostics.spectrum import Spectrum
from statetrack.theory.diagnostics.verdicts import architectural, probed
from statetrack.training import Run

PROBED = 1024  # tokens, in sequences of at most LONGEST
LONGEST = 64


@torch.no_grad()
def diagnose(
    model: nn.Module | Run | Path | str,
    word: str | Sequence[int] = "1",
    *,
    checkpoint: int | None = None,
    vocab: Sequence[str] | None = None,
    tolerance: float = 1e-4,
    max_tokens: int = 4096,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Diagnosis:
    """Tell which languages (word^m)* the eigenvalues of a model's transitions exclude.

    Everything is computed on a copy of the model in float64.

    Args:
        model: a run (or its folder), which is compared with its own initialisation, or a module
            with `transitions(tokens)`, such as a SequenceModel.
        word: what is read again and again: names of tokens, separated by spaces unless each is a
            single letter; of a module without `vocab` the names are the ids.
        checkpoint: the step of a run's checkpoint; the last one if absent.
        vocab: the names of a module's tokens, by id.
        tolerance: eigenvalues closer than this count as equal; 1e-6 suits constructed models.
        max_tokens: how many are read at most to see the layers settle.
        on_progress: told what is being done.
    """
    within("tolerance", tolerance, 1e-12, 0.1)
    at_least("max_tokens", max_tokens, 16)
    before: nn.Module | None = None
    if isinstance(model, Run | Path | str):
        run = model if isinstance(model, Run) else Run.open(Path(model))
        names = run.config.task.vocab
        ids = parse_word(word, names, max_tokens)
        title = f"{run.config.model.title} on {run.config.task.name}"
        trained: nn.Module = run.model(checkpoint)
        before = _initial(run)
        tokens, seen = _task_tokens(run)
    elif not hasattr(model, "transitions"):
        kinds = "a run, its folder or a module with transitions(tokens)"
        raise UserError(f"diagnose takes {kinds}; got a {type(model).__name__}")
    else:
        if checkpoint is not None:
            raise UserError("checkpoint is for runs; a model has only the weights that it has")
        trained = model
        names = tuple(vocab or map(str, range(_vocab_size(model))))
        ids = parse_word(word, names, max_tokens)
        config = getattr(model, "config", None)
        title = config.title if config is not None else type(model).__name__
        tokens = torch.randint(len(names), (PROBED // LONGEST, LONGEST), generator=_rng())
        seen = torch.ones_like(tokens, dtype=torch.bool)
    again = torch.tensor(ids).repeat(-(-tokens.shape[1] // len(ids)))[: tokens.shape[1]]
    tokens = torch.cat([tokens, again[None]])
    seen = torch.cat([seen, torch.ones(1, tokens.shape[1], dtype=torch.bool)])

    wide = _wide(trained)
    on_progress("computing eigenvalues")
    transitions = wide.transitions(tokens)
    spectra = _spectra(transitions, tokens, seen, tolerance)
    earlier: list[Spectrum | None] = [None] * len(spectra)
    if before is not None:
        on_progress("computing the eigenvalues before training")
        earlier = _spectra(_wide(before).transitions(tokens), tokens, seen, tolerance)
    on_progress(f"reading {' '.join(names[i] for i in ids[:8])} again and again")
    periods = find_periods(wide, ids, tolerance=tolerance, max_tokens=max_tokens)
    guarantees = [None if t is None else t.guarantee() for t in transitions]
    untold = [None] * (len(spectra) - len(periods))
    columns = zip(guarantees, spectra, earlier, [*periods, *untold], strict=True)
    return Diagnosis(
        title=title,
        word=tuple(names[i] for i in ids),
        vocab=tuple(names),
        tolerance=tolerance,
        layers=tuple(Layer(*column) for column in columns),
        architectural=architectural(transitions, len(ids)),
        probed=probed(periods),
    )


def parse_word(word: str | Sequence[int], vocab: Sequence[str], max_tokens: int) -> list[int]:
    """The ids of a word's tokens."""
    if isinstance(word, str):
        parts = word.split()
        if len(parts) == 1 and parts[0] not in vocab and set(parts[0]) <= set(vocab):
            parts = list(parts[0])  # single letters need no spaces
        for part in parts:
            if part not in vocab:
                raise unknown("token", part, vocab)
        ids = [vocab.index(part) for part in parts]
    else:
        ids = [int(i) for i in word]
        for i in ids:
            within("a token's id", i, 0, len(vocab) - 1)
    if not 1 <= len(ids) <= max_tokens // 8:
        raise UserError(f"the word must have 1..{max_tokens // 8} tokens; got {len(ids)}")
    return ids


def _spectra(
    transitions: Sequence[Transition | None], tokens: Tensor, seen: Tensor, tolerance: float
) -> list[Spectrum | None]:
    return [None if t is None else Spectrum.of(t, tokens, seen, tolerance) for t in transitions]


def _wide(model: nn.Module) -> Recurrence:
    """A copy in float64; the model itself stays as it is."""
    wide: Any = copy.deepcopy(model).double().eval()
    return wide


def _initial(run: Run) -> SequenceModel:
    """The run's model before training, as `train` makes it."""
    with torch.random.fork_rng():
        torch.manual_seed(run.config.training.seed)
        return SequenceModel(run.config.model)


def _task_tokens(run: Run) -> tuple[Tensor, Tensor]:
    """Inputs [B, T] of the run's task, and which of them are no padding."""
    task, training = run.config.task, run.config.training
    length = min(training.max_length, max(training.min_length, LONGEST))
    rows = max(1, PROBED // task.input_size(length))
    lengths = np.full(rows, length)
    batch = task.sample(generator(training.data_seed, "test", 0), lengths)
    tokens = torch.from_numpy(batch.tokens)
    return tokens, tokens != task.pad


def _vocab_size(model: nn.Module) -> int:
    config = getattr(model, "config", None)
    if config is None:
        raise UserError(f"{type(model).__name__} has no config.vocab_size: give the vocab")
    return int(config.vocab_size)


def _rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)
