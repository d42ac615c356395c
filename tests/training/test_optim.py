"""What decays, and that clipping and bf16 do what they say."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from statetrack.models import SequenceModel
from statetrack.training import RunConfig, loop, train
from statetrack.training.optim import make_optimizer
from tests.training.small import small_config

MLP = {"mlp": "swiglu", "mlp_size": 8}
DELTA_NET = [
    "blocks.0.mixer.qkv_proj.weight", "blocks.0.mixer.conv.weight",
    "blocks.0.mixer.beta.proj.weight", "blocks.0.mixer.o_proj.weight",
]  # fmt: skip
MAMBA = [
    "blocks.0.mixer.in_proj.weight", "blocks.0.mixer.conv.weight", "blocks.0.mixer.x_proj.weight",
    "blocks.0.mixer.dt_proj.weight", "blocks.0.mixer.out_proj.weight",
]  # fmt: skip
OUTER = ["blocks.0.mlp.gate_up.weight", "blocks.0.mlp.down.weight"]
LR = 0.5
DECAY = 0.25


def decayed(config: RunConfig) -> tuple[set[str], set[str]]:
    """The parameters that shrink, and those that stay, when no gradient acts on them."""
    model = SequenceModel(config.model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
            parameter.grad = torch.zeros_like(parameter)
    make_optimizer(model, config.training).step()
    shrunk, same = set(), set()
    for name, parameter in model.named_parameters():
        if torch.equal(parameter, torch.ones_like(parameter)):
            same.add(name)
        else:
            assert torch.allclose(parameter, torch.tensor(1 - LR * DECAY)), name
            shrunk.add(name)
    return shrunk, same


def config_for(mixer: str, decay_groups: str, **model: Any) -> RunConfig:
    return small_config(
        mixer=mixer,
        model={**MLP, "head_bias": True, **model},
        lr=LR,
        weight_decay=DECAY,
        decay_groups=decay_groups,
    )


def test_paper_decays_all_of_delta_net() -> None:
    shrunk, same = decayed(config_for("delta_net", "paper"))
    assert same == set()
    assert {"embedding.weight", "norm.weight", "head.bias", *DELTA_NET} <= shrunk


def test_paper_decays_all_of_mamba_but_a_and_d() -> None:
    shrunk, same = decayed(config_for("mamba", "paper"))
    assert same == {"blocks.0.mixer.A_log", "blocks.0.mixer.D"}
    assert {"embedding.weight", "norm.weight", "head.bias", *MAMBA} <= shrunk


@pytest.mark.parametrize(("mixer", "own"), [("delta_net", DELTA_NET), ("mamba", MAMBA)])
def test_standard_decays_matrices_that_are_no_embedding(mixer: str, own: list[str]) -> None:
    shrunk, same = decayed(config_for(mixer, "standard"))
    assert shrunk == {"head.weight", *own, *OUTER}
    assert "embedding.weight" in same


@pytest.mark.parametrize(("groups", "decays"), [("paper", True), ("standard", False)])
def test_a_tied_head_is_an_embedding(groups: str, decays: bool) -> None:
    shrunk, same = decayed(config_for("delta_net", groups, tie_embeddings=True))
    assert ("embedding.weight" in shrunk, "embedding.weight" in same) == (decays, not decays)


def test_every_parameter_is_trained_once() -> None:
    config = config_for("delta_net,mamba", "standard")
    model = SequenceModel(config.model)
    groups = make_optimizer(model, config.training).param_groups
    trained = [id(p) for group in groups for p in group["params"]]
    assert sorted(trained) == sorted(id(p) for p in model.parameters())


def test_adamw_gets_the_options() -> None:
    config = small_config(lr=0.3, betas=(0.8, 0.9), eps=1e-5)
    optimizer = make_optimizer(SequenceModel(config.model), config.training)
    for group in optimizer.param_groups:
        assert (group["lr"], group["betas"], group["eps"]) == (0.3, (0.8, 0.9), 1e-5)


def gradient_norms(config: RunConfig, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The norm of the gradient that the optimiser sees at every step of a run."""
    norms = []

    def watched(model: SequenceModel, training: Any) -> torch.optim.Optimizer:
        def look(*_: Any) -> None:
            norms.append(math.sqrt(sum(float(p.grad.norm()) ** 2 for p in model.parameters())))

        optimizer = make_optimizer(model, training)
        optimizer.register_step_pre_hook(look)
        return optimizer

    monkeypatch.setattr(loop, "make_optimizer", watched)
    train(config, folder)
    return norms


def test_clipping_limits_the_gradient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = gradient_norms(small_config(steps=5), tmp_path / "free", monkeypatch)
    limit = min(free) / 2
    clipped = gradient_norms(small_config(steps=5, clip=limit), tmp_path / "clip", monkeypatch)
    assert clipped == pytest.approx([limit] * 5, rel=1e-3)


def test_clipping_leaves_small_gradients_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = gradient_norms(small_config(steps=5), tmp_path / "free", monkeypatch)
    config = small_config(steps=5, clip=2 * max(free))
    assert gradient_norms(config, tmp_path / "clip", monkeypatch) == free


@pytest.mark.parametrize("mixer", ["delta_net", "mamba"])
def test_bf16_trains(mixer: str, tmp_path: Path) -> None:
    losses = {}
    for precision in ("fp32", "bf16"):
        config = small_config(mixer=mixer, steps=30, lr=1e-2, precision=precision)
        run = train(config, tmp_path / precision)
        losses[precision] = [row["loss"] for row in run.metrics()]
        assert all(math.isfinite(loss) for loss in losses[precision])
        assert losses[precision][-1] < losses[precision][0]
        # autocast: what is trained and saved stays float32
        assert {t.dtype for t in run.load()[1].values()} == {torch.float32}
    assert losses["bf16"] != losses["fp32"]
    assert losses["bf16"][:3] == pytest.approx(losses["fp32"][:3], rel=0.01)  # before they part
