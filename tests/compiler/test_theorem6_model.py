"""Theorem 6 as the weights of an ordinary model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from statetrack.compiler.theorem6_model import theorem6_model
from statetrack.errors import UserError
from statetrack.layers import DeltaNetConfig, HouseholderProduct
from statetrack.models import ModelConfig
from statetrack.tasks import make_task
from statetrack.tasks.word_problem import GroupWordProblem
from statetrack.training import evaluate


def word_problem(m: int) -> GroupWordProblem:
    task = make_task(f"Z{m}")
    assert isinstance(task, GroupWordProblem)
    return task


def config(m: int, size: int = 64, heads: int = 4) -> ModelConfig:
    mixer = DeltaNetConfig(allow_neg_eigval=True, conv_size=0, num_heads=heads)
    return ModelConfig(len(word_problem(m).vocab), size, 2, mixer)


@pytest.mark.parametrize(
    ("m", "size", "heads"), [(3, 64, 4), (5, 64, 4), (5, 16, 4), (7, 64, 4), (3, 12, 2), (9, 40, 5)]
)
def test_it_adds_without_training(m: int, size: int, heads: int) -> None:
    model = theorem6_model(config(m, size, heads), word_problem(m))
    for length, samples in ((32, 64), (1000, 8)):
        found = evaluate(model, word_problem(m), length, samples=samples)
        assert found.sequence_accuracy == 1.0


def test_it_also_answers_bos() -> None:
    task = word_problem(5)
    logits, _ = theorem6_model(config(5), task)(torch.tensor([[task.bos, 3]]))
    assert logits.argmax(-1).tolist() == [[task.bos, 3]]


def test_every_token_is_one_reflection() -> None:
    task = word_problem(5)
    for transition in theorem6_model(config(5), task).transitions(torch.arange(5)[None]):
        assert isinstance(transition, HouseholderProduct)
        assert torch.allclose(transition.beta, torch.tensor(2.0), atol=1e-6)
        assert transition.beta.shape[-1] == 1


def test_the_seed_chooses_what_is_random() -> None:
    before = torch.random.get_rng_state()
    one, same, other = (theorem6_model(config(3), word_problem(3), seed) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(one.embedding.weight, same.embedding.weight)
    assert not torch.equal(one.embedding.weight, other.embedding.weight)


def test_every_weight_matrix_gets_a_gradient() -> None:
    """Zeros must not keep a part of the model from learning."""
    task = word_problem(3)
    model = theorem6_model(config(3), task)
    logits, _ = model(torch.tensor([[task.bos, 1, 2, 2, 1]]))
    logits[0, :, 0].sum().backward()  # type: ignore[no-untyped-call]
    still = {n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    assert all("mlp" in name and "down" not in name for name in still), still


@pytest.mark.parametrize(
    ("changed", "task", "message"),
    [
        ({"num_layers": 1}, "Z3", "two layers of DeltaNet"),
        ({"mixer": DeltaNetConfig(conv_size=0)}, "Z3", "two layers of DeltaNet"),
        ({}, "Z4", "needs Z3, Z5"),
        ({}, "S3", "needs Z3, Z5"),
        ({}, "parity", "needs Z3, Z5"),
        ({}, "Z9", "at least 5 heads"),
        ({"hidden_size": 8}, "Z3", "hidden size of 5 and one more per head"),
    ],
)
def test_other_models_and_tasks(changed: dict[str, object], task: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        theorem6_model(replace(config(3), **changed), make_task(task))  # type: ignore[arg-type]
