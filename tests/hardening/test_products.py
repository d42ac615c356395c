"""A noisy model of the whole group S4 becomes exact."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from statetrack.hardening import harden
from statetrack.hardening.agreement import agree
from statetrack.hardening.groups import CannotRoundError, into_reflections
from statetrack.hardening.heads import HeadInputs, write_heads
from statetrack.hardening.inputs import LayerInputs
from statetrack.hardening.products import Memory, memory_bases
from statetrack.hardening.report import Hardened
from statetrack.layers import DeltaProductConfig
from statetrack.models import ModelConfig, SequenceModel
from statetrack.tasks import generator, make_task
from statetrack.training import evaluate
from tests.hardening.test_groups import noise

S4 = make_task("S4")
BATCH = S4.sample(generator(0, "validation", 0), np.full(256, 10))


def representation(basis: Tensor) -> Tensor:
    """[24, K, K]: what each token does to the state, in the span of a basis [K, 3]."""
    sums, _ = torch.linalg.qr(torch.cat([torch.ones(4, 1), torch.eye(4)[:, :3]], 1).double())
    eye = torch.eye(4).double()
    every = torch.stack([eye[list(p)] for p in itertools.permutations(range(4))])
    small = sums[:, 1:].T @ every @ sums[:, 1:]
    return torch.eye(len(basis)).double() + basis @ (small - torch.eye(3).double()) @ basis.T


def head(size: float, shift: float = 0.0) -> HeadInputs:
    """Three factors for each token of S4 and BOS, with noise of this size, about a point."""
    rng = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng).double()

    basis, _ = torch.linalg.qr(normal(16, 3))
    k, v, beta = normal(25 * 3, 16), size * normal(25 * 3, 16), torch.zeros(25 * 3).double()
    for token, matrix in enumerate(basis.T @ representation(basis) @ basis):
        roots = into_reflections(matrix, normal(3, 3))
        rows = slice(3 * token, 3 * token + len(roots))
        k[rows], beta[rows] = roots @ basis.T, 2.0
    point = shift * normal(16, 16)
    v[:72] += k[:72] @ point
    k[72:], v[72:], beta[72:] = basis.T, 3 * normal(3, 16) + basis.T @ point, 1.0  # BOS
    k = k / k.norm(dim=1, keepdim=True) + size * normal(25 * 3, 16) / 4
    beta = (beta - size * torch.rand(75, generator=rng)).clamp(min=0.0)
    return HeadInputs(k / k.norm(dim=1, keepdim=True), v, beta)


@torch.no_grad()
def model_of(given: HeadInputs, like: HeadInputs | None = None) -> SequenceModel:
    """A model with this head; it answers with the element whose state in `like` is nearest."""
    torch.manual_seed(0)
    mixer = DeltaProductConfig(
        allow_neg_eigval=True,
        num_heads=1,
        conv_size=0,
        num_householder=3,
        expand_k=0.5,
        expand_v=0.5,
    )
    config = ModelConfig(
        len(S4.vocab), hidden_size=32, num_layers=1, mixer=mixer, embedding="one_hot", norm="none",
        residual=False, mlp="none", final_norm=False,
    )  # fmt: skip
    model = SequenceModel(config).double().eval()
    inputs = LayerInputs.of_tokens(model, BATCH)
    models = []
    for written in (like or head(0.0), given):
        layer = write_heads(model.blocks[0].mixer, inputs.x, [written])
        models.append(inputs.replace_mixer(model, layer))
        q = layer.projections().q  # one query for all tokens, another for BOS
        q[0] = torch.rand(16, 1, generator=torch.Generator().manual_seed(1))
        q[0, :, S4.bos] = torch.rand(16, generator=torch.Generator().manual_seed(2)) - 0.5
        layer.o_proj.weight.copy_(torch.eye(32, 16))
    exact, made = models
    exact.head = torch.nn.Identity()
    words = torch.tensor([[S4.bos, token] for token in range(24)])
    points = exact(words)[0]
    made.head.weight.zero_()
    made.head.weight[:24], made.head.weight[S4.bos] = points[:, 1], points[0, 0]
    return made.float()


def check_exact(model: SequenceModel) -> Hardened:
    result = harden(model, BATCH)
    assert result.changed, result
    assert evaluate(result.model, S4, 5000, samples=8).token_accuracy == 1.0
    read = result.automaton(S4.vocab)
    assert read.states == 24
    assert agree(read, S4.automaton())
    assert result.components[0].error < 0.2
    return result


def test_a_noisy_group_becomes_exact():
    noisy = model_of(head(0.01))
    assert evaluate(noisy, S4, 10, samples=64).token_accuracy > 0.99
    assert evaluate(noisy, S4, 1000, samples=8).token_accuracy < 0.9
    result = check_exact(noisy)
    assert "refitted" not in result.settings[0]


def test_a_readout_that_is_wrong_is_refitted():
    noisy = model_of(head(0.01))
    with torch.no_grad():
        noisy.head.weight[5] *= 0.8
    assert evaluate(noisy, S4, 10, samples=64).token_accuracy < 0.99
    assert check_exact(noisy).settings[0]["refitted"]


def test_a_readout_is_refitted_rather_than_that_tokens_write():
    """Beside writes, keys a little below length 1 would let the state drift."""
    noisy = model_of(head(0.005, shift=0.5), head(0.0, shift=0.5))
    assert evaluate(noisy, S4, 10, samples=64).token_accuracy > 0.99
    settings = check_exact(noisy).settings[0]
    assert (settings["writes"], settings["refitted"]) == ("none", True)


def test_the_subspace_that_is_remembered():
    """Transitions decay outside of it, and the state that BOS writes is not quite within it."""
    basis, _ = torch.linalg.qr(noise(16, 3))
    outside = torch.eye(16).double() - basis @ basis.T
    A = representation(basis) - 0.1 * outside + 0.02 * noise(24, 16, 16)
    start = (basis @ noise(3, 5) + 0.2 * noise(16, 5))[None]
    found = next(memory_bases(A, start))
    assert found.shape == (16, 3)
    assert torch.linalg.svdvals(found.T @ basis).min() > 0.99
    assert not [*memory_bases(0.8 * torch.eye(16).double().expand(24, -1, -1), start)]


def test_a_sign_that_outweighs_the_rotation_does_not_hide_it():
    """Three tokens rotate a plane by thirds; one of them changes the sign of a larger part."""
    third = 2 * math.pi / 3
    A = torch.eye(8).double().repeat(3, 1, 1)
    for i in range(3):
        A[i, :2, :2] = torch.tensor([[math.cos(i * third), -math.sin(i * third)],
                                     [math.sin(i * third), math.cos(i * third)]])  # fmt: skip
    A[0, 2, 2] = -1.0
    start = torch.zeros(1, 8, 4).double()
    start[0, 0, 0], start[0, 2, 1], start[0, 3, 2] = 1.0, 1.6, 1.0
    found = Memory.within(next(memory_bases(A, start)), A, torch.zeros_like(start).expand(3, 8, 4))
    assert found.basis.shape == (8, 3)
    assert len(found.exact.elements) == 6


def test_a_head_that_forgets_has_no_memory():
    forgets = head(0.02)
    recurring = torch.arange(25) < 24
    weak = HeadInputs(forgets.k, forgets.v, torch.where(forgets.beta > 1.5, 1.3, forgets.beta))
    assert isinstance(Memory.of(forgets, recurring, torch.tensor([24])), Memory)
    with pytest.raises(CannotRoundError):
        Memory.of(weak, recurring, torch.tensor([24]))
