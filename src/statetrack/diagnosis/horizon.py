"""The horizon, the longest length at which accuracy stays >= 0.99: predicted and measured.

The measurement runs the model on long sequences. The prediction runs it on sequences of the largest
training length only, and composes the affine maps of their memory to longer ones (`segments`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from statetrack.diagnosis.retention import StateMeans
from statetrack.diagnosis.segments import Probe, Segments
from statetrack.models import SequenceModel
from statetrack.training import RunConfig, curve, finite_training_set
from statetrack.training.curves import SOLVED
from statetrack.training.curves import horizon as horizon_of_curve

MAX_HORIZON = 1_000_000  # tokens; no longer sequences are predicted
EXTRA_DOUBLINGS = 2  # predicted past the horizon, for the figure
LISTED_HEADS = 8  # rows of the table
TRIED_HEADS = 16  # candidates for the limiting head


def percent(share: float) -> str:
    """Format a share with three digits: 0.00372 is "0.372 %"."""
    return f"{100 * share:.3g} %"


@dataclass(frozen=True)
class HeadMemory:
    """How well the memory of one head or channel retains the DFA's state.

    The difference between states is that of the head's mean memories in two states of the DFA; see
    `retention`.
    """

    layer: int
    head: int
    share: float  # of the variance of its memory that the DFA's state explains
    lost: float  # share of the difference between states that an average token erases
    token: str | None  # the token that erases most
    token_lost: float | None  # the share that this token erases each time it is read

    @property
    def name(self) -> str:
        """For example "layer 0, head 1"."""
        return f"layer {self.layer}, head {self.head}"


@dataclass(frozen=True)
class Point:
    """The prediction at one length."""

    length: float
    accuracy: float
    # [layer][head]: the share of the difference between states that is left; None if it has none
    retained: list[list[float | None]]


@dataclass(frozen=True)
class Prediction:
    """The predicted horizon and its causes."""

    learned: bool  # whether accuracy is at least 0.99 up to the largest training length
    horizon: float  # MAX_HORIZON if it lies beyond
    heads: tuple[HeadMemory, ...] = ()
    limiting: HeadMemory | None = None  # the head whose memory, if restored, raises accuracy most
    points: tuple[Point, ...] = ()


@dataclass(frozen=True)
class Measurement:
    """The horizon as `statetrack eval --curve` measures it."""

    horizon: int | None  # None: accuracy is below 0.99 at the shortest length
    max_length: int
    samples: int

    @property
    def beyond(self) -> bool:
        """Whether accuracy is still >= 0.99 at the largest length tried."""
        return self.horizon == self.max_length


@dataclass(frozen=True)
class Horizon:
    """The predicted and the measured horizon of a run's model."""

    task: str  # "" for a model without a run
    trained: int  # the largest training length
    prediction: Prediction | None
    missing: str  # why there is no prediction
    measured: Measurement | None
    remedy: str

    def sentences(self) -> Iterator[str]:
        """The verdict, then the numbers."""
        if not self.task:
            return
        predicted, measured = self.prediction, self.measured
        trained = f"it was trained on lengths up to {self.trained:,}"
        if predicted is not None and not predicted.learned:
            where = f" after length {predicted.horizon:,.0f}" if predicted.horizon else ""
            yield (
                f"This model has not learned {self.task}: accuracy is below 0.99{where}, within "
                f"the training lengths (up to {self.trained:,})."
            )
        elif reached := self._reached():
            yield f"This model tracks {self.task} to {reached} tokens; {trained}."
        elif measured is not None:
            yield f"This model does not track {self.task} at any length; {trained}."
        if predicted is None:
            yield f"The horizon is not predicted: {self.missing}."
        elif predicted.learned:
            beyond = "beyond " * (predicted.horizon >= MAX_HORIZON)
            yield f"Predicted horizon: {beyond}{predicted.horizon:,.0f}."
        if measured is not None:
            value = f"{measured.horizon:,}" if measured.horizon else "none"
            command = f"`statetrack eval RUN --curve {measured.max_length}`"
            yield f"Measured horizon: {'beyond ' * measured.beyond}{value} ({command})."
        if predicted is not None and (head := predicted.limiting) is not None:
            yield (
                f"{head.name.capitalize()} limits it: each token loses {percent(head.lost)} of the "
                f"difference between states there" + _worst_token(head)
            )

    def _reached(self) -> str:
        """Return the horizon in words, "" if there is none.

        It is the measured one; if accuracy was still 0.99 at the largest length tried, it is the
        predicted one.
        """
        measured = self.measured
        if measured is not None and not measured.beyond:
            return f"about {measured.horizon:,}" if measured.horizon else ""
        tried = 0 if measured is None else measured.max_length
        predicted = 0.0 if self.prediction is None else self.prediction.horizon
        if tried < predicted < MAX_HORIZON:
            return f"about {predicted:,.0f}"
        most = max(tried, predicted)
        return f"more than {most:,.0f}" if most else ""

    def listed_heads(self) -> list[HeadMemory]:
        """The heads whose memory holds most of the state, and the limiting one."""
        if self.prediction is None:
            return []
        best = sorted(self.prediction.heads, key=lambda head: -head.share)[:LISTED_HEADS]
        limiting = self.prediction.limiting
        if limiting is not None and limiting not in best:
            best[-1] = limiting
        return sorted(best, key=lambda head: (head.layer, head.head))

    def table(self) -> tuple[str, list[str], list[list[str]]] | None:
        """Title, columns and rows, one row per head."""
        if self.prediction is None or not self.prediction.heads:
            return None
        names = "layer,head,state in memory,lost per token,worst token,lost by it"
        rows = [
            [
                str(head.layer), str(head.head), percent(head.share), percent(head.lost),
                head.token or "-", "-" if head.token_lost is None else percent(head.token_lost),
            ]
            for head in self.listed_heads()
        ]  # fmt: skip
        count = len(self.prediction.heads)
        some = f", {len(rows)} of {count:,} heads" if len(rows) < count else ""
        return f"Memory of the DFA's state, by head{some}", names.split(","), rows


def _worst_token(head: HeadMemory) -> str:
    if head.token is None or head.token_lost is None:
        return "."
    return f", token {head.token} the most ({percent(head.token_lost)})."


def measure_horizon(
    model: SequenceModel, config: RunConfig, max_length: int, samples: int
) -> Measurement:
    """Measure accuracy by length, as `statetrack eval --curve` does."""
    found = curve(
        model,
        config.task,
        max_length,
        samples=samples,
        data_seed=config.training.data_seed,
        exclude=finite_training_set(config),
    )
    return Measurement(found.horizon, max_length, samples)


def predict_horizon(model: SequenceModel, config: RunConfig) -> Prediction:
    """Predict the horizon from sequences of the largest training length.

    Each is cut into a prefix, a segment and a suffix. Segments are composed with each other, which
    doubles their length, until accuracy on suffixes after them is below 0.99. A bisection, which
    appends shorter segments to the longest solved ones, then finds the length where it falls.

    Raises:
        NotPredictableError: the task has no DFA, or a layer has no linear memory.
    """
    probe = Probe.of(model, config)
    rng = np.random.default_rng(0)
    means = StateMeans.of(probe)
    points: list[Point] = []

    def solved(segments: Segments) -> bool:
        """Whether suffixes are answered after these segments; also append to `points`."""
        # accuracy is a mean over the suffix, so the point lies at the suffix's middle
        length = probe.cuts[0] + segments.tokens + (probe.size - probe.cuts[1]) / 2 - probe.lead
        retained = [
            [float(v) if np.isfinite(v) else None for v in heads]
            for heads in means.retained(segments, rng)
        ]
        points.append(Point(length, probe.accuracy(segments, rng), retained))
        return points[-1].accuracy >= SOLVED

    within = _horizon_within_training(probe)
    if within is not None:
        return Prediction(learned=False, horizon=within)
    doubled = [probe.segments]
    while solved(doubled[-1]) and doubled[-1].tokens < MAX_HORIZON:
        doubled.append(doubled[-1].then(doubled[-1], rng))
    heads = _heads(probe, means, points[0], rng)
    limiting, horizon = None, float(MAX_HORIZON)
    if points[-1].accuracy < SOLVED:
        failing = doubled.pop()
        limiting = _limiting_head(probe, heads, points[-1], failing, rng)
        horizon = min(horizon, _bisect(probe, doubled, solved, rng))
        for _ in range(EXTRA_DOUBLINGS):
            failing = failing.then(failing, rng)
            solved(failing)  # only for its point
    points.sort(key=lambda point: point.length)
    return Prediction(True, horizon, heads, limiting, tuple(points))


def _bisect(
    probe: Probe,
    doubled: list[Segments],
    solved: Callable[[Segments], bool],
    rng: np.random.Generator,
) -> float:
    """Return the horizon, given that `doubled` are solved and twice the last of them is not.

    The length is that of prefix and segment, without the suffix, and at least the training length.
    """
    if not doubled:
        return probe.length
    best = doubled[-1]
    for piece in reversed(doubled[:-1]):
        longer = best.then(piece, rng)
        if solved(longer):
            best = longer
    return max(probe.length, probe.cuts[0] + best.tokens - probe.lead)


def _horizon_within_training(probe: Probe) -> int | None:
    """The horizon, if it is less than the largest training length."""
    scored = probe.scored.sum(0)
    positions = np.flatnonzero(scored)
    accuracy = probe.right.sum(0)[positions] / scored[positions]
    if (accuracy >= SOLVED).all():
        return None
    return horizon_of_curve(positions + 1 - probe.lead, accuracy) or 0


def _heads(
    probe: Probe, means: StateMeans, first: Point, rng: np.random.Generator
) -> tuple[HeadMemory, ...]:
    found = []
    by_token = means.lost_by_token(probe, rng)
    for layer, shares in enumerate(means.explained(probe)):
        for head, share in enumerate(shares):
            retained = max(first.retained[layer][head] or 0.0, 0.0)
            lost = 1 - retained ** (1 / probe.segments.tokens)  # the geometric mean per token
            losses = by_token[layer][:, head]
            token, most = None, None
            if not np.isnan(losses).all():
                worst = int(np.nanargmax(losses))
                token, most = probe.dfa.alphabet[worst], float(losses[worst])
            found.append(HeadMemory(layer, head, float(share), lost, token, most))
    return tuple(found)


def _limiting_head(
    probe: Probe,
    heads: tuple[HeadMemory, ...],
    point: Point,
    failing: Segments,
    rng: np.random.Generator,
) -> HeadMemory:
    """Return the head that raises accuracy most if its memory is restored.

    Restored means replaced by the memory of a sequence of the training length that leaves the DFA
    in the same state. Only the TRIED_HEADS with the largest loss are tried.
    """

    def lost(head: HeadMemory) -> float:
        return head.share * abs(1 - (point.retained[head.layer][head.head] or 0.0))

    tried = sorted(heads, key=lost, reverse=True)[:TRIED_HEADS]
    seed = rng.integers(1 << 32)  # every head is tried on the same sequences

    def accuracy(head: HeadMemory) -> float:
        return probe.accuracy(failing, np.random.default_rng(seed), [(head.layer, head.head)])

    return max(tried, key=accuracy)
