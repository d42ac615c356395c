"""Perplexity against position: how well a model predicts the token after t others.

Tokens of all documents follow each other and are cut into chunks. In each chunk the model reads
from an empty state; the mean loss of its first t predictions, averaged over the chunks, is the
logarithm of the running perplexity at position t (Grazzi et al., 2025, Figure 5). A chunk is read
in segments with the state carried over, so that memory does not grow with its length.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from statetrack.errors import UserError
from statetrack.lm.evaluation_data import EvaluationData
from statetrack.lm.hf_model import StateTrackForCausalLM
from statetrack.lm.load import LanguageModel
from statetrack.models import SequenceModel, check_finite
from statetrack.models.convert import CONVERTERS, convert
from statetrack.report.spread import half_width

SEGMENT = 1024  # tokens that are read at once
OCTAVES, PER_OCTAVE = 8, 2  # windows of positions, at equal ratios
PROBE = 24  # tokens that are read in two segments and in one pass, to compare the logits
TOLERANCE = 1e-4  # of those logits, relative to the largest

Floats = NDArray[np.float64]
Read = Callable[[Tensor, Any], tuple[Tensor, Any]]


class Reader(NamedTuple):
    """A function by which a model reads a chunk in segments, with the state carried over.

    `read` takes tokens [1, t] and a state (None at first), and returns logits and the next state.
    """

    read: Read
    segment: int | None  # tokens at once; None: the whole chunk
    how: str  # for the report
    device: torch.device = torch.device("cpu")


@torch.no_grad()
def make_reader(language: LanguageModel) -> Reader:
    """Choose how a model reads long texts.

    A model of this package carries its state. A model of transformers is converted, or else carries
    its cache, provided that two segments then give the logits of one pass; with some caches they do
    not. Otherwise it reads a chunk in one pass.

    Args:
        language: the model.

    Raises:
        UserError: a weight is NaN or infinite.
    """
    model: PreTrainedModel = language.model
    check_finite(model, language.name)
    if isinstance(model, StateTrackForCausalLM):
        read = _with_state(model.sequence_model)
        return Reader(read, SEGMENT, "in segments, with its state", model.device)
    for make, how in (
        (_converted, "in segments, converted, with its state"),
        (_with_cache, "in segments, with its cache"),
    ):
        made = make(model)
        if made is not None and _agrees(model, made):
            return Reader(made, SEGMENT, how, model.device)
    how = "in one pass: it has no cache that carries over, so memory grows with the length"
    return Reader(_in_one_pass(model), None, how, model.device)


def _with_state(model: SequenceModel) -> Read:
    return lambda tokens, state: model(tokens, state)


def _converted(model: PreTrainedModel) -> Read | None:
    """Read with the same weights in a model of this package; None if there is none."""
    if model.config.model_type not in CONVERTERS:
        return None
    try:
        return _with_state(convert(model.config.to_dict(), model.state_dict(), share=True))
    except UserError:  # an option that only transformers has
        return None


def _with_cache(model: PreTrainedModel) -> Read | None:
    """Read with the cache of a model of transformers; None if it has none."""
    known = inspect.signature(model.forward).parameters
    name = next((n for n in ("past_key_values", "cache_params") if n in known), None)
    if name is None:
        return None

    def read(tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
        out = model(tokens, use_cache=True, **({} if cache is None else {name: cache}))
        return out.logits, getattr(out, name, None)

    return read


def _in_one_pass(model: PreTrainedModel) -> Read:
    return lambda tokens, _: (model(tokens, use_cache=False).logits, None)


def _agrees(model: PreTrainedModel, read: Read) -> bool:
    """Whether reading in two segments gives the logits of one pass."""
    most = getattr(model.config, "max_position_embeddings", None) or PROBE
    tokens = torch.arange(min(PROBE, most), device=model.device)[None] % model.config.vocab_size
    whole, _ = _in_one_pass(model)(tokens, None)
    first, state = read(tokens[:, : PROBE // 2], None)
    if state is None:
        return False
    second, _ = read(tokens[:, PROBE // 2 :], state)
    off = (torch.cat([first, second], 1) - whole).abs().max()
    few_bits = torch.finfo(model.dtype).bits < 32
    return bool(off <= (0.05 if few_bits else TOLERANCE) * whole.abs().max())


@torch.no_grad()
def token_losses(reader: Reader, tokens: Tensor) -> Floats:
    """Return the cross-entropy [L] of each of the tokens [L + 1] after the first, in nats."""
    tokens = tokens.to(reader.device)
    inputs, targets = tokens[:-1], tokens[1:]
    step = reader.segment or len(inputs)
    # One array for all losses: small tensors allocated between large temporary ones would
    # fragment the heap.
    losses = np.empty(len(inputs))
    state = None
    for start in range(0, len(inputs), step):
        part = slice(start, start + step)
        logits, state = reader.read(inputs[None, part], state)
        logits = logits[0].to(torch.promote_types(logits.dtype, torch.float32))
        losses[part] = F.cross_entropy(logits, targets[part], reduction="none").cpu().numpy()
        del logits  # before the next ones are made
    return losses


@dataclass
class Moments:
    """Running mean and variance of arrays (Welford)."""

    count: int = 0
    mean: Floats = field(default_factory=lambda: np.zeros(1))
    squares: Floats = field(default_factory=lambda: np.zeros(1))

    def add(self, values: Floats) -> None:
        """Add an array."""
        self.count += 1
        difference = values - self.mean
        self.mean = self.mean + difference / self.count
        self.squares = self.squares + difference * (values - self.mean)

    @property
    def interval(self) -> tuple[Floats, Floats] | None:
        """The 95 % interval of the mean; None for one array."""
        if self.count < 2:
            return None
        spread = half_width(np.sqrt(self.squares / (self.count - 1)), self.count)
        return self.mean - spread, self.mean + spread

    def perplexities(self, index: Any = slice(None)) -> tuple[Any, Any, Any]:
        """Return exp(mean) at `index` as a list, and the interval's ends or None."""
        low, high = self.interval or (None, None)
        value, *ends = (
            None if part is None else np.exp(part[index]).tolist()
            for part in (self.mean, low, high)
        )
        return value, ends[0], ends[1]


@dataclass(frozen=True)
class PerplexityCurve:
    """The losses of one model on one data set; perplexities are their exponentials."""

    checkpoint: str
    name: str  # of the model: the seeds of one share it
    data: str
    fingerprint: str  # of the data
    training_length: int | None
    max_positions: int | None  # that another package's model was made for
    how: str  # it was read, as `Reader.how`
    running: Moments  # [max_length]: the mean loss of the first t predictions, over chunks
    windows: Moments  # [windows]: the mean loss in a window of positions
    edges: tuple[int, ...]  # of the windows: the positions edges[i] + 1 .. edges[i + 1]
    totals: tuple[float, ...]  # the mean loss of each chunk
    bits_per_byte: float | None  # of a text file: the mean loss in bits per byte of the text
    seconds: float

    @property
    def max_length(self) -> int:
        """The greatest position."""
        return self.edges[-1]

    @property
    def chunks(self) -> int:
        """The number of chunks that were read."""
        return len(self.totals)

    def at(self, position: int) -> float:
        """Return the running perplexity at a position, which counts from 1."""
        return float(np.exp(self.running.mean[position - 1]))

    def to_dict(self, positions: Sequence[int]) -> dict[str, Any]:
        """Return plain values, for JSON: the running perplexity at these positions, and windows."""
        index, names = np.array(positions) - 1, ("value", "low", "high")
        return {
            "checkpoint": self.checkpoint,
            "name": self.name,
            "data": self.data,
            "training_length": self.training_length,
            "read": self.how,
            "chunks": self.chunks,
            "tokens": self.chunks * self.max_length,
            "seconds": self.seconds,
            "positions": list(positions),
            "running_perplexity": dict(zip(names, self.running.perplexities(index), strict=True)),
            "window_ends": list(self.edges[1:]),
            "window_perplexity": dict(zip(names, self.windows.perplexities(), strict=True)),
            "bits_per_byte": self.bits_per_byte,
        }


def measure_perplexity(
    language: LanguageModel,
    data: EvaluationData,
    *,
    max_length: int = 16384,
    chunks: int | None = None,
    name: str | None = None,
    reader: Reader | None = None,
    on_progress: Callable[[str], None] = lambda text: None,
) -> PerplexityCurve:
    """Measure perplexity against position.

    Chunk i consists of the tokens i L .. (i + 1) L. Its last token is predicted here and read in
    the next chunk, so that position t is a prediction after t tokens of the chunk.

    Args:
        language: the model.
        data: the text, as the model's tokens.
        max_length: the greatest position L, which may exceed the training length.
        chunks: read at most so many chunks; None: as many as there are.
        name: of the model in tables, which its seeds share; by default the checkpoint's.
        reader: how the model reads; `make_reader` by default.
        on_progress: called with a text before each chunk.

    Raises:
        UserError: there are too few tokens for one chunk, or the model cannot read so many.
    """
    count = data.count_chunks(max_length, chunks)
    reader = reader or make_reader(language)
    edges = window_edges(max_length)
    sizes = np.diff(edges)
    places = np.arange(1, max_length + 1)
    running, windows, totals = Moments(), Moments(), []
    start = time.perf_counter()
    for i in range(count):
        spent = time.perf_counter() - start
        speed = f", {i * max_length / spent:,.0f} tokens/s" if i else ""
        left = f", {spent / i * (count - i):.0f} s left" if i else ""
        on_progress(f"{language.name} on {data.name}: chunk {i + 1}/{count}{speed}{left}")
        tokens = torch.from_numpy(data.read(i * max_length, (i + 1) * max_length + 1))
        losses = _losses(language, reader, tokens)
        sums = np.cumsum(losses)
        running.add(sums / places)
        windows.add(np.add.reduceat(losses, edges[:-1]) / sizes)
        totals.append(float(sums[-1] / max_length))
    return PerplexityCurve(
        checkpoint=language.name,
        name=language.name if name is None else name,
        data=data.name,
        fingerprint=data.fingerprint,
        training_length=language.training_length,
        max_positions=getattr(language.model.config, "max_position_embeddings", None),
        how=reader.how,
        running=running,
        windows=windows,
        edges=edges,
        totals=tuple(totals),
        bits_per_byte=_bits_per_byte(data, totals, max_length),
        seconds=time.perf_counter() - start,
    )


def window_edges(max_length: int) -> tuple[int, ...]:
    """Return 0 and the ends of the windows, the last octaves of positions at equal ratios."""
    octaves = np.arange(OCTAVES * PER_OCTAVE + 1) / PER_OCTAVE
    return tuple(int(end) for end in np.unique([0, *(max_length / 2**octaves).round()]))


def _bits_per_byte(data: EvaluationData, totals: Sequence[float], length: int) -> float | None:
    """Return the loss of chunks of this length in bits per byte of their text; None of tokens."""
    if data.byte_ends is None:
        return None
    size = data.byte_ends[len(totals) * length] - data.byte_ends[0]
    return float(sum(totals) * length / np.log(2) / size)


def _losses(language: LanguageModel, reader: Reader, tokens: Tensor) -> Floats:
    try:
        losses = token_losses(reader, tokens)
    except IndexError:  # of an embedding, of tokens or of positions
        most = getattr(language.model.config, "max_position_embeddings", None)
        known = f"; its config allows {most:,} positions" if most else ""
        raise UserError(f"{language.name} cannot read {len(tokens) - 1:,} tokens{known}") from None
    if not np.isfinite(losses).all():
        bad = int(np.flatnonzero(~np.isfinite(losses))[0]) + 1
        raise UserError(f"the loss of {language.name} is not finite at position {bad:,}")
    return losses
