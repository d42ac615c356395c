"""Presets, the sharing of batches, and what does not decay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from statetrack.errors import UserError
from statetrack.lm.pretraining.config import PretrainingConfig
from statetrack.lm.pretraining.presets import PRESETS, preset
from statetrack.models import SequenceModel, count_parameters
from statetrack.training.optim import learning_rate, make_optimizer


@pytest.mark.parametrize(
    ("name", "per_step", "billions", "warmup"),
    [
        ("340m", 524_288, 104.9, 250),
        ("mamba-370m", 524_288, 104.9, 250),
        ("1.3b", 1_966_080, 98.3, 500),
    ],
)
def test_the_papers_protocol(name: str, per_step: int, billions: float, warmup: int) -> None:
    config = PRESETS[name]
    assert config.tokens_per_step == per_step
    assert round(config.steps * per_step / 1e9, 1) == billions
    assert (config.lr, config.weight_decay, config.clip) == (3e-4, 0.01, 1.0)
    assert (config.betas, config.context_length, config.precision) == ((0.9, 0.95), 2048, "bf16")
    training = config.training()
    assert [learning_rate(training, step) for step in (0, warmup)] == [0, 3e-4]
    assert learning_rate(training, warmup - 1) < 3e-4


@pytest.mark.parametrize(("name", "low", "high"), [("tiny", 2e6, 3e6), ("small", 7e6, 8e6)])
@pytest.mark.parametrize("mixer", ["delta_net", "mamba"])
def test_sizes_with_a_vocabulary_of_4096(name: str, low: float, high: float, mixer: str) -> None:
    model = replace(preset(name, mixer).model, vocab_size=4096)
    assert low < count_parameters(model) < high


def test_mamba_in_place_of_delta_net_is_the_papers_mamba() -> None:
    sizes = [count_parameters(preset(name, "mamba").model) for name in ("340m", "mamba-370m")]
    assert sizes[0] == sizes[1]


def test_unknown_presets_and_mixers_that_do_not_fit() -> None:
    with pytest.raises(UserError, match=r"unknown preset 'huge'; known: 1\.3b, 340m"):
        preset("huge")
    with pytest.raises(UserError, match="mamba-370m has no MLPs, which delta_net needs"):
        preset("mamba-370m", "delta_net")


@pytest.mark.parametrize(
    ("processes", "micro", "parts"), [(1, None, 1), (1, 2, 6), (2, 3, 2), (4, None, 1), (12, 1, 1)]
)
def test_accumulation(processes: int, micro: int | None, parts: int) -> None:
    config = PretrainingConfig(batch_size=12, micro_batch_size=micro)
    assert config.accumulation(processes) == parts


@pytest.mark.parametrize(
    ("processes", "micro", "says"),
    [
        (5, None, "5 processes cannot share a batch of 12 equally$"),
        (2, 4, "2 processes cannot share a batch of 12 equally in micro batches of 4$"),
        (1, 24, "a batch of 12 cannot be split into micro batches of 24$"),
    ],
)
def test_batches_that_cannot_be_shared(processes: int, micro: int | None, says: str) -> None:
    config = PretrainingConfig(batch_size=12, micro_batch_size=micro)
    with pytest.raises(UserError, match=says):
        config.accumulation(processes)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"checkpoint_every": 15}, "checkpoint_every must be a multiple of log_every"),
        ({"warmup": 2000}, "warmup must lie in 0..1,000"),
        ({"min_lr": 1.0}, "min_lr must not exceed lr"),
        ({"micro_batch_size": 0}, "micro_batch_size must be at least 1"),
        ({"precision": "fp16"}, "precision must be one of fp32, bf16"),
    ],
)
def test_values_that_are_not_allowed(options: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        PretrainingConfig(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mixer", "exempt"),
    [
        ("mamba", {"A_log", "D", "dt_proj.bias"}),
        ("mamba2", {"A_log", "D", "dt_bias"}),
        ("gated_delta_net", {"A_log", "dt_bias"}),
    ],
)
def test_gates_biases_and_norms_do_not_decay(mixer: str, exempt: set[str]) -> None:
    config = preset("tiny", mixer)
    model = SequenceModel(replace(config.model, vocab_size=64, num_layers=1))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decays: dict[str, float] = {}
    for group in make_optimizer(model, config.training()).param_groups:
        decays |= {names[id(p)]: group["weight_decay"] for p in group["params"]}
    free = {name for name, decay in decays.items() if decay == 0}
    assert {decays[name] for name in decays.keys() - free} == {config.weight_decay}
    assert {f"blocks.0.mixer.{name}" for name in exempt} <= free
    one_dimensional = {name for name, p in model.named_parameters() if p.dim() < 2}
    assert free == one_dimensional | {"embedding.weight"} | (
        {"blocks.0.mixer.A_log"} if mixer == "mamba" else set()
    )
    assert any("norm" in name for name in free)
    assert any("conv" in name and name.endswith("bias") for name in free) or mixer != "mamba"
