"""Count the transitions of a language model on real text that reflect, rotate, keep or forget.

A transition acts on components of the state that do not act on each other: the entries of a
diagonal state, or the whole state of a head. At each token it acts on each component in one of
four ways, the kinds:

    reflect   it has a real eigenvalue below -0.1
    rotate    it has an eigenvalue with an imaginary part above 0.01, and does not reflect
    keep      neither, and all its eigenvalues have a modulus above 0.9
    forget    none of these: an eigenvalue has a modulus of at most 0.9

A sign that is written at a token is multiplied by all later transitions. It survives until the norm
of their product, applied to the written vector, is smaller than half a unit in the last place of 1
in the number type: it is then lost when it is added to values of order 1. The written vector has
length 1. For diagonal transitions each entry is followed by itself; for Householder products the
vector is the token's key, for dense matrices it has equal entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from statetrack.config import at_least
from statetrack.diagnosis.spectrum import PRECISIONS, Floats
from statetrack.errors import UserError
from statetrack.layers import Diagonal, HouseholderProduct, Transition
from statetrack.lm.evaluation_data import EvaluationData
from statetrack.lm.load import LanguageModel
from statetrack.lm.transition_kinds import KEEPS, KINDS, REFLECTS, ROTATES
from statetrack.lm.transitions import linear_layers, visit_transitions
from statetrack.models import check_finite

BINS = 400  # of eigenvalues from -1 to 1
STARTS = 8  # tokens of a sequence from which a sign is followed, in its first half
PER_OCTAVE = 8  # bins of survival lengths
MIN_OCCURRENCES = 8  # of a token that is listed

Counts = NDArray[np.int64]


class Classified(NamedTuple):
    """The kinds of a layer's transitions in one sequence: [T, heads, components] each."""

    kind: Tensor  # index of KINDS
    modulus: Tensor  # of the eigenvalue farthest from 1, with the sign of its real part


def classify(transition: Transition) -> Classified:
    """Classify the transitions of one sequence [1, T, ..., n]."""
    if isinstance(transition, Diagonal):
        modulus = transition.values[0].float().flatten(1, -2)
        reflects, rotates, keeps = modulus < REFLECTS, None, modulus > KEEPS
    else:
        values = transition.eigvals()[0].flatten(1, -2)
        is_real = values.imag.abs() <= ROTATES
        reflects = (is_real & (values.real < REFLECTS)).any(-1, keepdim=True)
        rotates = (~is_real).any(-1, keepdim=True)
        keeps = (values.abs() > KEEPS).all(-1, keepdim=True)
        farthest = values.gather(-1, (values - 1).abs().argmax(-1, keepdim=True))
        modulus = torch.where(farthest.real < 0, -farthest.abs(), farthest.abs())
    kind = torch.where(keeps, KINDS.index("keep"), KINDS.index("forget"))
    if rotates is not None:
        kind = kind.masked_fill(rotates, KINDS.index("rotate"))
    return Classified(kind.masked_fill(reflects, KINDS.index("reflect")), modulus)


def survival_lengths(transition: Transition, starts: Sequence[int]) -> dict[str, Tensor]:
    """Count the tokens for which a sign survives, by number type: [heads, components, starts].

    Args:
        transition: of one sequence [1, T, ..., n].
        starts: the positions at which the sign is written, in the first half of the sequence.

    Returns:
        Whole numbers, and infinity for a sign that survives T / 2 tokens.
    """
    length, column = transition.shape[1], {start: j for j, start in enumerate(starts)}
    u = torch.zeros(*transition[:, 0].shape, len(starts), **_factory_options(transition))
    size = _size(transition, u)
    found = {name: torch.zeros_like(size) for name in PRECISIONS}
    alive = {name: torch.zeros_like(size, dtype=torch.bool) for name in PRECISIONS}
    for t in range(length):
        u = transition[:, t].apply(u)
        size = _size(transition, u)
        for name, resolution in PRECISIONS.items():
            alive[name] &= size >= resolution
            found[name] += alive[name]
        if t in column:
            u[..., column[t]] = _written_vector(transition, t)
            for name in PRECISIONS:
                alive[name][..., column[t]] = True
        elif t > max(starts) and not any(left.any() for left in alive.values()):
            break
    return {n: found[n].masked_fill(found[n] >= length // 2, torch.inf) for n in PRECISIONS}


def _factory_options(transition: Transition) -> dict[str, Any]:
    """Return the dtype and device of tensors that a transition multiplies."""
    values = transition[:, :1].eigvals().real
    return {"dtype": values.dtype, "device": values.device}


def _written_vector(transition: Transition, t: int) -> Tensor:
    """Return the vector [1, ..., n] that a token writes, of length 1 in each component."""
    if isinstance(transition, HouseholderProduct):
        k = transition.k[:, t, ..., -1, :]
        return k / k.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    ones = torch.ones(transition[:, t].shape, **_factory_options(transition))
    return ones if isinstance(transition, Diagonal) else ones / ones.shape[-1] ** 0.5


def _size(transition: Transition, u: Tensor) -> Tensor:
    """Return the norm [heads, components, starts] of each component of u [1, ..., n, starts]."""
    u = u[0].flatten(0, -3)
    return u.abs() if isinstance(transition, Diagonal) else u.norm(dim=-2, keepdim=True)


class LayerAudit:
    """The counts of one layer over all tokens of a text.

    Args:
        number: of its block.
        title: the layer's name.
        length: of the sequences.
    """

    def __init__(self, number: int, title: str, length: int) -> None:
        self.number, self.title = number, title
        self.kinds: Counts = np.zeros((len(KINDS), 0), np.int64)  # [kinds, heads]
        self.moduli: Counts = np.zeros(BINS, np.int64)
        octaves = np.arange(PER_OCTAVE * length.bit_length())
        edges = np.unique(np.round(2 ** (octaves / PER_OCTAVE)))
        # whole numbers below length / 2, about 9 % apart
        self.edges: Counts = np.array([0, *edges[edges < length // 2]], np.int64)
        self.survival: dict[str, Counts] = {}  # [heads, edges + 1], the last one: longer

    @property
    def heads(self) -> int:
        """The number of heads or channels."""
        return self.kinds.shape[1]

    def add(self, classified: Classified, lengths: dict[str, Tensor]) -> None:
        """Count one more sequence.

        Args:
            classified: its transitions.
            lengths: what `survival_lengths` returns.
        """
        heads = classified.kind.shape[1]
        if not self.heads:
            self.kinds = np.zeros((len(KINDS), heads), np.int64)
            size = (heads, len(self.edges) + 1)
            self.survival = {name: np.zeros(size, np.int64) for name in lengths}
        for i in range(len(KINDS)):
            self.kinds[i] += (classified.kind == i).sum((0, 2)).cpu().numpy()
        signed = classified.modulus.float().clamp(-1, 1).cpu()
        self.moduli += torch.histc(signed, BINS, -1, 1).long().numpy()
        for name, found in lengths.items():
            flat = found.flatten(1).cpu().numpy()
            place = np.searchsorted(self.edges, flat, "right") - 1
            place[np.isinf(flat)] = len(self.edges)
            rows = np.broadcast_to(np.arange(heads)[:, None], place.shape)
            np.add.at(self.survival[name], (rows, place), 1)

    def shares(self) -> Floats:
        """Return the shares of each head by kind: [kinds, heads]."""
        return self.kinds / self.kinds.sum(0)

    def total(self) -> dict[str, float]:
        """Return the shares of the whole layer by kind."""
        return dict(zip(KINDS, (self.kinds.sum(1) / self.kinds.sum()).tolist(), strict=True))

    def modulus(self, quantile: float) -> float:
        """Return a quantile of the moduli of the eigenvalues farthest from 1."""
        folded = self.moduli[BINS // 2 :] + self.moduli[: BINS // 2][::-1]
        reached = np.searchsorted(np.cumsum(folded), quantile * folded.sum())
        return float((reached + 0.5) / len(folded))

    def survives(self, precision: str, head: int | None = None) -> int | None:
        """Return the median number of tokens that a sign survives; None: half a sequence or more.

        Args:
            precision: a number type, one of PRECISIONS.
            head: of the layer; None: all heads.
        """
        counts = self.survival[precision]
        counts = counts.sum(0) if head is None else counts[head]
        place = int(np.searchsorted(np.cumsum(counts), counts.sum() / 2))
        return None if place >= len(self.edges) else int(self.edges[place])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        shares = self.shares()
        return {
            "layer": self.number,
            "title": self.title,
            "heads": self.heads,
            **self.total(),
            "modulus": {f"{q:g}": self.modulus(q) for q in (0.1, 0.5, 0.9)},
            "sign_survives": {name: self.survives(name) for name in PRECISIONS},
            "by_head": {
                **{kind: shares[i].tolist() for i, kind in enumerate(KINDS)},
                **{
                    f"sign_survives_{name}": [self.survives(name, h) for h in range(self.heads)]
                    for name in PRECISIONS
                },
            },
            "moduli": self.moduli.tolist(),
        }


class ReflectingToken(NamedTuple):
    """A token and the share of components, over all layers and heads, that it reflects."""

    text: str
    occurrences: int
    share: float


@dataclass(frozen=True)
class Audit:
    """The shares of a model's transitions on a text that reflect, rotate, keep and forget."""

    checkpoint: str
    data: str
    tokens: int
    length: int  # of the sequences that were read, each from an empty state
    layers: tuple[LayerAudit, ...]
    reflecting: tuple[ReflectingToken, ...]  # most first

    def total(self) -> dict[str, float]:
        """Return the mean of the layers' shares by kind."""
        totals = [layer.total() for layer in self.layers]
        return {kind: float(np.mean([t[kind] for t in totals])) for kind in KINDS}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "checkpoint": self.checkpoint,
            "data": self.data,
            "tokens": self.tokens,
            "sequence_length": self.length,
            **self.total(),
            "layers": [layer.to_dict() for layer in self.layers],
            "tokens_that_reflect_most": [token._asdict() for token in self.reflecting],
        }


def audit(
    language: LanguageModel,
    data: EvaluationData,
    *,
    tokens: int = 16384,
    length: int = 1024,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Audit:
    """Count the transitions of a model on a text that reflect, rotate, keep and forget.

    Args:
        language: the model: of this package, converted, or of transformers with layers that
            `linear_layers` knows.
        data: the text, as the model's tokens.
        tokens: read at most so many of them.
        length: of the sequences, each of which is read from an empty state.
        on_progress: called with a text before each sequence.

    Raises:
        UserError: the model has no linear layers, or there are too few tokens for one sequence.
    """
    at_least("length", length, 2 * STARTS)
    at_least("tokens", tokens, length)
    if data.num_tokens < length:
        raise UserError(
            f"{data.name} has {data.num_tokens:,} tokens; a sequence needs {length:,}: choose a "
            "smaller --length or more data"
        )
    check_finite(language.model, language.name)
    layers = linear_layers(language.model)
    tallies = [LayerAudit(layer.number, layer.title, length) for layer in layers]
    starts = range(0, length // 2, length // 2 // STARTS)
    vocabulary = int(language.model.config.vocab_size)
    reflecting, occurrences = np.zeros(vocabulary), np.zeros(vocabulary, np.int64)
    count = min(tokens, data.num_tokens) // length
    for i in range(count):
        ids = data.read(i * length, (i + 1) * length)
        np.add.at(occurrences, ids, 1)

        def visit(index: int, transition: Transition, ids: Counts = ids, i: int = i) -> None:
            where = f"sequence {i + 1}/{count}, layer {index + 1}/{len(layers)}"
            on_progress(f"{language.name} on {data.name}: {where}")
            classified = classify(transition)
            tallies[index].add(classified, survival_lengths(transition, starts))
            share = (classified.kind == KINDS.index("reflect")).double().mean((1, 2))
            np.add.at(reflecting, ids, share.cpu().numpy())

        read = torch.from_numpy(ids).to(language.model.device)[None]
        visit_transitions(language.model, layers, read, visit)
    return Audit(
        checkpoint=language.name,
        data=data.name,
        tokens=count * length,
        length=length,
        layers=tuple(tallies),
        reflecting=_most_reflecting(language, reflecting / len(layers), occurrences),
    )


def _most_reflecting(
    language: LanguageModel, sums: Floats, occurrences: Counts
) -> tuple[ReflectingToken, ...]:
    """List the tokens by the share of components that they reflect, without rare ones."""
    often = np.flatnonzero((occurrences >= MIN_OCCURRENCES) & (sums > 0))
    shares = sums[often] / occurrences[often]
    made = language.tokenizer
    texts = [str(t) if made is None else str(made.decode([t])) for t in often.tolist()]
    return tuple(
        ReflectingToken(texts[i], int(occurrences[often[i]]), float(shares[i]))
        for i in np.argsort(-shares, kind="stable")
    )
