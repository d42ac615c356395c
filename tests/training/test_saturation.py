"""The penalty on betas between their ends."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from statetrack.errors import UserError
from statetrack.models import SequenceModel
from statetrack.tasks import Stream
from statetrack.training import TrainingConfig, train
from statetrack.training.optim import recorded_betas, saturation_penalty, saturation_weight
from tests.training.small import small_config

RAMP = {"saturation_start": 0.35, "saturation_full": 0.65}
JUMP = {"saturation_start": 0.5, "saturation_full": 0.5}


@pytest.mark.parametrize(
    ("shares", "step", "weight"),
    [
        pytest.param(RAMP, 0, 0.0, id="first step"),
        pytest.param(RAMP, 34, 0.0, id="before the start"),
        pytest.param(RAMP, 35, 0.0, id="start"),
        pytest.param(RAMP, 50, 0.1, id="half way"),
        pytest.param(RAMP, 65, 0.2, id="full"),
        pytest.param(RAMP, 99, 0.2, id="last step"),
        pytest.param(JUMP, 49, 0.0, id="before a jump"),
        pytest.param(JUMP, 50, 0.2, id="at a jump"),
    ],
)
def test_weight(shares: dict[str, float], step: int, weight: float) -> None:
    config = TrainingConfig(steps=100, saturation=0.2, **shares)  # type: ignore[arg-type]
    assert saturation_weight(config, step) == pytest.approx(weight, abs=1e-12)


def test_no_weight_without_saturation() -> None:
    config = TrainingConfig(steps=100, saturation=0.0)
    assert {saturation_weight(config, step) for step in range(100)} == {0.0}


def everywhere(value: float, *shape: int) -> torch.Tensor:
    return torch.full(shape, value)


@pytest.mark.parametrize("top", [1.0, 2.0])
@pytest.mark.parametrize(
    ("share", "penalty"),
    [
        pytest.param(0.0, 0.0, id="at 0"),
        pytest.param(1.0, 0.0, id="at the top"),
        pytest.param(0.5, 1.0, id="in the middle"),
        pytest.param(0.25, 0.75, id="at a quarter"),
    ],
)
def test_penalty_is_0_at_both_ends_and_1_between(top: float, share: float, penalty: float) -> None:
    real = torch.ones(3, 5, dtype=torch.bool)
    betas = [(everywhere(share * top, 3, 5, 2), top)]
    assert saturation_penalty(betas, real).item() == pytest.approx(penalty, abs=1e-6)


def test_penalty_is_the_mean_over_real_tokens_and_gates() -> None:
    rng = torch.Generator().manual_seed(0)
    one, two = torch.rand(3, 5, 2, generator=rng), 2 * torch.rand(3, 5, 4, generator=rng)
    real = torch.rand(3, 5, generator=rng) < 0.6
    spots = [(b, t) for b in range(3) for t in range(5) if real[b, t]]
    first = [4 * one[b, t, h] * (1 - one[b, t, h]) for b, t in spots for h in range(2)]
    second = [two[b, t, h] * (2 - two[b, t, h]) for b, t in spots for h in range(4)]
    expected = (sum(first) / len(first) + sum(second) / len(second)) / 2
    assert saturation_penalty([(one, 1.0), (two, 2.0)], real).item() == pytest.approx(
        float(expected), rel=1e-5
    )


def test_padding_is_ignored() -> None:
    real = torch.tensor([[True, True, False], [True, False, False]])
    beta = torch.where(real[..., None], 2.0, 1.0)  # the worst value on the padding
    beta.requires_grad_()
    penalty = saturation_penalty([(beta, 2.0)], real)
    penalty.backward()
    assert penalty.item() == 0
    assert beta.grad is not None
    assert not beta.grad[~real].any()
    assert beta.grad[real].all()


@pytest.mark.parametrize(("allow", "top"), [(False, 1.0), (True, 2.0)])
def test_betas_of_every_layer_are_recorded(allow: bool, top: float) -> None:
    config = small_config(allow_neg_eigval=allow, model={"num_layers": 3})
    model = SequenceModel(config.model)
    with recorded_betas(model) as betas:
        model(torch.ones(4, 7, dtype=torch.long))
    assert [(list(beta.shape), most) for beta, most in betas] == [([4, 7, 2], top)] * 3
    assert all(0 < float(b.detach().min()) <= float(b.detach().max()) < top for b, _ in betas)
    model(torch.ones(4, 7, dtype=torch.long))
    assert len(betas) == 3  # nothing is recorded any more


def test_betas_of_products_are_recorded() -> None:
    model = SequenceModel(small_config(mixer="gated_delta_product", saturation=0.1).model)
    with recorded_betas(model) as betas:
        model(torch.ones(4, 7, dtype=torch.long))
    assert [list(beta.shape) for beta, _ in betas] == [[4, 7, 2 * 4]]  # factors, heads


def test_recording_ends_with_an_error_too() -> None:
    model = SequenceModel(small_config().model)
    with pytest.raises(UserError, match="tokens must be"), recorded_betas(model) as betas:
        model(torch.full((1, 2), 99))
    model(torch.ones(1, 2, dtype=torch.long))
    assert betas == []


def test_mamba_has_no_beta() -> None:
    model = SequenceModel(small_config(mixer="mamba").model)
    with recorded_betas(model) as betas:
        model(torch.ones(1, 2, dtype=torch.long))
    assert betas == []


def test_training_feels_it_from_the_start_on(tmp_path: Path) -> None:
    """The share 0.5 of 8 steps is step 4, where the weight is still 0; step 5 is the first."""
    plain = train(small_config(steps=8), tmp_path / "plain")
    shares = {"saturation_start": 0.5, "saturation_full": 1.0}
    penalised = train(small_config(steps=8, saturation=0.5, **shares), tmp_path / "penalised")
    losses = [[row["loss"] for row in run.metrics()] for run in (plain, penalised)]
    assert losses[0][:6] == losses[1][:6]  # step 5's is of the weights before it
    assert losses[0][6:] != losses[1][6:]
    assert all("penalty" not in row for row in plain.metrics())
    penalties = [row["penalty"] for row in penalised.metrics()]
    assert penalties[:5] == [0.0] * 5
    assert all(penalty > 0 for penalty in penalties[5:])


def test_the_penalty_is_over_real_tokens(tmp_path: Path) -> None:
    """Without learning, the second step's penalty is that of the model as it began."""
    still = {"steps": 2, "lr": 0.0, "min_lr": 0.0}
    plain = train(small_config(**still), tmp_path / "plain")
    config = small_config(**still, saturation=3.0, saturation_start=0.0, saturation_full=0.5)
    penalised = train(config, tmp_path / "penalised")
    data = Stream(config.task, "train", 0, 4, 3, 12)  # as the configuration says
    tokens = torch.from_numpy(data.batch(1).tokens)
    assert (tokens == config.task.pad).any()
    model = plain.model()
    with torch.no_grad(), recorded_betas(model) as betas:
        model(tokens)
    penalty = saturation_penalty(betas, tokens != config.task.pad).item()
    assert penalised.metrics()[1]["loss"] == plain.metrics()[1]["loss"]
    assert penalised.metrics()[1]["penalty"] == pytest.approx(3.0 * penalty, rel=1e-5)
    everything = saturation_penalty(betas, torch.ones_like(tokens, dtype=torch.bool)).item()
    assert abs(everything - penalty) > 1e-4 * penalty  # so that it matters


def test_it_drives_betas_to_their_ends(tmp_path: Path) -> None:
    tokens = torch.randint(1, 3, (16, 12), generator=torch.Generator().manual_seed(0))
    shares = {"saturation_start": 0.0, "saturation_full": 0.0}
    penalties = []
    for weight in (0.0, 1.0):
        config = small_config(steps=60, lr=1e-2, saturation=weight, **shares)
        model = train(config, tmp_path / f"run-{weight}").model()
        with torch.no_grad(), recorded_betas(model) as betas:
            model(tokens)
        penalties.append(saturation_penalty(betas, tokens > 0).item())
    assert penalties[1] < 0.5 * penalties[0]
