"""The length up to which a model is right: predicted from its transitions, and measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from statetrack.diagnosis.distinction import Floats, Means
from statetrack.diagnosis.segments import Probe, Segments
from statetrack.models import SequenceModel
from statetrack.training import RunConfig, curve, finite_training_set
from statetrack.training.curves import SOLVED
from statetrack.training.curves import horizon as last_solved

LIMIT = 1_000_000  # tokens; what is right up to here is not followed further
BEYOND = 2  # doublings past the horizon that are still followed, for the figure
LISTED = 8  # heads in the table
TRIED = 16  # heads of which it is tried whether they limit the horizon


def percent(share: float) -> str:
    """0.37 %."""
    return f"{100 * share:.3g} %"


@dataclass(frozen=True)
class Head:
    """How well one head or channel keeps the automaton's state."""

    layer: int
    head: int
    share: float  # of the variance of its memory that the automaton's state explains
    lost: float  # of the distinction, per token
    token: str | None  # that loses most of it, and how much at each reading
    token_lost: float | None

    @property
    def worst(self) -> str:
        """What the worst token loses."""
        return "-" if self.token_lost is None else percent(self.token_lost)


@dataclass(frozen=True)
class Point:
    """What is predicted at one length."""

    length: float
    accuracy: float
    kept: list[list[float | None]]  # by layer and head, of the distinction


@dataclass(frozen=True)
class Prediction:
    """The predicted horizon and what it comes from."""

    trained: int  # the length up to which transitions were computed
    learned: bool  # whether accuracy is at least 0.99 up to there
    horizon: float  # within the training lengths if it is not; LIMIT if nothing is lost up to it
    heads: tuple[Head, ...] = ()
    limiting: Head | None = None  # whose memory, if it had not changed, would help most
    points: tuple[Point, ...] = ()


@dataclass(frozen=True)
class Measurement:
    """The horizon as `statetrack eval --curve` measures it."""

    horizon: int | None  # None: accuracy is below 0.99 at the least length already
    max_length: int
    samples: int


@dataclass(frozen=True)
class Horizon:
    """The length up to which a model is right, as far as it is known."""

    prediction: Prediction | None
    missing: str  # why there is no prediction
    measured: Measurement | None
    remedy: str

    def sentences(self) -> Iterator[str]:
        """The verdict, for people."""
        found, measured = self.prediction, self.measured
        if found is None:
            yield f"The horizon is not predicted: {self.missing}."
        elif not found.learned:
            where = f", from length {found.horizon + 1:,.0f} on" if found.horizon else ""
            yield f"Not learned: accuracy is below 0.99 within the training lengths{where}."
        elif found.horizon >= LIMIT:
            yield f"Predicted horizon: beyond {LIMIT:,} tokens, where the prediction ends."
        else:
            yield f"Predicted horizon: accuracy falls below 0.99 after length {found.horizon:,.0f}."
        if measured is not None and measured.horizon == measured.max_length:
            yield f"Measured horizon: beyond {measured.max_length:,}, the greatest length tried."
        elif measured is not None:
            reached = f"length {measured.horizon:,}" if measured.horizon else "no length"
            how = f"`statetrack eval RUN --curve {measured.max_length}`"
            yield f"Measured horizon: {reached} ({how})."
        if found is not None and found.limiting is not None:
            head = found.limiting
            worst = "" if head.token is None else f", token {head.token} the most ({head.worst})"
            yield (
                f"Layer {head.layer}, head {head.head} limits it: a token loses "
                f"{percent(head.lost)} of what distinguishes the states there{worst}."
            )

    def chosen(self) -> list[Head]:
        """The heads that tell states apart best, and the limiting one."""
        if self.prediction is None:
            return []
        best = sorted(self.prediction.heads, key=lambda head: -head.share)[:LISTED]
        if self.prediction.limiting not in [None, *best]:
            best[-1:] = [self.prediction.limiting]  # type: ignore[list-item]
        return sorted(best, key=lambda head: (head.layer, head.head))

    def table(self) -> tuple[str, list[str], list[list[str]]] | None:
        """Title, columns and rows: a row a head."""
        if self.prediction is None or not self.prediction.heads:
            return None
        columns = [
            "layer",
            "head",
            "state in memory",
            "lost per token",
            "worst token",
            "lost by it",
        ]
        rows = [
            [
                str(head.layer), str(head.head), percent(head.share), percent(head.lost),
                head.token or "-", head.worst,
            ]
            for head in self.chosen()
        ]  # fmt: skip
        count = len(self.prediction.heads)
        some = f", {len(rows)} of {count:,} heads" if len(rows) < count else ""
        return f"Memory of the automaton's state, by head{some}", columns, rows

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        told = {"missing": self.missing, "remedy": self.remedy}
        parts = {"prediction": self.prediction, "measured": self.measured}
        return {k: None if v is None else asdict(v) for k, v in parts.items()} | told


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
    """Predict the horizon from the transitions at the training lengths.

    Raises:
        NotMeasurableError: the task has no automaton, or a layer has no linear memory.
    """
    probe = Probe.of(model, config)
    rng = np.random.default_rng(0)
    means = Means.of(probe)
    points: list[Point] = []

    def solved(segments: Segments) -> bool:
        length = probe.cuts[0] + segments.tokens + (probe.size - probe.cuts[1]) / 2 - probe.lead
        kept = [[_number(v) for v in heads] for heads in means.kept(segments, rng)]
        points.append(Point(length, probe.accuracy(segments, rng), kept))
        return points[-1].accuracy >= SOLVED

    inside = _inside(probe)
    if inside is not None:
        return Prediction(probe.length, learned=False, horizon=inside)
    doubled = [probe.segments]
    while solved(doubled[-1]) and doubled[-1].tokens < LIMIT:
        doubled.append(doubled[-1].then(doubled[-1], rng))
    heads = _heads(probe, means, points[0], rng)
    limiting, horizon = None, float(LIMIT)
    if points[-1].accuracy < SOLVED:
        failing = doubled.pop()
        limiting = _limiting(probe, heads, points[-1], failing, rng)
        horizon = min(horizon, _refine(probe, doubled, solved, rng))
        for _ in range(BEYOND):
            failing = failing.then(failing, rng)
            solved(failing)
    points.sort(key=lambda point: point.length)
    return Prediction(probe.length, True, horizon, heads, limiting, tuple(points))


def _refine(
    probe: Probe,
    doubled: list[Segments],
    solved: Callable[[Segments], bool],
    rng: np.random.Generator,
) -> float:
    """The greatest length that is solved, between the last of the doubled segments and twice it."""
    if not doubled:
        return probe.length
    best = doubled[-1]
    for piece in reversed(doubled[:-1]):
        longer = best.then(piece, rng)
        if solved(longer):
            best = longer
    return max(probe.length, probe.cuts[0] + best.tokens - probe.lead)


def _inside(probe: Probe) -> int | None:
    """The horizon, if it lies within the training lengths."""
    asked = probe.scored.sum(0)
    at = np.flatnonzero(asked)
    accuracy = probe.right.sum(0)[at] / asked[at]
    if (accuracy >= SOLVED).all():
        return None
    return last_solved(at + 1 - probe.lead, accuracy) or 0


def _heads(probe: Probe, means: Means, first: Point, rng: np.random.Generator) -> tuple[Head, ...]:
    found = []
    by_token = means.lost_by_token(probe, rng)
    for layer, shares in enumerate(means.shares(probe)):
        for head, share in enumerate(shares):
            kept = first.kept[layer][head]
            lost = 1 - max(kept or 0.0, 0.0) ** (1 / probe.segments.tokens)
            worst = _worst(by_token[layer][:, head])
            token = None if worst is None else probe.dfa.alphabet[worst]
            most = None if worst is None else float(by_token[layer][worst, head])
            found.append(Head(layer, head, float(share), lost, token, most))
    return tuple(found)


def _worst(lost: Floats) -> int | None:
    return None if np.isnan(lost).all() else int(np.nanargmax(lost))


def _limiting(
    probe: Probe,
    heads: tuple[Head, ...],
    point: Point,
    failing: Segments,
    rng: np.random.Generator,
) -> Head:
    """The head whose memory, put back to what it was at the training lengths, helps most."""

    def gone(head: Head) -> float:
        return head.share * abs(1 - (point.kept[head.layer][head.head] or 0.0))

    tried = sorted(heads, key=gone, reverse=True)[:TRIED]
    seed = rng.integers(1 << 32)  # the same sequences for each

    def accuracy(head: Head) -> float:
        again = np.random.default_rng(seed)
        return probe.accuracy(failing, again, [(head.layer, head.head)])

    return max(tried, key=accuracy)


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
