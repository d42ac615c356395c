"""Back-propagation over chunks gives the loss, states and gradients of the plain backward pass."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree

from statetrack.errors import UserError
from statetrack.layers import MIXERS, Mixer
from statetrack.layers.base import VARIANT_SIZE
from statetrack.models import (
    ModelConfig,
    SequenceModel,
    chunk_cross_entropy,
    chunked_backward,
    chunked_forward,
)
from statetrack.models.chunk_starts import ChunkStarts
from statetrack.testing.inputs import draw
from tests.models.common import (
    ATTENTION,
    DELTA,
    MAMBA,
    MODELS,
    assert_same_states,
    make_model,
    small,
    tokens,
)
from tests.ops.common import assert_all_close, assert_close

T = 10
EVERY = [
    pytest.param(variant, id=variant.description)
    for config in MIXERS.values()
    for variant in dict.fromkeys(
        replace(variant, allow_neg_eigval=allow)
        for variant in config.variants()
        for allow in ((False,) if config.no_switch else (False, True))
    )
]


def some_targets(batch: int = 2, length: int = T) -> Tensor:
    """Targets with ignored ones; the last four positions have none."""
    targets = tokens(batch, length, seed=5)
    targets[0, 2:6] = -100
    targets[:, -4:] = -100
    return targets


def gradients(model: torch.nn.Module, backward: Callable[[], Any]) -> dict[str, Tensor]:
    """The gradients of all parameters that `backward` computes."""
    model.zero_grad(set_to_none=True)
    backward()
    return computed(model)


def computed(model: torch.nn.Module) -> dict[str, Tensor]:
    """The gradients that the parameters have, each by its name."""
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert found
    return found


def plain_loss(
    model: SequenceModel, x: Tensor, targets: Tensor, state: Any = None, **layout: Any
) -> Tensor:
    logits, _ = model(x, state, **layout)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def assert_same_gradients(
    model: SequenceModel, x: Tensor, targets: Tensor, chunks: tuple[int, ...], **layout: Any
) -> None:
    expected = gradients(model, lambda: plain_loss(model, x, targets, **layout).backward())
    loss, (_, end) = plain_loss(model, x, targets, **layout), model(x, **layout)
    for chunk in chunks:
        model.zero_grad(set_to_none=True)
        found, state = chunked_backward(model, x, chunk_cross_entropy(targets), chunk, **layout)
        assert_close(found, loss.detach(), 1e-12, f"the loss in chunks of {chunk}")
        assert_all_close(computed(model), expected, 1e-10)
        last = tuple(type(s)(*(part[-1:] for part in s)) for s in end)
        assert_same_states(state, last if "cu_seqlens" in layout else end)
        assert not any(part.requires_grad for part in pytree.tree_leaves(state))


@pytest.mark.parametrize("config", EVERY)
def test_every_mixer(config):
    model = make_model(small(mixer=config, hidden_size=VARIANT_SIZE))
    assert_same_gradients(model, tokens(2, T), some_targets(), (1, 3, 20))


@pytest.mark.parametrize("config", EVERY)
def test_gradient_of_the_first_state(config):
    model = make_model(small(mixer=config, hidden_size=VARIANT_SIZE))
    x, targets = tokens(2, T), some_targets()
    with torch.no_grad():
        _, start = model(tokens(2, 4, seed=9))

    def run(backward: Callable[[Any], Any]) -> dict[str, Tensor]:
        state = pytree.tree_map(variable, start)
        found = gradients(model, lambda: backward(state))
        parts = pytree.tree_leaves(state)
        return found | {f"part {i}": p.grad for i, p in enumerate(parts) if p.grad is not None}

    expected = run(lambda state: plain_loss(model, x, targets, state).backward())
    assert any(name.startswith("part") for name in expected)
    for chunk in (4, T):
        goal = chunk_cross_entropy(targets)
        found = run(lambda state: chunked_backward(model, x, goal, chunk, state=state))  # noqa: B023
        assert_all_close(found, expected, 1e-10)


def variable(part: Tensor) -> Tensor:
    return part.clone().requires_grad_(part.is_floating_point())


@pytest.mark.parametrize("mixer", [DELTA, MAMBA, ATTENTION], ids=lambda mixer: mixer.name)
def test_gradient_of_what_the_first_state_was_computed_from(mixer):
    model = make_model(small(mixer=mixer))
    x, targets = tokens(2, T), some_targets()

    def plain() -> None:
        _, state = model(x[:, :5])
        plain_loss(model, x, targets, state).backward()

    def chunked() -> None:
        _, state = model(x[:, :5])
        chunked_backward(model, x, chunk_cross_entropy(targets), 3, state=state)

    assert_all_close(gradients(model, chunked), gradients(model, plain), 1e-10)


def test_a_state_without_gradients_gets_none():
    model = make_model(small(mixer=DELTA))
    _, state = model(tokens(2, 4))
    state = pytree.tree_map(Tensor.detach, state)
    chunked_backward(model, tokens(2, T), chunk_cross_entropy(some_targets()), 3, state=state)
    assert all(part.grad is None for part in pytree.tree_leaves(state))


@pytest.mark.parametrize("config", MODELS)
def test_models_with_padding(config):
    """Row 1 has a hole of more than a chunk; row 2 starts and ends with padding."""
    mask = torch.ones(3, T, dtype=torch.bool)
    mask[1, 3:8] = mask[2, :2] = mask[2, 8:] = False
    targets = some_targets(3).where(mask, -100)
    assert_same_gradients(make_model(config), tokens(3, T), targets, (1, 3), mask=mask)


@pytest.mark.parametrize("config", MODELS)
def test_packed_sequences(config):
    bounds = torch.tensor([0, 1, 5, 12, 13, 16])
    x, targets = tokens(1, 16), tokens(1, 16, seed=5)
    assert_same_gradients(make_model(config), x, targets, (3, 7), cu_seqlens=bounds)


def test_packed_sequences_in_chunks_of_any_length():
    bounds = torch.tensor([0, 1, 5, 12, 13, 16])
    x, targets = tokens(1, 16), tokens(1, 16, seed=5)
    model = make_model(small(mixer=DELTA, num_layers=1))
    assert_same_gradients(model, x, targets, tuple(range(1, 18)), cu_seqlens=bounds)


@pytest.mark.parametrize("config", MODELS)
def test_forward_in_chunks(config):
    model, x = make_model(config), tokens(2, T)
    logits, end = model(x)
    outputs = list(chunked_forward(model, x, 4))
    assert [one.columns for one in outputs] == [slice(0, 4), slice(4, 8), slice(8, T)]
    assert_close(torch.cat([one.logits for one in outputs], 1), logits, 1e-10)
    assert_same_states(outputs[-1].state, end)


def test_no_target_at_all_is_as_undefined_as_without_chunks():
    model, targets = make_model(small(mixer=DELTA)), torch.full((2, T), -100)
    loss, _ = chunked_backward(model, tokens(2, T), chunk_cross_entropy(targets), 3)
    assert loss.isnan()


def test_gradients_are_added():
    model, x, goal = make_model(small(mixer=DELTA)), tokens(2, T), chunk_cross_entropy(tokens(2, T))
    once = gradients(model, lambda: chunked_backward(model, x, goal, 4))
    twice = gradients(model, lambda: [chunked_backward(model, x, goal, 4) for _ in range(2)])
    assert_all_close(twice, {name: 2 * gradient for name, gradient in once.items()}, 1e-12)


def test_the_context_learns_which_pass_is_the_last():
    model, goal, told = make_model(small()), chunk_cross_entropy(tokens(2, T)), list[bool]()

    def context(last: bool) -> Any:
        told.append(last)
        return nullcontext()

    chunked_backward(model, tokens(2, T), goal, 3, context=context)
    assert told == [False, False, False, True]
    told.clear()
    chunked_backward(model, tokens(2, T), goal, T, context=context)
    assert told == [True]


@pytest.mark.parametrize("config", MODELS)
def test_bfloat16(config):
    """Autocast may surround each call of the model or everything, and rounds as without chunks."""
    model = make_model(config).float()
    x, targets = tokens(2, T), some_targets()
    goal, autocast = chunk_cross_entropy(targets), torch.autocast("cpu", torch.bfloat16)

    def run(part: Tensor, state: Any) -> tuple[Tensor, Any]:
        with autocast:
            logits, state = model(part, state)
        return logits, state

    def surrounded() -> None:
        with autocast:
            chunked_backward(model, x, goal, 3)

    def plain() -> None:
        logits, _ = run(x, None)
        F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()).backward()

    inside = gradients(model, lambda: chunked_backward(run, x, goal, 3))
    outside = gradients(model, surrounded)
    assert all(torch.equal(outside[name], inside[name]) for name in inside)
    together, expected = (
        {"all": torch.cat([g.flatten() for _, g in sorted(found.items())])}
        for found in (inside, gradients(model, plain))
    )
    assert_all_close(together, expected, 0.05)


class Dropout(torch.nn.Module):
    """A model that draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.model = make_model(small(mixer=DELTA))

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits, state = self.model(x, state)
        state = pytree.tree_map(lambda part: F.dropout(part, 0.5), state)
        return F.dropout(logits, 0.5), state


def test_random_numbers_are_the_same_in_both_passes():
    model, x, goal = Dropout(), tokens(2, T), chunk_cross_entropy(some_targets())

    def plain() -> None:
        torch.manual_seed(3)
        state, total = None, torch.zeros(())
        for start in range(0, T, 4):
            columns = slice(start, min(start + 4, T))
            logits, state = model(x[:, columns], state)
            total = total + goal(logits, columns)
        total.backward()
        next_numbers.append(torch.rand(2))

    def chunked() -> None:
        torch.manual_seed(3)
        chunked_backward(model, x, goal, 4)
        next_numbers.append(torch.rand(2))

    next_numbers = list[Tensor]()
    assert_all_close(gradients(model, chunked), gradients(model, plain), 1e-10)
    assert torch.equal(*next_numbers)


class LiveBytes:
    """The bytes that autograd keeps for backward passes, now and at most."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def pack(self, tensor: Tensor) -> list[Tensor]:
        box = Box([tensor])
        self._add(tensor.nbytes)
        weakref.finalize(box, self._add, -tensor.nbytes)
        return box

    def _add(self, count: int) -> None:
        self.now += count
        self.most = max(self.most, self.now)


class Box(list[Tensor]):
    """A list that a weak reference may be to."""


@pytest.mark.parametrize("mixer", [DELTA, MAMBA], ids=lambda mixer: mixer.name)
def test_activations_of_one_chunk_are_kept(mixer):
    model = make_model(small(mixer=mixer)).float()

    def most(length: int, chunk: int) -> int:
        live, goal = LiveBytes(), chunk_cross_entropy(tokens(1, length))
        with saved_tensors_hooks(live.pack, lambda box: box[0]):
            chunked_backward(model, tokens(1, length), goal, chunk)
        assert live.now == 0
        return live.most

    assert most(512, 32) == most(64, 32)
    assert most(512, 512) > 7 * most(64, 64) > 7 * most(64, 32)


@pytest.mark.parametrize("config", EVERY)
def test_starts_take_no_more_memory_than_their_numbers(config):
    """Views of a chunk's tensors would; and copies of a cache that grows."""
    layer: Mixer = config.build(VARIANT_SIZE).double()
    starts, state = ChunkStarts(None, 6, torch.device("cpu")), None
    seen = list[Any]()
    with torch.no_grad():
        for n in range(6):
            _, state = layer(draw(n)(2, 8, VARIANT_SIZE), state)
            starts.append(state)
            seen.append(state)
    last = sum(part.nbytes for part in state)
    storages = {}
    for expected in reversed(seen):
        for mine, right in zip(starts.state, expected, strict=True):
            assert torch.equal(mine, right)
            storages[mine.untyped_storage().data_ptr()] = mine.untyped_storage().nbytes()
        starts.pop()
    most = last + 6 * 16 if config.name == "attention" else 6 * last  # 16 bytes of lengths
    assert sum(storages.values()) <= most
    assert starts.state is None


def test_starts_of_any_shape():
    """Parts that grow, keep their size, become shorter, change their type, and are no tensors."""
    normal = draw(0)
    long = normal(1, 9, 2)
    sizes = [2, 2, 5, 5, 3, 9, 9, 1, 0, 4]
    states = [(long[:, :size], normal(1, size), normal(1, 3).float(), size, None) for size in sizes]
    states[6] = (*states[6][:2], torch.ones(1, 3, dtype=torch.int64), *states[6][3:])
    starts = ChunkStarts(None, len(states), torch.device("cpu"))
    for state in states:
        starts.append(state)
    for expected in reversed(states):
        for mine, right in zip(starts.state, expected, strict=True):
            if isinstance(right, Tensor):
                assert torch.equal(mine, right)
                assert mine.dtype == right.dtype
                assert mine.requires_grad == right.is_floating_point()
            else:
                assert mine == right
        starts.pop()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"chunk_length": 0}, "chunk_length must be", id="no chunk"),
        pytest.param({"chunk_length": 2.0}, "chunk_length must be a whole", id="half a token"),
        pytest.param({"tokens": torch.ones(3)}, r"tokens must be dense, \[B, T\]", id="no batch"),
        pytest.param({"mask": torch.ones(1, 3)}, r"mask must be a tensor \[B, T\]", id="mask"),
        pytest.param(
            {"mask": torch.ones(1, 7), "cu_seqlens": torch.tensor([0, 7])}, "not both", id="both"
        ),
        pytest.param(
            {"state": (), "cu_seqlens": torch.tensor([0, 7])}, "take no state", id="packed state"
        ),
        pytest.param({"cu_seqlens": torch.tensor([0, 9])}, "cu_seqlens must", id="other length"),
        pytest.param({"loss": chunk_cross_entropy(tokens(1, 5))}, "targets must be", id="targets"),
    ],
)
def test_mistakes(options, message):
    model, x = SequenceModel(ModelConfig(vocab_size=5, hidden_size=8)), tokens(1, 7)
    given = {"tokens": x, "loss": chunk_cross_entropy(x), "chunk_length": 3, **options}
    with pytest.raises(UserError, match=message):
        chunked_backward(model, **given)
    assert all(p.grad is None for p in model.parameters())


def test_gradients_must_be_enabled():
    model, x = SequenceModel(ModelConfig(vocab_size=5, hidden_size=8)), tokens(1, 7)
    with pytest.raises(UserError, match="gradients, but they are disabled"), torch.no_grad():
        chunked_backward(model, x, chunk_cross_entropy(x), 3)


@pytest.mark.parametrize("targets", [torch.ones(3, dtype=torch.int64), torch.ones(2, 3)])
def test_targets_must_be_a_table_of_integers(targets):
    with pytest.raises(UserError, match=r"targets must be \[B, T\] of int64"):
        chunk_cross_entropy(targets)
