"""From a model or a run to its diagnosis."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from statetrack.automata import DFA
from statetrack.compiler.compiled import encode
from statetrack.compiler.folders import holds_tables, is_compiled, is_hardened, load
from statetrack.compiler.model import CompiledModel
from statetrack.compiler.network import CompiledRNN
from statetrack.config import at_least, within
from statetrack.diagnosis.horizon import (
    LIMIT,
    Horizon,
    Prediction,
    measure_horizon,
    predict_horizon,
)
from statetrack.diagnosis.period import Recurrence, find_periods
from statetrack.diagnosis.report import Diagnosis, Layer
from statetrack.diagnosis.segments import NotMeasurableError
from statetrack.diagnosis.spectrum import Spectrum
from statetrack.diagnosis.verdicts import architectural, probed
from statetrack.errors import UserError
from statetrack.layers import Transition
from statetrack.models import SequenceModel, check_finite
from statetrack.tasks import generator
from statetrack.training import Run, RunConfig

PROBED = 1024  # tokens, in sequences of at most LONGEST
LONGEST = 64
PAIRED = 64  # symbols of an automaton whose pairs are tried as the default word
NUMBERS = 1 << 26  # eigenvalues of all layers and tokens together: 0.5 GB; fewer tokens, if more


@torch.no_grad()
def diagnose(
    model: nn.Module | CompiledModel | Run | Path | str,
    word: str | Sequence[int] | None = None,
    *,
    checkpoint: int | None = None,
    vocab: Sequence[str] | None = None,
    tolerance: float = 1e-4,
    max_tokens: int = 4096,
    max_length: int = 1000,
    samples: int = 1024,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Diagnosis:
    """Tell up to which length a run's model is right, and which languages (word^m)* are excluded.

    The horizon is predicted from products of the transitions along sequences of the run's task, and
    measured. Eigenvalues are computed on a copy of the model in float64.

    Args:
        model: a run (or its folder), which is compared with its own initialisation if nothing but
            training has made it; what `compile` made (or its folder); or a module with
            `transitions(tokens)`, such as a SequenceModel.
        word: what is read again and again: names of tokens, separated by spaces unless each is a
            single letter; of a module without `vocab` the names are the ids. By default the word
            of one symbol, or two, with the longest cycle in the automaton of the task, such as a
            generator of a group; of a task that does not count, its most frequent token. A module
            alone has no default.
        checkpoint: the step of a run's checkpoint; the last one if absent.
        vocab: the names of a module's tokens, by id.
        tolerance: eigenvalues closer than this count as equal; 1e-6 suits constructed models.
        max_tokens: how many are read at most to see the layers settle.
        max_length: the greatest length at which the accuracy of a run is measured; 0: none is.
        samples: sequences that are evaluated to measure it.
        on_progress: told what is being done.
    """
    within("tolerance", tolerance, 1e-12, 0.1)
    at_least("max_tokens", max_tokens, 16)
    at_least("max_length", max_length, 0)
    at_least("samples", samples, 1)
    subject = _subject(model, vocab, checkpoint)
    check_finite(subject.model)
    names = subject.vocab
    ids = parse_word(_default_word(subject) if word is None else word, names, max_tokens)
    wide = _wide(subject.model)
    room = _room(wide, ids)
    tokens, seen = _with_word(subject, ids, room)

    on_progress("computing eigenvalues")
    transitions = wide.transitions(tokens)
    spectra = _spectra(transitions, tokens, seen, tolerance)
    earlier: list[Spectrum | None] = [None] * len(spectra)
    if subject.before is not None:
        on_progress("computing the eigenvalues before training")
        earlier = _spectra(_wide(subject.before).transitions(tokens), tokens, seen, tolerance)
    on_progress(f"reading {' '.join(names[i] for i in ids[:8])} again and again")
    periods = find_periods(wide, ids, tolerance=tolerance, max_tokens=min(max_tokens, room))
    guarantees = [None if t is None else t.guarantee() for t in transitions]
    horizon = _horizon(subject, max_length, samples, on_progress)
    untold = [None] * (len(spectra) - len(periods))
    columns = zip(guarantees, spectra, earlier, [*periods, *untold], strict=True)
    return Diagnosis(
        title=subject.title,
        word=tuple(names[i] for i in ids),
        vocab=names,
        tolerance=tolerance,
        layers=tuple(Layer(*column) for column in columns),
        architectural=architectural(transitions, len(ids)),
        probed=probed(periods),
        horizon=horizon,
    )


class _Subject(NamedTuple):
    """What is diagnosed, and on which sequences."""

    title: str
    vocab: tuple[str, ...]
    model: nn.Module
    before: nn.Module | None  # training
    tokens: Tensor  # [B, T]
    seen: Tensor  # [B, T], False for padding
    run: RunConfig | None = None
    dfa: DFA | None = None  # of the task, or what was compiled


def _subject(
    model: nn.Module | CompiledModel | Run | Path | str,
    vocab: Sequence[str] | None,
    checkpoint: int | None,
) -> _Subject:
    if isinstance(model, Path | str) and holds_tables(Path(model)):
        model = load(Path(model))
    if isinstance(model, Run | Path | str):
        run = model if isinstance(model, Run) else Run.open(Path(model))
        title = f"{run.config.model.title} on {run.config.task.name}"
        trained = run.model(checkpoint)
        trained_alone = not is_compiled(run.folder) and not is_hardened(run.folder)
        before = _initial(run) if trained_alone else None
        task = run.config.task
        sequences = _task_tokens(run)
        return _Subject(
            title, task.vocab, trained, before, *sequences, run.config, task.automaton()
        )
    if checkpoint is not None:
        raise UserError("checkpoint is for runs; a model has only the weights that it has")
    if isinstance(model, CompiledRNN):
        symbols = model.dfa.alphabet
        tokens = _random_tokens(range(len(symbols)))
        return _Subject(model.title, symbols, model, None, *tokens, dfa=model.dfa)
    if isinstance(model, CompiledModel):
        tokens = _random_tokens(range(1, 1 + len(model.dfa.alphabet)))
        return _Subject(model.title, model.vocab, model.model, None, *tokens, dfa=model.dfa)
    if not hasattr(model, "transitions"):
        kinds = "a run, its folder, what compile made or a module with transitions(tokens)"
        raise UserError(f"diagnose takes {kinds}; got a {type(model).__name__}")
    config: Any = getattr(model, "config", None)
    if vocab is None and config is None:
        raise UserError(f"{type(model).__name__} has no config.vocab_size: give the vocab")
    names = tuple(vocab or map(str, range(config.vocab_size)))
    title = type(model).__name__ if config is None else config.title
    return _Subject(title, names, model, None, *_random_tokens(range(len(names))))


def _default_word(subject: _Subject) -> str | list[int]:
    """A word that the task's automaton counts, or the task's most frequent token."""
    word = None if subject.dfa is None else counting_word(subject.dfa)
    if word is not None:
        return [subject.vocab.index(name) for name in word]
    if subject.run is None and subject.dfa is None:
        raise UserError("a model without a task has no default word: give one, such as '1'")
    return [int(torch.bincount(subject.tokens[subject.seen]).argmax())]


def counting_word(dfa: DFA) -> list[str] | None:
    """The word with the longest cycle: of one symbol or, where none of those counts, of two."""
    symbols = range(len(dfa.alphabet))
    for size in (1, 2) if len(symbols) <= PAIRED else (1,):
        words = list(product(symbols, repeat=size))
        lengths = [cycle(dfa, word) for word in words]
        if max(lengths) > 1:
            return [dfa.alphabet[i] for i in words[int(np.argmax(lengths))]]
    return None


def cycle(dfa: DFA, word: Sequence[int]) -> int:
    """The least common multiple of the cycles that a word makes on the states."""
    action = np.arange(dfa.states)
    for symbol in word:
        action = dfa.delta[action, symbol]
    power = action
    for _ in range(dfa.states.bit_length()):  # to where only cycles are left
        power = power[power]
    lengths = set()
    for state in np.unique(power):
        at, length = action[state], 1
        while at != state:
            at, length = action[at], length + 1
        lengths.add(length)
    return math.lcm(*lengths)


def _horizon(
    subject: _Subject, max_length: int, samples: int, on_progress: Callable[[str], None]
) -> Horizon:
    """The length up to which a run's model is right: predicted, measured, and how to extend it."""
    if subject.run is None or not isinstance(subject.model, SequenceModel):
        return Horizon(None, "a model without a run has no task to be right on", None, "")
    prediction, missing = None, ""
    on_progress("multiplying transitions")
    try:
        prediction = predict_horizon(subject.model, subject.run)
    except NotMeasurableError as error:
        missing = str(error)
    if prediction is not None and not prediction.learned:
        max_length = min(max_length, prediction.trained)  # beyond, there is nothing to measure
    measured = None
    if max_length:
        on_progress(f"evaluating {subject.run.task.name} up to {max_length}")
        measured = measure_horizon(subject.model, subject.run, max_length, samples)
    return Horizon(prediction, missing, measured, _remedy(subject, prediction))


def _remedy(subject: _Subject, prediction: Prediction | None) -> str:
    assert subject.run is not None
    if prediction is None or prediction.horizon >= LIMIT:
        return ""
    mixers = subject.run.model.mixers
    if prediction.learned and all(mixer.allow_neg_eigval for mixer in mixers):
        return "Try `statetrack harden RUN`: it makes transitions exact where accuracy allows."
    if prediction.learned or all(mixer.allow_neg_eigval for mixer in mixers):
        return "Train for more steps, or on longer sequences."
    return "Train with --allow-neg-eigval, for more steps, or on longer sequences."


def _random_tokens(ids: range) -> tuple[Tensor, Tensor]:
    """[B, T], and all of them seen."""
    rng = torch.Generator().manual_seed(0)
    shape = (PROBED // LONGEST, LONGEST)
    tokens = torch.randint(ids.start, ids.stop, shape, generator=rng)
    return tokens, torch.ones_like(tokens, dtype=torch.bool)


def _room(model: Recurrence, word: list[int]) -> int:
    """How many tokens may be looked at together."""
    first = model.transitions(torch.tensor([word[:1]]))
    each = sum(t.eigvals().numel() for t in first if t is not None)
    room = NUMBERS // max(1, each)
    if room < 8 * len(word):
        raise UserError(
            f"a token has {each:,} eigenvalues, so that only {room:,} tokens fit the limit of "
            f"{NUMBERS:,}; a word of {len(word)} takes {8 * len(word)}"
        )
    return room


def _with_word(subject: _Subject, word: list[int], room: int) -> tuple[Tensor, Tensor]:
    """The sequences to look at, as many as there is room for, and one of the word again."""
    size = min(room, subject.tokens.shape[1])
    rows = room // size - 1
    again = torch.tensor(word).repeat(-(-size // len(word)))[None, :size]
    tokens = torch.cat([subject.tokens[:rows, :size], again])
    seen = torch.cat([subject.seen[:rows, :size], torch.ones_like(again, dtype=torch.bool)])
    return tokens, seen


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
