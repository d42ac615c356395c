"""One layer after the other, from the first on: once it is exact, the next one sees few inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from statetrack.hardening.candidate import Candidate, Part
from statetrack.hardening.convolution import one_token, without_convolution
from statetrack.hardening.judge import Judge, Tried
from statetrack.hardening.outputs import said
from statetrack.hardening.tokens import Seen, independent, window
from statetrack.models import SequenceModel

FAR_OFF = "no part of it comes near enough to an exact one"
WORSE = "every exact model tried is worse at the training lengths"
NO_MEMORY = "it is as good without any memory, so that nothing has to be exact"
NEARLY = 0.1  # nats that a model may lose as long as not all of its layers are exact
MAX_BACK = 32  # times that a layer is tried another way, since none of those after it went on


class Way(NamedTuple):
    """A model whose first layers are exact, the others as they were."""

    model: SequenceModel  # float64
    loss: float  # as it would be written
    seen: tuple[Seen, ...] = ()  # by exact layer, as what follows
    idle: tuple[bool, ...] = ()
    settings: tuple[dict[str, Any], ...] = ()
    parts: tuple[Part, ...] = ()
    slow: int = 0

    def followed_by(self, tried: Tried, seen: Seen, where: str, **extra: int) -> Way:
        """The way with one more layer, and where its parts are."""
        made = tried.candidate
        return Way(
            made.model,
            tried.loss,
            (*self.seen, seen),
            (*self.idle, made.idle),
            (*self.settings, {**extra, **made.settings}),
            (*self.parts, *(part.inside(where) for part in made.parts)),
            self.slow + made.inexact[0],
        )


class NoneIsGoodError(Exception):
    """Why the trained model is kept."""

    def __init__(self, why: str, way: Way, loss: float, parts: tuple[Part, ...] = ()) -> None:
        super().__init__(why)
        self.layer = len(way.seen)  # that did not go on
        self.loss = loss  # of the best that was tried there, inf if nothing was
        self.parts = (*way.parts, *parts)
        self.stopped = False  # before everything was tried

    def __str__(self) -> str:
        end = f" (stopped after going back {MAX_BACK} times)" if self.stopped else ""
        return super().__str__() + end


class Search:
    """For the first way to make all layers of a model exact that leaves it as good as it was.

    Of several layers each is first tried without any memory: what another one knows it need not.
    """

    def __init__(self, judge: Judge, families: list[ModuleType], orders: Sequence[int]) -> None:
        self.judge = judge
        self.families = families
        self.orders = orders
        self.several = len(families) > 1
        self.back = 0

    def finish(self, way: Way, seen: Seen) -> Way:
        """Make the layer that sees this exact, and all after it."""
        failed: list[NoneIsGoodError] = []
        for attempt in (self._idle, self._exact) if self.several else (self._exact,):
            if failed and failed[-1].layer > seen.layer:
                self.back += 1
                if self.back > MAX_BACK:
                    failed[-1].stopped = True
                    break
            try:
                return self._after(attempt(way, seen))
            except NoneIsGoodError as error:
                failed.append(error)
        # what was found out about the last layer that was reached, as an exact one if it was tried
        told = max(reversed(failed), key=lambda error: error.layer)
        told.loss = min(error.loss for error in failed if error.layer == told.layer)
        told.stopped = any(error.stopped for error in failed)
        raise told

    def ideal(self, way: Way) -> SequenceModel:
        """The model that a way stands for: its exact layers without what their form costs."""
        model = way.model
        for family, seen, idle in zip(self.families, way.seen, way.idle, strict=False):
            if not idle:
                model = family.ideal(model, seen)
        return model

    def _after(self, way: Way) -> Way:
        """Go on with the next layer, if there is one."""
        if len(way.seen) < len(self.families):
            return self.finish(way, way.seen[-1].above(self.ideal(way)))
        if all(way.idle):
            raise NoneIsGoodError(NO_MEMORY, way, way.loss)
        if all(part.error is None for part in way.parts):
            raise NoneIsGoodError(FAR_OFF, way, way.loss)
        return way

    def _idle(self, way: Way, seen: Seen) -> Way:
        """The way that goes on with this layer without any memory."""
        start = way.model
        if window(seen.mixer(start)) > 1:
            start = without_convolution(start, seen)
        made = self.families[seen.layer].idle(start, seen, said(way.model, seen))
        tried = self.judge.try_(made)
        if not tried.good:
            raise NoneIsGoodError(f"{self._where(seen)}: it needs its memory", way, tried.loss)
        return way.followed_by(tried, seen, self._where(seen))

    def _exact(self, way: Way, seen: Seen) -> Way:
        """The way that goes on with this layer as the best of its candidates."""

        def no(why: str, loss: float, parts: tuple[Part, ...] = ()) -> NoneIsGoodError:
            why = f"{self._where(seen)}: {why}" if self.several else why
            return NoneIsGoodError(why, way, loss, parts)

        start, mixes, settings = way.model, None, {}
        if seen.layer and len(seen.x) > seen.x.shape[1]:  # there are more than were told apart
            raise no(_dependent(seen), math.inf)
        if window(seen.mixer(start)) > 1:
            start, mixes = self._one_token(start, seen)
            settings = {"delay": window(seen.mixer(start)) - 1}
        tried = list(map(self.judge.try_, self._candidates(start, seen)))
        if not tried:
            far_off = FAR_OFF if independent(seen.x) else _dependent(seen)
            raise no(mixes or far_off, math.inf)
        if not any(t.good for t in tried):
            tried += [self.judge.try_(c) for t in tried for c in t.candidate.fewer()]
        good = [t for t in tried if t.good]
        if good:
            best = self.judge.least(min(good, key=lambda t: (t.candidate.inexact, t.loss)))
        else:
            best = min(tried, key=lambda t: t.loss)
            last = seen.layer + 1 == len(self.families)
            if last or best.loss > self.judge.before + NEARLY:
                raise no(mixes or WORSE, best.loss, best.candidate.parts)
        steadier = map(self.judge.try_, best.candidate.steadier())
        best = next((t for t in steadier if t.good), best)
        return way.followed_by(best, seen, self._where(seen), **settings)

    def _candidates(self, start: SequenceModel, seen: Seen) -> Iterator[Candidate]:
        return self.families[seen.layer].candidates(start, seen, self.orders)

    def _where(self, seen: Seen) -> str:
        """What parts of a layer are called by, if there are several."""
        return f"layer {seen.layer}" if self.several else ""

    def _one_token(self, model: SequenceModel, seen: Seen) -> tuple[SequenceModel, str | None]:
        """The model whose layer looks at one input, and what speaks against it if anything does."""
        alone = [self.judge.try_(Candidate(m, {}, (), (0, 0))) for m in one_token(model, seen)]
        best = min(alone, key=lambda t: t.loss)
        if best.good:
            return best.candidate.model, None
        return best.candidate.model, (  # what is made of it may be good, all the same
            f"its convolution mixes tokens: without it {best.wrong} answers are wrong instead of "
            f"{self.judge.mistakes}, with a cross-entropy of {best.loss:.2g}"
        )


def _dependent(seen: Seen) -> str:
    """Why a layer cannot do with each of its inputs what it should."""
    n, D = seen.x.shape
    if not seen.layer:
        return f"the embeddings of its {n} tokens are not independent"
    count = f"more than {D}" if n > D else str(n)
    return f"the layers before it give it {count} inputs, which are not independent"
