"""From a model or a run to its diagnosis."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from statetrack.compiler.network import CompiledRNN
from statetrack.config import at_least, within
from statetrack.devices import on_cpu, use_device
from statetrack.diagnosis.finite_precision import find_datatype
from statetrack.diagnosis.horizon import MAX_HORIZON, Horizon, measure_horizon, predict_horizon
from statetrack.diagnosis.period import Recurrence, find_periods
from statetrack.diagnosis.report import Diagnosis, LayerReport
from statetrack.diagnosis.rounded_states import find_rounded_states
from statetrack.diagnosis.segments import NotPredictableError
from statetrack.diagnosis.spectrum import Spectrum
from statetrack.diagnosis.subject import Diagnosable, Subject, find_subject, parse_word
from statetrack.diagnosis.verdicts import architectural, probed
from statetrack.errors import UserError, check_type
from statetrack.layers import Transition
from statetrack.models import SequenceModel, check_finite

MAX_EIGENVALUES = 1 << 26  # of all layers and tokens together: 1 GB; fewer tokens, if more


@torch.no_grad()
@on_cpu()
def diagnose(
    model: Diagnosable,
    word: str | Sequence[int] | None = None,
    *,
    checkpoint: int | None = None,
    vocab: Sequence[str] | None = None,
    tolerance: float = 1e-4,
    max_tokens: int = 4096,
    max_length: int = 1000,
    samples: int = 1024,
    precision: str | Sequence[str] = (),
    device: str = "cpu",
    on_progress: Callable[[str], None] = lambda text: None,
) -> Diagnosis:
    """Find the horizon of a run's model, and the languages (word^m)* that it cannot recognise.

    The horizon is predicted from products of the transitions along sequences of the run's task, and
    measured. Eigenvalues are computed on a copy of the model in float64, on the CPU.

    Args:
        model: a run (or its folder), which is compared with its own initialisation if it was only
            trained; what `compile` made (or its folder); or a module with `transitions(tokens)`,
            such as a SequenceModel.
        word: the word that is read again and again: names of tokens, separated by spaces unless
            each is a single letter; for a module without `vocab` the names are the ids. Default:
            the word of one symbol, or two, with the longest cycle in the DFA of the task, such as
            a generator of a group; for a task that does not count, its most frequent token. A
            module alone has no default.
        checkpoint: the step of a run's checkpoint; the last one if absent.
        vocab: the names of a module's tokens, by id.
        tolerance: eigenvalues closer than this count as equal; 1e-6 suits constructed models.
        max_tokens: the most tokens that are read until the layers settle.
        max_length: the largest length at which the accuracy of a run is measured; 0: none.
        samples: sequences for that measurement.
        precision: finite datatypes in which to find when each layer's states on the word become
            periodic, with products and sums rounded once: fp32, bf16, fp16, fp8_e4m3, fp8_e5m2, or
            such as e3m2 for 3 bits of exponent and 2 of mantissa.
        device: where the accuracy of a run is measured, as `TrainingConfig.device`; everything else
            is computed on the CPU, wherever the model is.
        on_progress: called with a text at the start of each step.

    Returns:
        The diagnosis; `print` shows its verdicts, `to_dict` gives plain values.

    Example:
        >>> from statetrack import ModelConfig, SequenceModel, diagnose
        >>> model = SequenceModel(ModelConfig(vocab_size=2, hidden_size=8))
        >>> diagnose(model, "1").verdict(2).kind  # DeltaNet [0,1] and parity
        <Kind.ARCHITECTURAL: 'architectural'>
    """
    within("tolerance", tolerance, 1e-12, 0.1)
    at_least("max_tokens", max_tokens, 16)
    at_least("max_length", max_length, 0)
    at_least("samples", samples, 1)
    check_type(
        "precision", precision, (str, list, tuple), "a name such as 'bf16' or a list of them"
    )
    names = [precision] if isinstance(precision, str) else precision
    datatypes = [find_datatype(name) for name in names]
    place = use_device(device)
    subject = find_subject(model, vocab, checkpoint)
    check_finite(subject.model)
    names = subject.vocab
    ids = parse_word(subject.default_word() if word is None else word, names, max_tokens)
    exact = _in_float64(subject.model)
    most = _max_tokens(exact, ids)
    tokens, exists = _with_word(subject, ids, most)

    on_progress("computing eigenvalues")
    transitions = exact.transitions(tokens)
    spectra = _spectra(transitions, tokens, exists, tolerance)
    earlier: list[Spectrum | None] = [None] * len(spectra)
    if subject.untrained is not None:
        on_progress("computing the eigenvalues before training")
        before = _in_float64(subject.untrained).transitions(tokens)
        earlier = _spectra(before, tokens, exists, tolerance)
    on_progress(f"reading {' '.join(names[i] for i in ids[:8])} again and again")
    periods = find_periods(exact, ids, tolerance=tolerance, max_tokens=min(max_tokens, most))
    rounded = []
    for datatype in datatypes:
        on_progress(f"reading it in {datatype.name}")
        if not isinstance(exact, SequenceModel | CompiledRNN):
            raise UserError("precision is for a SequenceModel or what compile made")
        rounded.append(find_rounded_states(exact, ids, datatype))
    guarantees = [None if t is None else t.guarantee() for t in transitions]
    unknown = [None] * (len(spectra) - len(periods))
    columns = zip(guarantees, spectra, earlier, [*periods, *unknown], strict=True)
    return Diagnosis(
        title=subject.title,
        word=tuple(names[i] for i in ids),
        vocab=names,
        tolerance=tolerance,
        layers=tuple(LayerReport(*column) for column in columns),
        architectural=architectural(transitions, len(ids)),
        probed=probed(periods),
        horizon=_horizon(subject, max_length, samples, place, on_progress),
        rounded=tuple(rounded),
    )


def _horizon(
    subject: Subject,
    max_length: int,
    samples: int,
    device: torch.device,
    on_progress: Callable[[str], None],
) -> Horizon:
    """Predict and measure the horizon, and choose a remedy."""
    run, model = subject.run, subject.model
    if run is None or not isinstance(model, SequenceModel):
        return Horizon("", 0, None, "a model without a run has no task", None, "")
    trained, prediction, missing, remedy = run.training.max_length, None, "", ""
    on_progress("multiplying transitions")
    try:
        prediction = predict_horizon(model, run)
    except NotPredictableError as error:
        missing = str(error)
    if prediction is not None:
        if not prediction.learned:  # accuracy is below 0.99 beyond the training lengths as well
            max_length = min(max_length, trained)
        if prediction.horizon < MAX_HORIZON:
            remedy = _remedy(run.model.mixers, prediction.learned)
    measured = None
    if max_length:
        on_progress(f"evaluating {run.task.name} up to {max_length}")
        there = model if device.type == "cpu" else copy.deepcopy(model).to(device)
        measured = measure_horizon(there, run, max_length, samples)
    return Horizon(run.task.name, trained, prediction, missing, measured, remedy)


def _remedy(mixers: Sequence[Any], learned: bool) -> str:
    negative = all(mixer.allow_neg_eigval or mixer.no_switch for mixer in mixers)
    if learned and negative:
        return "Try `statetrack harden RUN`: it makes transitions exact where accuracy allows."
    if learned or negative:
        return "Train for more steps, or on longer sequences."
    return "Train with --allow-neg-eigval, for more steps, or on longer sequences."


def _max_tokens(model: Recurrence, word: list[int]) -> int:
    """How many tokens may be probed at once."""
    first = model.transitions(torch.tensor([word[:1]]))
    each = sum(t.eigvals().numel() for t in first if t is not None)
    most = MAX_EIGENVALUES // max(1, each)
    if most < 8 * len(word):
        raise UserError(
            f"a token has {each:,} eigenvalues, so that only {most:,} tokens fit the limit of "
            f"{MAX_EIGENVALUES:,}; a word of {len(word)} takes {8 * len(word)}"
        )
    return most


def _with_word(subject: Subject, word: list[int], most: int) -> tuple[Tensor, Tensor]:
    """At most `most` tokens of the subject's sequences, and a sequence that repeats the word."""
    size = min(most, subject.tokens.shape[1])
    rows = most // size - 1
    repeated = torch.tensor(word).repeat(-(-size // len(word)))[None, :size]
    tokens = torch.cat([subject.tokens[:rows, :size], repeated])
    exists = torch.cat([subject.exists[:rows, :size], torch.ones_like(repeated, dtype=torch.bool)])
    return tokens, exists


def _spectra(
    transitions: Sequence[Transition | None], tokens: Tensor, exists: Tensor, tolerance: float
) -> list[Spectrum | None]:
    return [None if t is None else Spectrum.of(t, tokens, exists, tolerance) for t in transitions]


def _in_float64(model: nn.Module) -> Recurrence:
    """A copy; the model itself is not changed."""
    exact: Any = copy.deepcopy(model).double().eval()
    return exact
