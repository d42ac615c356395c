"""Every layer of the registry: the conformance kit, the switch, stable training."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F

import statetrack
from statetrack import layers
from statetrack.errors import UserError
from statetrack.layers import MIXERS
from statetrack.layers.delta_net import DeltaInputs
from statetrack.models import ModelConfig, SequenceModel
from statetrack.testing import CHECKS, check_layer
from tests.layers.common import HIDDEN, LAYERS, inputs, make_layer

SWITCHED = [name for name, config in MIXERS.items() if not config.no_switch]
SIGNED_GATE = [name for name, config in MIXERS.items() if hasattr(config, "allow_neg_gate")]
SWITCHES = [(name, "allow_neg_eigval") for name in SWITCHED] + [
    (name, "allow_neg_gate") for name in SIGNED_GATE
]
VARIANTS = (
    [MIXERS[name]() for name in MIXERS]
    + [MIXERS[name](**{switch: True}) for name, switch in SWITCHES]
    + [MIXERS[name](allow_neg_eigval=True, allow_neg_gate=True) for name in SIGNED_GATE]
)


@pytest.mark.parametrize("config", LAYERS)
def test_conforms(config):
    checks = [name for name, check in CHECKS.items() if not check.slow]
    check_layer(partial(config.build, HIDDEN), only=checks).raise_for_failures()


@pytest.mark.parametrize("name", MIXERS)
def test_conforms_when_traced(name):
    """Of slow checks one variant is enough here; `statetrack check` runs them on all."""
    config = MIXERS[name].variants()[0]
    checks = [name for name, check in CHECKS.items() if check.slow]
    check_layer(partial(config.build, HIDDEN), only=checks).raise_for_failures()


@pytest.mark.parametrize("name", MIXERS)
def test_variants_have_both_ranges(name):
    ranges = {variant.allow_neg_eigval for variant in MIXERS[name].variants()}
    assert ranges == ({False} if MIXERS[name].no_switch else {False, True})


@pytest.mark.parametrize("config", LAYERS)
def test_states_are_named_tuples_and_begin_at_zero(config):
    layer = make_layer(config)
    _, state = layer(inputs(3, 5))
    empty = layer.init_state(3)
    assert all(not part.any() for part in empty)
    assert type(state) is type(empty)
    assert layer._layout(state) == layer._layout(empty)  # the same shapes, where they are fixed
    for field in state._fields:
        with pytest.raises(AttributeError):
            setattr(state, field, getattr(empty, field))


@pytest.mark.parametrize("config", LAYERS)
def test_masked_outputs_are_zero(config):
    mask = torch.tensor([[0, 1, 1, 0, 1], [0, 0, 0, 0, 0]])
    layer = make_layer(config)
    y, _ = layer(inputs(2, 5), mask=mask)
    assert not y[mask == 0].any()
    assert y[mask == 1].all()


@pytest.mark.parametrize(("name", "option"), SWITCHES)
def test_the_switch_reaches_the_recurrence(name, option):
    least = {}
    for switch in (False, True):
        torch.manual_seed(0)
        layer = MIXERS[name](**{option: switch}).build(32)
        with torch.no_grad():
            for parameter in layer.parameters():  # gates and betas come to their ends
                parameter.add_(torch.randn_like(parameter)).mul_(10)
            x = torch.randn(4, 64, 32).double()  # products of factors round by 1e-6 in float32
            least[switch] = layer.double().transitions(x).eigvals().real.min()
    assert least[False] >= -1e-6
    assert least[True] < -0.9


@pytest.mark.parametrize("name", sorted(MIXERS.keys() - set(SWITCHED)))
def test_a_layer_without_the_switch_says_why(name):
    with pytest.raises(UserError, match=rf"{MIXERS[name].label} has no allow_neg_eigval: .+"):
        MIXERS[name](allow_neg_eigval=True)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("mixer", VARIANTS, ids=[mixer.title for mixer in VARIANTS])
def test_trains_stably(mixer, precision):
    """300 steps at lr 1e-3 on the prefix sums of bits: finite throughout, and it learns."""
    torch.manual_seed(0)
    model = SequenceModel(
        ModelConfig(vocab_size=4, hidden_size=32, num_layers=1, mixer=mixer, mlp_size=32)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    losses = []
    for _ in range(300):
        bits = torch.randint(2, (8, 16))
        with torch.autocast("cpu", torch.bfloat16, enabled=precision is torch.bfloat16):
            logits, _ = model(bits)
        # how many ones so far, at most 3: within reach of every layer
        loss = F.cross_entropy(logits.float().flatten(0, 1), bits.cumsum(1).clamp(max=3).flatten())
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-20:]) < 0.8 * sum(losses[:20])


def test_what_the_file_of_a_layer_defines_is_exported() -> None:
    for config in MIXERS.values():
        assert getattr(layers, config.__name__) is config
        assert getattr(layers, config.layer.__name__) is config.layer
        state = type(config.variants()[0].build(HIDDEN).init_state(1))
        assert getattr(layers, state.__name__) is state
    assert layers.DeltaInputs is statetrack.DeltaInputs is DeltaInputs
