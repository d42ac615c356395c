"""One layer after the other, from the first on: once it is exact, the next one sees few inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

from statetrack.models import SequenceModel
from statetrack.theory.hardening.candidate import Candidate, Part
from statetrack.theory.hardening.convolution import one_token, without_convolution
from statetrack.theory.hardening.judge import Judge, Tried
from statetrack.theory.hardening.tokens import Seen, independent, window

FAR_OFF = "no part of it comes near enough to an exact one"
NEARLY = 0.1  # nats that a model may lose as long as not all of its layers are exact
WORSE = "every exact model tried is worse at the training lengths"


class Way(NamedTuple):
    """A model whose first layers are exact, the others as they were."""

    model: SequenceModel  # float64
    loss: float  # as it would be written
    seen: tuple[Seen, ...] = ()  # by exact layer, as the rest
    settings: tuple[dict[str, Any], ...] = ()
    parts: tuple[Part, ...] = ()
    slow: int = 0


class NoneIsGoodError(Exception):
    """Why the trained model is kept."""

    def __init__(self, why: str, loss: float, layer: int, parts: tuple[Part, ...] = ()) -> None:
        super().__init__(why)
        self.loss = loss  # of the best that was tried
        self.layer = layer  # that cannot be made exact
        self.parts = parts


class Search:
    """For the first way to make all layers of a model exact that leaves it as good as it was.

    Of several layers each is first tried without any memory: what another one knows it need not.
    """

    def __init__(self, judge: Judge, families: list[ModuleType], orders: Sequence[int]) -> None:
        self.judge = judge
        self.families = families
        self.orders = orders
        self.several = len(families) > 1

    def finish(self, way: Way, seen: Seen) -> Way:
        """Make the layer that sees this exact, and all after it."""
        failed = []
        try:
            for further in self._further(way, seen):
                try:
                    return self._after(further)
                except NoneIsGoodError as error:
                    failed.append(error)
        except NoneIsGoodError as error:
            failed.append(error)
        raise min(failed, key=lambda error: (-error.layer, error.loss))

    def ideal(self, way: Way) -> SequenceModel:
        """The model that a way stands for: its exact layers without what their form costs."""
        model = way.model
        for family, seen in zip(self.families, way.seen, strict=False):
            model = family.ideal(model, seen)
        return model

    def _after(self, way: Way) -> Way:
        """Go on with the next layer, if there is one."""
        if len(way.seen) < len(self.families):
            return self.finish(way, way.seen[-1].above(self.ideal(way)))
        if all(part.error is None for part in way.parts):
            raise NoneIsGoodError(FAR_OFF, self.judge.before, len(way.seen))
        return way

    def _further(self, way: Way, seen: Seen) -> Iterator[Way]:
        """How to go on with this layer, or a NoneIsGoodError that says why it goes no further."""

        def with_(tried: Tried, **extra: int) -> Way:
            made, where = tried.candidate, f"layer {seen.layer} " if self.several else ""
            named = (replace(part, name=where + part.name) for part in made.parts)
            return Way(
                made.model,
                tried.loss,
                (*way.seen, seen),
                (*way.settings, {**extra, **made.settings}),
                (*way.parts, *named),
                way.slow + made.inexact[0],
            )

        def no(why: str, loss: float, parts: tuple[Part, ...] = ()) -> NoneIsGoodError:
            why = f"layer {seen.layer}: {why}" if self.several else why
            return NoneIsGoodError(why, loss, seen.layer, (*way.parts, *parts))

        family = self.families[seen.layer]
        convolved, least = window(seen.mixer(way.model)) > 1, self.judge.before
        if self.several:
            plain = without_convolution(way.model, seen) if convolved else way.model
            idle = self.judge.try_(family.idle(plain, seen))
            least = idle.loss
            if idle.good:
                yield with_(idle)
        if len(seen.x) > seen.x.shape[1]:  # there may be more: not all were told apart
            raise no(_dependent(seen), least)
        start, mixes = self._one_token(way.model, seen) if convolved else (way.model, None)
        tried = [self.judge.try_(c) for c in family.candidates(start, seen, self.orders)]
        if not tried:
            far = FAR_OFF if independent(seen.x) else _dependent(seen)
            raise no(mixes or far, least)
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
        delay = {"delay": window(seen.mixer(start)) - 1} if convolved else {}
        yield with_(next((t for t in steadier if t.good), best), **delay)

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
