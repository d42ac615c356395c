"""Replace the layers of a model by exact ones, first to last, so that it stays as good as it was.

The order matters: once the first layers are exact, the next one has few distinct inputs.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statetrack.errors import UserError
from statetrack.hardening.candidate import NOT_NEEDED, Candidate, Component, Judge, Judged
from statetrack.hardening.inputs import LayerInputs
from statetrack.hardening.readout import (
    CannotRefitError,
    ReadoutData,
    clear_queries,
    list_pairs_for_refit,
    readout_data,
    refit_readout,
)
from statetrack.hardening.widening import widen
from statetrack.layers.inverse import DependentError, independent
from statetrack.models import SequenceModel

MAX_PARTIAL_INCREASE = 0.1  # nats that are allowed while later layers are not exact yet
MAX_RETRIES = 32  # second attempts at a layer, after later layers failed; in the whole search
MAX_SIMPLER = 200  # candidates with one head removed that are judged, if no candidate is good
MAX_LISTED = 32  # exact models whose states are listed for a refit
MAX_REFITS = 4  # readouts that are trained, while none is without a mistake

NO_CANDIDATE = "none of its heads or channels is close enough to an exact one"
WORSE = "every exact model tried is worse at the training lengths"
NO_MEMORY = "it is as good without any memory, so there is nothing to make exact"
STILL_WRONG = "the best exact model still gives wrong answers at the training lengths"


class Progress(NamedTuple):
    """A model whose first layers are exact or without memory."""

    model: SequenceModel  # float64
    loss: float  # in the trained model's dtype
    # of the exact layers:
    inputs: tuple[LayerInputs, ...] = ()
    memoryless: tuple[bool, ...] = ()
    settings: tuple[dict[str, Any], ...] = ()
    components: tuple[Component, ...] = ()
    slow: int = 0
    wrong: int = 0  # answers

    def exact_model(self) -> SequenceModel:
        """Return the model with keys of exactly length 1: see `Mixer.with_unit_keys`."""
        model = self.model
        for inputs, memoryless in zip(self.inputs, self.memoryless, strict=True):
            mixer = inputs.mixer(model)
            made = mixer if memoryless else mixer.with_unit_keys(inputs.x)
            if made is not mixer:
                model = inputs.replace_mixer(model, made)
        return model


@torch.no_grad()
def without_convolution(model: SequenceModel, inputs: LayerInputs) -> Iterator[SequenceModel]:
    """Yield float64 models whose layer has no convolution, or one that only delays its input.

    With a convolution the key, value or step size of an input depends on the inputs before it. In a
    model that tracks a state a token must act the same at every position, so training has made this
    dependence small, or its effects cancel. Hence the output of the convolution is replaced by its
    mean for each input. Each model comes twice, as it is and with a refitted output projection, as
    neither is always better.
    """
    mixer, outputs = inputs.mixer(model), []
    with mixer.get_submodule("conv").register_forward_hook(
        lambda _, args, out: outputs.extend(out[0])
    ):
        _, before = inputs.run(model)
    for delay in mixer.conv_delays:
        means: list[Tensor] = [inputs.mean_by_input(part, delay) for part in outputs]
        made = inputs.replace_mixer(model, mixer.without_conv(inputs.x, means, delay))
        yield made
        yield inputs.with_output(made, before)


class NoCandidateError(Exception):
    """No exact model was found, so the trained one is kept; the message says why."""

    def __init__(
        self, reason: str, progress: Progress, loss: float, components: tuple[Component, ...] = ()
    ) -> None:
        super().__init__(reason)
        self.layer = len(progress.inputs)  # number of the layer that failed
        self.loss = loss  # of the best candidate, inf if there is none
        self.components = (*progress.components, *components)
        self.stopped = False  # whether MAX_RETRIES ended the search before everything was tried

    def __str__(self) -> str:
        end = f" (stopped after {MAX_RETRIES} retries)" if self.stopped else ""
        return super().__str__() + end


class Search:
    """Depth-first search for the first model whose layers are all exact or without memory.

    In a model of several layers each layer is first tried without memory, as another layer may do
    the tracking, and then as an exact one. `roundings` has for each layer the module whose
    `candidates` are tried, `diagonal` or `householder`.
    """

    def __init__(
        self,
        judge: Judge,
        roundings: list[ModuleType],
        orders: Sequence[int],
        on_progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.judge = judge
        self.tell = on_progress
        self.roundings = roundings
        self.orders = orders
        self.several = len(roundings) > 1
        self.retries = 0

    def run(self, progress: Progress, inputs: LayerInputs) -> Progress:
        """Make the layer with these inputs exact, and all after it."""
        failed: list[NoCandidateError] = []
        for attempt in (self._memoryless, self._exact) if self.several else (self._exact,):
            if failed and failed[-1].layer > inputs.layer:
                self.retries += 1
                if self.retries > MAX_RETRIES:
                    failed[-1].stopped = True
                    break
            try:
                return self._continue(attempt(progress, inputs))
            except NoCandidateError as error:
                failed.append(error)
        # report the failure that got furthest; if both got as far, that of the exact layer
        reported = max(reversed(failed), key=lambda error: error.layer)
        reported.loss = min(error.loss for error in failed if error.layer == reported.layer)
        reported.stopped = any(error.stopped for error in failed)
        raise reported

    def _continue(self, progress: Progress) -> Progress:
        """Go on with the next layer, if there is one."""
        if len(progress.inputs) < len(self.roundings):
            return self.run(progress, progress.inputs[-1].next_layer(progress.exact_model()))
        if all(progress.memoryless):
            raise NoCandidateError(NO_MEMORY, progress, progress.loss)
        if all(component.error is None for component in progress.components):
            raise NoCandidateError(NO_CANDIDATE, progress, progress.loss)
        if progress.wrong:
            raise NoCandidateError(f"{STILL_WRONG} ({progress.wrong:,})", progress, progress.loss)
        return progress

    def _memoryless(self, progress: Progress, inputs: LayerInputs) -> Progress:
        """Remove the memory of the layer."""
        mixer = inputs.mixer(progress.model)
        _, before = inputs.run(progress.model)
        if mixer.conv_width > 1:
            mixer = mixer.with_config(conv_size=0)
        made = inputs.replace_mixer(progress.model, mixer.memoryless(inputs.x))
        made = inputs.with_output(made, before)
        whole = Component("", None, NOT_NEEDED, memory_removed=True)  # `_add` names it
        judged = self.judge.judge(Candidate(made, {"memory": "none"}, (whole,), memoryless=True))
        if not judged.good:
            reason = f"{self._name(inputs)}: it needs its memory"
            raise NoCandidateError(reason, progress, judged.loss)
        return self._add(progress, judged, inputs)

    def _exact(self, progress: Progress, inputs: LayerInputs) -> Progress:
        """Replace the layer by the best of its candidates.

        A candidate that is worse than the trained model is taken only if later layers may make up
        for it.
        """

        def failure(
            reason: str, loss: float = math.inf, components: tuple[Component, ...] = ()
        ) -> NoCandidateError:
            reason = f"{self._name(inputs)}: {reason}" if self.several else reason
            return NoCandidateError(reason, progress, loss, components)

        start, conv_reason, settings = progress.model, None, {}
        if not inputs.layer and not independent(inputs.x):
            with suppress(DependentError):
                start, inputs = widen(start, inputs)
        # `next_layer` stops at D + 1 inputs, which are never independent
        if inputs.layer and len(inputs.x) > inputs.x.shape[1]:
            raise failure(_dependent(inputs))
        if inputs.mixer(start).conv_width > 1:
            start, conv_reason = self._without_convolution(start, inputs)
            settings = {"delay": inputs.mixer(start).conv_width - 1}
        candidates = self.roundings[inputs.layer].candidates(start, inputs, self.orders)
        judged: list[Judged] = []
        self.tell(f"layer {inputs.layer}: reading its heads or channels")
        for result in map(self.judge.judge, candidates):
            judged.append(result)
            self.tell(f"layer {inputs.layer}: {len(judged)} roundings tried")
            if result.exact:
                break
        if not judged:
            raise failure(
                conv_reason or (NO_CANDIDATE if independent(inputs.x) else _dependent(inputs))
            )
        if not any(j.exact for j in judged):
            judged += self._refitted(progress, judged, inputs)
        if not any(j.good for j in judged):
            by_loss = sorted(judged, key=lambda j: j.loss)
            made = (c for j in by_loss for c in j.candidate.simpler())
            simpler = [self.judge.judge(c) for c in islice(made, MAX_SIMPLER)]
            judged += simpler
            if not any(j.exact for j in simpler):
                judged += self._refitted(progress, simpler, inputs)
        good = [j for j in judged if j.good]
        if good:
            best = self.judge.simplest(
                min(good, key=lambda j: (j.wrong > 0, j.candidate.inexact, j.loss))
            )
            if best.exact and best.candidate.rotates_about_center and not self.several:
                best = self._without_writes(progress, judged, best, inputs)
        else:
            best = min(judged, key=lambda j: j.loss)
            last = inputs.layer + 1 == len(self.roundings)
            if last or best.loss > self.judge.loss + MAX_PARTIAL_INCREASE:
                raise failure(conv_reason or WORSE, best.loss, best.candidate.components)
        larger_eps = map(self.judge.judge, best.candidate.larger_eps())
        best = next((j for j in larger_eps if j.good), best)
        return self._add(progress, best, inputs, **settings)

    def _without_writes(
        self, progress: Progress, judged: list[Judged], best: Judged, inputs: LayerInputs
    ) -> Judged:
        """Return a candidate with the same heads whose tokens write nothing, if one is exact."""
        heads = best.candidate.exact_heads
        for j in judged:
            if j.candidate.rotates_about_center or j.candidate.inexact != (0, 0):
                continue
            found = j.candidate.keep_only(heads) if j.candidate.exact_heads >= heads else None
            if found is not None:
                made = self._refitted(progress, [self.judge.judge(found)], inputs)
                if any(m.exact for m in made):
                    return made[-1]
        return best

    def _refitted(
        self, progress: Progress, judged: list[Judged], inputs: LayerInputs
    ) -> list[Judged]:
        """Return the best exact candidates with refitted readouts, up to one without a mistake.

        Readouts are refitted in models of one layer only; see `readout`. Of candidates with the
        same exact heads one is tried. Those whose heads are known to determine the answers
        (`inference`) come first.
        """

        def inferred(judged: Judged) -> bool:
            return bool(judged.candidate.settings.get("infer"))

        best: dict[tuple[frozenset[str], bool], Judged] = {}
        for j in sorted(judged, key=lambda j: (not inferred(j), j.loss)):
            if j.candidate.inexact == (0, 0) and not self.several:
                best.setdefault((j.candidate.exact_heads, inferred(j)), j)
        made: list[Judged] = []
        refits = 0
        for old in islice(best.values(), MAX_LISTED):
            if refits == MAX_REFITS:
                break
            self.tell("refitting the readout")
            with suppress(CannotRefitError, DependentError, UserError):
                candidate, data = self._readable(progress, old, inputs)
                refits += 1
                model = refit_readout(candidate.model, data)
                settings = {**candidate.settings, "refitted": True}
                made.append(self.judge.judge(Candidate(model, settings, candidate.components)))
                if made[-1].exact:
                    break
        return made

    def _readable(
        self, progress: Progress, judged: Judged, inputs: LayerInputs
    ) -> tuple[Candidate, ReadoutData]:
        """Return a candidate with clear queries, and the training data of its readout."""
        candidate, batch = judged.candidate, self.judge.batch
        unit_keys = self._add(progress, judged, inputs).exact_model()
        pairs = list_pairs_for_refit(unit_keys, inputs)
        heads = [i for i, c in enumerate(candidate.components) if c.error is not None]
        q = clear_queries(inputs.mixer(unit_keys), inputs, pairs, batch, heads)
        if q is not None:
            candidate = replace(candidate, model=copy.deepcopy(candidate.model))
            for model in (candidate.model, unit_keys):
                inputs.mixer(model).set_queries(inputs.x, q)
        return candidate, readout_data(unit_keys, inputs, pairs, batch)

    def _without_convolution(
        self, model: SequenceModel, inputs: LayerInputs
    ) -> tuple[SequenceModel, str | None]:
        """Return the best model without the layer's convolution; if it is worse, say why."""
        models = without_convolution(model, inputs)
        best = min((self.judge.judge(Candidate(m, {}, ())) for m in models), key=lambda j: j.loss)
        if best.good:
            return best.candidate.model, None
        return best.candidate.model, (  # a rounding of it may be good all the same
            f"its convolution mixes tokens: without it {best.wrong} answers are wrong instead of "
            f"{self.judge.wrong}, with a cross-entropy of {best.loss:.2g}"
        )

    def _add(
        self, progress: Progress, judged: Judged, inputs: LayerInputs, **settings: int
    ) -> Progress:
        """Return the progress after a candidate for the next layer was chosen."""
        made, layer = judged.candidate, self._name(inputs)
        named = (replace(c, name=f"{layer} {c.name}".strip()) for c in made.components)
        return Progress(
            made.model,
            judged.loss,
            (*progress.inputs, inputs),
            (*progress.memoryless, made.memoryless),
            (*progress.settings, {**settings, **made.settings}),
            (*progress.components, *named),
            progress.slow + made.inexact[0],
            judged.wrong,
        )

    def _name(self, inputs: LayerInputs) -> str:
        return f"layer {inputs.layer}" if self.several else ""


def _dependent(inputs: LayerInputs) -> str:
    """Say that a layer's inputs are linearly dependent, so weights cannot set each one's effect."""
    n, D = inputs.x.shape
    if not inputs.layer:
        return f"the embeddings of its {n} tokens are not independent"
    count = f"more than {D}" if n > D else str(n)
    return f"the layers before it give it {count} inputs, which are not independent"
