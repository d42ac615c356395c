"""Refit the readout of an exact model: the maps from its state to its answers.

Once every head is exact, a model of one layer has finitely many states, and the input of its
readout depends on the state and the token alone. So all inputs can be listed, with the answers that
occur in sequences of the training lengths. The readout (output projection, MLP, head) is trained on
this list, with the recurrence as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statetrack.hardening.automaton import StateTokenPairs, list_state_token_pairs
from statetrack.hardening.exploration import Ints, step_from
from statetrack.hardening.inference import unanimous
from statetrack.hardening.inputs import LayerInputs, block_of
from statetrack.layers import Mixer
from statetrack.models import SequenceModel
from statetrack.models.block import Block
from statetrack.ops import cross_entropy
from statetrack.tasks import IGNORE, Batch

STEPS = 1200  # of Adam, at most
CHECK_EVERY = 50
LEARNING_RATE = 2e-3
BATCH_SIZE = 2048
HARD_PAIRS = 8.0  # how much more often pairs are drawn whose answers lead by less than needed
MIN_CLARITY = 0.2  # of a head's queries; see `clarity`
TRIED_QUERIES = 256  # per head, if its own are less clear
MAX_CLEARED = 200  # states: for every query tried, the distances of all pairs are computed
ENOUGH_MARGIN = 6.0  # nats by which every answer leads the next one; training ends there


class CannotRefitError(Exception):
    """No readout gives the answers; the message says why."""


@dataclass(frozen=True)
class ReadoutData:
    """Training data of the readout: its inputs and the right answers."""

    x: Tensor  # [N, D]: the residual stream before the layer
    read: Tensor  # [N, H V]: the input of the output projection
    answers: Tensor  # [N]


@torch.no_grad()
def list_pairs_for_refit(exact: SequenceModel, inputs: LayerInputs) -> StateTokenPairs:
    """List all pairs of a state and a token of an exact one-layer model, to refit its readout.

    Args:
        exact: the model with keys of length 1, so that its states recur.
        inputs: the inputs of its layer.

    Raises:
        CannotRefitError: the model has no readout of its own.
        UserError: its states cannot be listed.
    """
    if block_of(exact, 0).mixer.output_projection is None or exact.config.tie_embeddings:
        raise CannotRefitError("the model has no readout of its own")
    return list_state_token_pairs(exact, inputs, [str(i) for i in range(exact.config.vocab_size)])


@torch.no_grad()
def clear_queries(
    mixer: Mixer, inputs: LayerInputs, found: StateTokenPairs, batch: Batch, heads: Sequence[int]
) -> Tensor | None:
    """Return queries [n, H, K] that read states clearly; None if the present ones do.

    A head whose `clarity` is below MIN_CLARITY gets one query for all inputs that recur: the best
    of TRIED_QUERIES random ones in the span of its states, if it is better. A head whose states do
    not determine the answers keeps its queries.

    Args:
        mixer: the layer, with keys of length 1.
        inputs: its inputs.
        found: its states.
        batch: sequences of the training lengths, from which the answers are taken.
        heads: those that are exact.
    """
    q, by_state = mixer.queries(inputs.x), answers_by_state(found, batch)
    if q is None or by_state is None or len(by_state) > MAX_CLEARED:
        return None
    q, rng, changed = q.clone(), torch.Generator().manual_seed(0), False
    answers = torch.from_numpy(by_state)
    for i in heads:
        states = found.distinct[:, i].unflatten(-1, (q.shape[-1], -1))  # [N, K, V]
        own = clarity(q[inputs.recurring, i], states, answers).min()
        if own >= MIN_CLARITY:
            continue
        span, sizes, _ = torch.linalg.svd(states.transpose(0, 1).flatten(1), full_matrices=False)
        span = span[:, sizes > 1e-6 * sizes[0]]  # [K, d]
        tried = torch.randn(TRIED_QUERIES, span.shape[1], generator=rng).double()
        tried = F.normalize(tried, dim=1) @ span.T
        best, which = clarity(tried, states, answers).max(0)
        if best > own:
            q[inputs.recurring, i], changed = tried[which], True
    return q if changed else None


def clarity(queries: Tensor, states: Tensor, answers: Tensor) -> Tensor:
    """Return how clearly queries read states: the lesser of two numbers.

    One is the size of the weakest read relative to the strongest, since the head norm amplifies the
    errors of weak reads. The other is the least distance, after this norm, of two reads with
    different answers.

    Args:
        queries: [m, K].
        states: [N, K, V].
        answers: [N], the answer in each state, or IGNORE.

    Returns:
        [m].
    """
    reads = torch.einsum("mk,nkv->mnv", queries, states)
    sizes = reads.norm(dim=-1)
    units = F.normalize(reads, dim=-1)
    known = answers != IGNORE
    differ = (answers[:, None] != answers) & known & known[:, None]
    nearest = torch.cdist(units, units).masked_fill(~differ, torch.inf).amin((1, 2))
    return torch.minimum(sizes.amin(1) / sizes.amax(1), nearest)


@torch.no_grad()
def readout_data(
    exact: SequenceModel, inputs: LayerInputs, found: StateTokenPairs, batch: Batch
) -> ReadoutData:
    """List the inputs of the readout of an exact model of one layer, with the right answers.

    Args:
        exact: the model with keys of length 1.
        inputs: the inputs of its layer.
        found: its states, each with every token, from `list_pairs_for_refit`.
        batch: sequences of the training lengths, from which the answers are taken.

    Raises:
        CannotRefitError: its states do not determine the answers.
    """
    block = block_of(exact, 0)
    answers = torch.from_numpy(find_answers(found, batch))
    x, read = [found.x], [_read(block, found.x, found.states)]
    first = torch.from_numpy(inputs.token_ids[~inputs.recurring.numpy()])
    asked = batch.targets[:, 0] != IGNORE
    if len(first) and asked.any():  # the answer at a BOS, as often as that of an average token
        start = block.mixer.init_state(1)[0].double().reshape(1, *found.states.shape[1:])
        bos = exact.embed(first)
        times = len(found.next)
        x.append(bos.expand(times, -1))
        read.append(_read(block, bos, start).expand(times, -1))
        answer = torch.from_numpy(batch.targets[asked, 0][:1])
        answers = torch.cat([answers, answer.expand(times)])
    known = answers != IGNORE
    return ReadoutData(torch.cat(x)[known], torch.cat(read)[known], answers[known])


@torch.no_grad()
def refit_readout(model: SequenceModel, data: ReadoutData) -> SequenceModel:
    """Return a float64 model of one layer with a readout that gives the answers of `data`.

    Raises:
        CannotRefitError: training the readout does not succeed.
    """
    made = copy.deepcopy(model)
    trained = _Readout(copy.deepcopy(model)).float()
    with torch.enable_grad():
        _train(trained, data)
    for old, new in zip(_Readout(made).weights(), trained.weights(), strict=True):
        old.copy_(new)
    return made


class _Readout(nn.Module):
    """The readout of a model, which shares its weights."""

    def __init__(self, model: SequenceModel) -> None:
        super().__init__()
        self.block = block_of(model, 0)
        projection = self.block.mixer.output_projection
        assert projection is not None  # `list_pairs_for_refit` has refused such models
        self.projection, self.norm, self.head = projection, model.norm, model.head

    def weights(self) -> list[nn.Parameter]:
        """Return the weights that are trained."""
        parts = (self.projection, self.block.mlp, self.norm, self.head)
        return [p for part in parts if part is not None for p in part.parameters()]

    def forward(self, x: Tensor, read: Tensor) -> Tensor:
        """Return the logits [N, vocab_size]."""
        return self.head(self.norm(self.block.finish(x, self.projection(read))))


def _train(readout: _Readout, data: ReadoutData) -> None:
    """Train the readout until every answer is right by ENOUGH_MARGIN."""
    rng = torch.Generator().manual_seed(0)
    weights = readout.weights()
    optimizer = torch.optim.Adam(weights, LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    x, read = data.x.float(), data.read.float()
    hard = torch.ones(len(x))
    for step in range(1, STEPS + 1):
        some = torch.multinomial(hard, min(BATCH_SIZE, len(x)), generator=rng)
        loss = cross_entropy(readout(x[some], read[some]), data.answers[some])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % CHECK_EVERY == 0:
            margins = _margins(readout, x, read, data.answers)
            if margins.min() > ENOUGH_MARGIN:
                return
            hard = torch.where(margins > ENOUGH_MARGIN, 1.0, HARD_PAIRS)
    if margins.min() <= 0:
        raise CannotRefitError("its readout does not learn the answers")


@torch.no_grad()
def _margins(readout: _Readout, x: Tensor, read: Tensor, answers: Tensor) -> Tensor:
    """Return the lead of each right answer over the best wrong one, [N]."""
    logits = readout(x, read)
    right = logits.gather(1, answers[:, None])[:, 0]
    return right - logits.scatter(1, answers[:, None], -torch.inf).amax(1)


def _read(block: Block, x: Tensor, states: Tensor) -> Tensor:
    """Return the input of the output projection."""
    recorded: list[Tensor] = []
    assert block.mixer.output_projection is not None
    with block.mixer.output_projection.register_forward_pre_hook(
        lambda _, args: recorded.append(args[0])
    ):
        for some, own in zip(x.split(1024), states.split(1024), strict=True):
            step_from(block, some, own)
    return torch.cat(recorded).reshape(len(x), -1)


def _follow(found: StateTokenPairs, batch: Batch) -> tuple[Ints, Ints]:
    """Return the pair of state and token at every scored position of a batch, and its answer."""
    column = {token: i for i, token in enumerate(found.symbols.tolist())}
    symbols = np.vectorize(lambda token: column.get(token, -1))(batch.tokens)
    state = np.zeros(len(symbols), np.int64)
    before = []
    for t in range(symbols.shape[1]):
        before.append(state)
        state = np.where(symbols[:, t] >= 0, found.next[state, symbols[:, t]], state)
    scored = (batch.targets != IGNORE) & (symbols >= 0)
    pairs = np.stack(before, 1)[scored] * len(found.symbols) + symbols[scored]
    return pairs, batch.targets[scored]


def answers_by_state(found: StateTokenPairs, batch: Batch) -> Ints | None:
    """Return the answer in each state [states], IGNORE if none occurs; None if one has two."""
    pairs, targets = _follow(found, batch)
    return unanimous(found.next.ravel()[pairs], targets, len(found.next))


def find_answers(found: StateTokenPairs, batch: Batch) -> Ints:
    """Return the answer for every state and token, [states symbols]; IGNORE where it is unknown.

    In most tasks the answer depends on the state that the token leads to alone; then all are known.

    Raises:
        CannotRefitError: two answers occur for one state and token.
    """
    by_state = answers_by_state(found, batch)
    if by_state is not None:
        return by_state[found.next.ravel()]
    pairs, targets = _follow(found, batch)
    by_pair = unanimous(pairs, targets, found.next.size)
    if by_pair is None:
        raise CannotRefitError("its states do not determine the answers")
    return by_pair
