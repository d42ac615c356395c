"""What every registered layer owes: the switch reaches its recurrence, and it trains stably."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from statetrack.errors import UserError
from statetrack.layers import MIXERS
from statetrack.models import ModelConfig, SequenceModel

SWITCHED = [name for name, config in MIXERS.items() if not config.no_switch]
RANGES = [(name, False) for name in MIXERS] + [(name, True) for name in SWITCHED]
NAMES = [f"{name}-{'[-1,1]' if switch else '[0,1]'}" for name, switch in RANGES]


@pytest.mark.parametrize("name", SWITCHED)
def test_the_switch_reaches_the_recurrence(name):
    least = {}
    for switch in (False, True):
        torch.manual_seed(0)
        layer = MIXERS[name](allow_neg_eigval=switch).build(32)
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
@pytest.mark.parametrize(("name", "switch"), RANGES, ids=NAMES)
def test_trains_stably(name, switch, precision):
    """300 steps at lr 1e-3 on the prefix sums of bits: finite throughout, and it learns."""
    torch.manual_seed(0)
    mixer = MIXERS[name](allow_neg_eigval=switch)
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
