"""Make a trained model exact.

The steps: check that every layer can be hardened; find the distinct inputs of the first layer;
search, layer by layer, for a rounding that leaves the model as good as it was (`search`, with the
candidates of `householder` and `diagonal`), with more dimensions (`widening`) and another readout
(`readout`) where it needs them; report what was done (`report`). The automaton of the exact model
can then be read off (`automaton`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from types import ModuleType

import numpy as np
import torch

from statetrack.config import at_least
from statetrack.devices import cpu_copy, device_of, on_cpu
from statetrack.diagnosis.spectrum import decay_length, oscillating
from statetrack.errors import UserError, check_type
from statetrack.hardening import diagonal, householder
from statetrack.hardening.candidate import SLOW, Judge
from statetrack.hardening.inputs import LayerInputs, block_of
from statetrack.hardening.report import DecayLengths, Hardened
from statetrack.hardening.search import NoCandidateError, Progress, Search
from statetrack.layers import Diagonal, HouseholderProduct, Mixer
from statetrack.models import SequenceModel, check_finite
from statetrack.tasks import Batch

DECAY_SEQUENCES = 64  # whose eigenvalues are read for decay lengths


def check_orders(orders: Sequence[int]) -> None:
    """Raise a UserError unless `orders` is a list of whole numbers of at least 1."""
    check_type("orders", orders, (tuple, list), "a list of whole numbers")
    if not orders:
        raise UserError("orders must have at least one m")
    for m in orders:
        check_type("an order", m, int, "a whole number")
        at_least("an order", m, 1)


@torch.no_grad()
@on_cpu()
def harden(
    model: SequenceModel,
    validation: Batch,
    *,
    orders: Sequence[int] = (1, 2, 3),
    on_progress: Callable[[str], None] = lambda text: None,
) -> Hardened:
    """Make a trained model exact, so that it is as good at every length as at the training lengths.

    It works for layers in [-1, 1] that define how they are hardened (`Mixer.hardening_obstacle`):
    DeltaNet, DeltaProduct, their gated forms, Mamba, GLA and the diagonal RNN. Several roundings
    are tried. The first is taken that is exact and as good on `validation`: no mistake, and a
    cross-entropy at most MAX_LOSS_INCREASE greater. If there is none, the one with the fewest
    inexact heads or channels is taken. If all make mistakes, the model is kept. The result is an
    ordinary model, exact for the tokens of `validation`; its answers to other tokens are arbitrary.
    The given model is not changed. The search consists of many small float64 computations, so it
    runs on the CPU wherever the model is.

    Args:
        model: a trained model.
        validation: sequences of the training lengths, as `task.sample` draws them.
        orders: the m such that two reflections may be pi / m apart, in layers with one reflection
            per token; 1, 2 and 3 suit permutations.
        on_progress: called about once a second with a text that names the current step.

    Returns:
        The new model, on the device of the given one, or, with `changed` False, the given one and
        the reason; print it for a report.

    Raises:
        UserError: a layer cannot be hardened, or a weight is NaN or infinite.

    Example, which docs/hardening.md has in full::

        result = harden(model, task.sample(generator(0, "validation", 0), np.full(256, 40)))
        print(result)
        Hardened: the model is as good at its training lengths as before.
        ...
    """
    check_orders(orders)
    if not isinstance(model, SequenceModel) or not isinstance(validation, Batch):
        got = f"{type(model).__name__} and {type(validation).__name__}"
        raise UserError(f"harden takes a SequenceModel and a Batch of sequences; got {got}")
    check_finite(model)
    given, device = model, device_of(model)
    model = cpu_copy(model)
    roundings = find_roundings(model)
    wide = copy.deepcopy(model).double()  # weights are rounded to the model's dtype at the end
    inputs = LayerInputs.of_tokens(wide, validation)
    before = measure_decay(model, inputs)
    judge = Judge(model, validation)
    mistakes = judge.wrong, judge.scored
    try:
        found = Search(judge, roundings, orders, on_progress).run(
            Progress(wide, judge.loss), inputs
        )
    except NoCandidateError as error:
        loss = error.loss if math.isfinite(error.loss) else judge.loss
        return Hardened(
            given,
            wide,
            inputs,
            loss=(judge.loss, loss),
            mistakes=mistakes,
            decay_length=(before, before),
            components=error.components,
            reason=str(error),
        )
    made = judge.rounded(found.model)
    after = measure_decay(made, inputs)
    return Hardened(
        made.to(device),
        found.exact_model(),
        inputs,
        loss=(judge.loss, found.loss),
        mistakes=mistakes,
        decay_length=(before, after),
        components=found.components,
        settings=found.settings,
        memoryless=tuple(i for i, memoryless in enumerate(found.memoryless) if memoryless),
        slow=found.slow,
    )


def find_roundings(model: SequenceModel) -> list[ModuleType]:
    """Return by layer the module that rounds it: `diagonal` or `householder`.

    Raises:
        UserError: a layer cannot be hardened.
    """
    return [_find_rounding(block_of(model, i).mixer) for i in range(len(model.blocks))]


def _find_rounding(mixer: Mixer) -> ModuleType:
    obstacle = mixer.hardening_obstacle()
    if obstacle is None:
        x = next(mixer.parameters()).new_zeros(1, 1, mixer.hidden_size)
        transition = mixer.transitions(x)
        if isinstance(transition, HouseholderProduct):
            return householder
        if isinstance(transition, Diagonal):
            return diagonal
        obstacle = "its transitions are neither diagonal nor products of Householder factors"
    raise UserError(f"{mixer.config.title} cannot be hardened: {obstacle}")


def measure_decay(model: SequenceModel, inputs: LayerInputs) -> DecayLengths | None:
    """Return the shortest and the longest decay length over all heads and channels, in fp32.

    Only negative or non-real eigenvalues count. The modulus of a head or channel at a token is the
    largest of theirs; a modulus 1 + e counts as 1 - e. The smallest modulus above SLOW over all
    recurring tokens gives the decay length. None if no head or channel has such a modulus.
    """
    index = inputs.index[:DECAY_SEQUENCES]
    here = (index >= 0) & inputs.recurring[index]
    worst: list[float] = []
    for transition in model.transitions(inputs.tokens[:DECAY_SEQUENCES]):
        assert transition is not None
        values = transition.eigvals()[here].numpy()  # [N, ..., eigenvalues]
        if isinstance(transition, Diagonal):
            values = values[..., None]
        moduli = np.where(oscillating(values, 1e-4), np.abs(values), 0.0).max(-1)
        moduli = 1 - np.abs(1 - moduli)
        least = np.where(moduli > SLOW, moduli, np.inf).min(0)  # by head or channel
        worst += least[least < np.inf].tolist()
    if not worst:
        return None
    return DecayLengths(*(decay_length(end(worst), "fp32") for end in (min, max)))
