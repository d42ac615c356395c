"""The recipes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from statetrack.errors import UserError
from statetrack.experiments import presets
from statetrack.models import SequenceModel
from statetrack.training import RunConfig

RECIPES = [
    pytest.param(presets.paper_parity, {"mixer": "delta_net"}, id="paper_parity delta_net"),
    pytest.param(presets.paper_parity, {"mixer": "mamba"}, id="paper_parity mamba"),
    pytest.param(presets.paper_swaps, {"mixer": "delta_net"}, id="paper_swaps delta_net"),
    pytest.param(presets.paper_swaps, {"mixer": "mamba"}, id="paper_swaps mamba"),
    pytest.param(presets.demo_parity, {"mixer": "delta_net"}, id="demo_parity delta_net"),
    pytest.param(presets.demo_parity, {"mixer": "mamba"}, id="demo_parity mamba"),
    pytest.param(presets.demo_swaps, {}, id="demo_swaps"),
]


def without_the_switch(config: RunConfig) -> RunConfig:
    (mixer,) = set(config.model.mixers)
    model = replace(config.model, mixer=replace(mixer, allow_neg_eigval=False))
    return replace(config, model=model)


@pytest.mark.parametrize(("recipe", "options"), RECIPES)
def test_both_ranges_differ_in_the_switch_alone(recipe: Any, options: dict[str, str]) -> None:
    positive = recipe(**options, allow_neg_eigval=False, seed=7)
    negative = recipe(**options, allow_neg_eigval=True, seed=7)
    assert positive != negative
    assert without_the_switch(negative) == positive
    assert positive.training.seed == 7


@pytest.mark.parametrize(("recipe", "options"), RECIPES)
def test_the_model_can_be_built(recipe: Any, options: dict[str, str]) -> None:
    config = recipe(**options, allow_neg_eigval=True)
    assert SequenceModel(config.model).num_parameters() > 0


@pytest.mark.parametrize("recipe", [presets.paper_parity, presets.paper_swaps, presets.demo_parity])
def test_an_unknown_mixer(recipe: Any) -> None:
    with pytest.raises(UserError, match="unknown mixer 'lstm'; known: delta_net, mamba"):
        recipe("lstm", allow_neg_eigval=True)


def test_parity_as_in_the_paper() -> None:
    t = presets.paper_parity("delta_net", allow_neg_eigval=True).training
    assert (t.steps, t.batch_size, t.lr, t.schedule) == (100_000, 1024, 1e-3, "cosine")
    assert (t.warmup, t.min_lr, t.weight_decay, t.clip) == (0.1, 1e-6, 0.1, None)
    assert (t.min_length, t.max_length, t.betas) == (3, 40, (0.9, 0.999))
