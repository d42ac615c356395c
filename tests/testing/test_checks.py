"""Every check can fail: layers that are wrong in one way are caught by the checks that say so."""

from __future__ import annotations

import threading
import time
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

from statetrack.layers import Diagonal
from statetrack.testing import CHECKS, check_layer
from statetrack.testing.checks import THEMES
from tests.testing.layers import Leaky

COSTLY = {"long_sequences", "fake_tensors", "compile", "export"}
BROKEN: dict[type, set[str]] = {}


def caught_by(*checks: str):
    """Register a broken layer with the checks that must fail, and no others."""

    def add(layer: type) -> type:
        BROKEN[layer] = set(checks)
        return layer

    return add


@caught_by("left_padding", "right_padding", "holes", "fully_masked", "steps_after_padding")
class PaddingLeaksIntoTheState(Leaky):
    def forward(self, x, state=None, *, mask=None):
        if mask is None:
            return super().forward(x, state)
        return super().forward(x.masked_fill(~mask[..., None], 0), state)


@caught_by("left_padding", "holes", "fully_masked", "steps_after_padding", "garbage_in_padding")
class PaddingOnTheLeftCounts(Leaky):
    """Right for padding at the right ends only."""

    def forward(self, x, state=None, *, mask=None):
        if mask is not None:
            count = mask.sum(1)
            mask = (
                torch.arange(mask.shape[1]) < torch.where(mask[:, 0], count, mask.shape[1])[:, None]
            )
        return super().forward(x, state, mask=mask)


@caught_by("garbage_in_padding")
class NaNPassesTheMask(Leaky):
    def forward(self, x, state=None, *, mask=None):
        y, end = super().forward(x, state, mask=mask)
        return y if mask is None else y + 0 * x.sum(1, keepdim=True), end


@caught_by("chunks", "steps", "rows")
class OffByOneAtTheBorder(Leaky):
    """A pass over 5 tokens hands on the state before the last one."""

    def forward(self, x, state=None, *, mask=None):
        y, end = super().forward(x, state, mask=mask)
        if mask is None and x.shape[1] == 5:
            _, end = super().forward(x[:, :-1], state)
        return y, end


@caught_by("long_sequences")
class LosesBitsOverLongSequences(Leaky):
    def forward(self, x, state=None, *, mask=None):
        y, end = super().forward(x, state, mask=mask)
        return (y, end) if x.shape[1] < 100 else (y * 1.001, end)


@caught_by("steps", "single_token", "steps_after_padding", "state_gradients", "hooks")
class StepHasAnotherScale(Leaky):
    def forward(self, x, state=None, *, mask=None):
        y, end = super().forward(x, state, mask=mask)
        return 1.01 * y, end


class Steps:
    """A decoder that takes a layer's steps."""

    def __init__(self, layer, scale=1.0, write=0.0):
        self.layer, self.scale, self.write = layer, scale, write

    def step(self, x_t, state):
        y_t, after = self.layer.step(x_t, state)
        state += self.write
        return self.scale * y_t, after


@caught_by("decoder")
class DecoderHasAnotherScale(Leaky):
    def decoder(self, batch):
        return Steps(self, scale=1.01)


@caught_by("decoder")
class DecoderWritesIntoTheStateItIsGiven(Leaky):
    def decoder(self, batch):
        return Steps(self, write=1e-12)


@caught_by()
class DecoderIsRight(Leaky):
    def decoder(self, batch):
        return Steps(self)


@caught_by("first_state", "steps_after_padding")
class StartsSomewhereElse(Leaky):
    def forward(self, x, state=None, *, mask=None):
        return super().forward(
            x, self.init_state(len(x)) + 1e-7 if state is None else state, mask=mask
        )


@caught_by("rows", "single_token")
class MixesRows(Leaky):
    def forward(self, x, state=None, *, mask=None):
        y, end = super().forward(x, state, mask=mask)
        return (y, end) if mask is not None else (y + 0.1 * (len(x) == 3) * y.mean(0), end)


@caught_by("states_kept")
class WritesIntoTheStateItIsGiven(Leaky):
    def step(self, x_t, state):
        y_t, after = super().step(x_t, state.clone())
        if not torch.is_grad_enabled() and len(state) == 3 and state.dtype == torch.float64:
            state.add_(1e-12)
        return y_t, after


@caught_by("finite_differences", "state_gradients", "forward_mode", "double_backward")
class WrongGradient(Leaky):
    def forward(self, x, state=None, *, mask=None):
        y, end = super().forward(x, state, mask=mask)
        return y + 0.01 * (y - y.detach()), end


@caught_by("float32", "long_sequences")
class LosesBitsInFloat32(Leaky):
    def forward(self, x, state=None, *, mask=None):
        y, end = super().forward(x, state, mask=mask)
        return (y * 1.001 if x.dtype == torch.float32 and x.shape[1] >= 40 else y), end


@caught_by("state_gradients")
class DropsTheGradientOfTheState(Leaky):
    def forward(self, x, state=None, *, mask=None):
        if state is not None and not state.is_leaf and x.shape[1] == 4:
            state = state.detach()
        return super().forward(x, state, mask=mask)


@caught_by("float16")
class OverflowsInFloat16(Leaky):
    def step(self, x_t, state):
        y_t, state = super().step(x_t, state)
        return y_t * 1e5 / 1e5, state


@caught_by("bfloat16")
class RefusesBFloat16(Leaky):
    def forward(self, x, state=None, *, mask=None):
        if x.dtype == torch.bfloat16:
            raise TypeError("no bfloat16")
        return super().forward(x, state, mask=mask)


@caught_by("autocast")
class ForgetsUnderAutocast(Leaky):
    def step(self, x_t, state):
        return super().step(x_t, 0 * state if torch.is_autocast_enabled("cpu") else state)


@caught_by("forward_mode")
class ForwardModeIsZero(Leaky):
    def forward(self, x, state=None, *, mask=None):
        y, end = super().forward(x, state, mask=mask)
        return (y.detach() if forward_ad._current_level >= 0 else y), end


class Twice(torch.autograd.Function):
    """The square, whose backward unpacks what it saved twice."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return grad * (ctx.saved_tensors[0] + ctx.saved_tensors[0])

    @staticmethod
    def jvp(ctx, tangent: Tensor) -> Tensor:
        raise NotImplementedError  # which the check of forward mode must catch


@caught_by("checkpointing", "forward_mode")
class UnpacksTwice(Leaky):
    def forward(self, x, state=None, *, mask=None):
        y, end = super().forward(x, state, mask=mask)
        return y + 0 * Twice.apply(y), end


@caught_by("reentrant_checkpointing")
class CountsItsPasses(Leaky):
    """A pass without gradients counts, and the next with gradients sees the count."""

    passes = 0

    def forward(self, x, state=None, *, mask=None):
        y, end = super().forward(x, state, mask=mask)
        if x.shape[:2] == (2, 12) and x.dtype == torch.float32:
            self.passes += not torch.is_grad_enabled()
            if torch.is_grad_enabled() and x.requires_grad and x.is_leaf:
                y = y * (1 + self.passes)
        return y, end


@caught_by("vmap", "per_sample_gradients", "meta", "fake_tensors", "export")
class ReadsItsNumbers(Leaky):
    def forward(self, x, state=None, *, mask=None):
        y, end = super().forward(x, state, mask=mask)
        return (y if float(x.detach().norm()) != -1 else -y), end


@caught_by("compile", "export")
class DiffersWhenCompiled(Leaky):
    def forward(self, x, state=None, *, mask=None):
        y, end = super().forward(x, state, mask=mask)
        return (1.01 * y if torch.compiler.is_compiling() else y), end


@caught_by("determinism", "first_state")
class Nondeterministic(Leaky):
    calls = 0

    def forward(self, x, state=None, *, mask=None):
        self.calls += 1
        y, end = super().forward(x, state, mask=mask)
        return y * (1 + 1e-14 * self.calls), end


@caught_by("deepcopy")
class CopiesShareWeights(Leaky):
    def __deepcopy__(self, memo):
        return self


@caught_by("state_dict")
class KeepsAWeightToItself(Leaky):
    def __init__(self, hidden_size):
        super().__init__(hidden_size)
        self.hidden_weight = torch.rand(())

    def step(self, x_t, state):
        y_t, state = super().step(x_t, state)
        return y_t * self.hidden_weight, state


@caught_by("hooks")
class IgnoresHooks(Leaky):
    def step(self, x_t, state):
        state = torch.sigmoid(self.gate(x_t)) * state + self.write(x_t)
        return F.linear(state, self.read.weight, self.read.bias), state


@caught_by("dispatch_modes")
class HidesItsOperations(Leaky):
    """A step past dispatch modes, outside of a pass; with the same numbers."""

    inside = False

    def forward(self, x, state=None, *, mask=None):
        self.inside = True
        try:
            return super().forward(x, state, mask=mask)
        finally:
            self.inside = False

    def step(self, x_t, state):
        if self.inside:
            return super().step(x_t, state)
        with _disable_current_modes():
            return super().step(x_t, state)


@caught_by("threads")
class SharesABufferBetweenThreads(Leaky):
    def step(self, x_t, state):
        if threading.current_thread() is threading.main_thread():
            return super().step(x_t, state)
        self.buffer = x_t
        time.sleep(1e-4)
        return super().step(self.buffer, state)


@caught_by("eigenvalues")
class BoundsAreTooNarrow(Leaky):
    def transitions(self, x):
        return Diagonal(torch.sigmoid(self.gate(x))[:, :, None], bounds=(0.0, 0.5))


@caught_by("negative_eigenvalues")
class NeverBelowZero(Leaky):
    def transitions(self, x):
        return Diagonal(torch.sigmoid(self.gate(x))[:, :, None], bounds=(-1.0, 1.0))


@caught_by("packed")
class IgnoresCuSeqlens(Leaky):
    unsupported: ClassVar = {}

    def forward(self, x, state=None, *, mask=None, cu_seqlens=None):
        return super().forward(x, state, mask=mask)


@pytest.mark.parametrize("layer", BROKEN, ids=lambda layer: layer.__name__)
def test_a_broken_layer_is_caught_by_its_checks(layer):
    """And by no others of the same themes."""
    expected = BROKEN[layer]
    themes = [vars(theme).keys() for theme in THEMES if expected & vars(theme).keys()]
    related = CHECKS.keys() & set().union({"decoder"}, *themes)
    report = check_layer(lambda: layer(8), only=related - (COSTLY - expected))
    assert {result.check for result in report.failures} == expected


def test_every_check_catches_something():
    assert set().union(*BROKEN.values()) == CHECKS.keys()
