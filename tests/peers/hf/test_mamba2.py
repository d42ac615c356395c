"""Our Mamba2 and that of transformers, as whole models with the same weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers import Mamba2Config, Mamba2ForCausalLM

from statetrack.models.convert import convert, translate

SMALL = {
    **{"vocab_size": 11, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 16},
    **{"num_heads": 8, "head_dim": 8, "expand": 2, "chunk_size": 16},
}
VARIANTS = {
    "one-group": {"n_groups": 1},
    "groups": {"n_groups": 4, "conv_kernel": 3},
    "limits": {"n_groups": 2, "time_step_limit": (0.02, 0.05)},
    "tied": {"n_groups": 1, "tie_word_embeddings": True},
}


def relative(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).detach().norm() / expected.detach().norm())


@pytest.mark.parametrize("length", [2, 16, 45])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_gradients(variant: str, length: int) -> None:
    torch.manual_seed(0)
    config = Mamba2Config(**SMALL, **VARIANTS[variant])
    theirs = Mamba2ForCausalLM(config)
    with torch.no_grad():  # no parameter stays at a special value
        for parameter in theirs.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    ours = convert(config.to_dict(), theirs.state_dict())

    tokens = torch.randint(11, (2, length))
    targets = torch.randint(11, (2, length)).flatten()
    expected = theirs(tokens).logits
    logits, _ = ours(tokens)
    assert relative(logits, expected) < 1e-4
    for y in (expected, logits):
        F.cross_entropy(y.flatten(0, 1), targets).backward()
    # a state dictionary of gradients is renamed like one of weights
    their_gradients = {name: p.grad for name, p in theirs.named_parameters()}
    _, gradients = translate(config.to_dict(), their_gradients)
    for name, parameter in ours.named_parameters():
        assert relative(parameter.grad, gradients[name]) < 1e-4, name
