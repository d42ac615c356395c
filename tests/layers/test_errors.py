"""What a caller of a layer can get wrong."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from statetrack.errors import UserError
from statetrack.layers import (
    GLA,
    MIXERS,
    DeltaNet,
    DeltaNetConfig,
    DeltaProductConfig,
    GatedDeltaNet,
    GatedDeltaNetConfig,
    GatedDeltaProductConfig,
    GLAConfig,
    Mamba,
    Mamba2,
    Mamba2Config,
    MambaConfig,
    MixerConfig,
)
from tests.layers.common import HIDDEN, LAYERS, inputs, make_layer, make_state


@pytest.mark.parametrize("layer", [DeltaNet, GLA, Mamba, Mamba2])
def test_unknown_options(layer):
    with pytest.raises(UserError, match=r"no option 'alow_neg_eigval'; it has: allow_neg_eigval"):
        layer(HIDDEN, alow_neg_eigval=True)
    with pytest.raises(UserError, match="a config or options, not both"):
        layer(HIDDEN, layer.config_class(), allow_neg_eigval=True)


@pytest.mark.parametrize("layer", [DeltaNet, GLA, Mamba, Mamba2])
def test_hidden_size(layer):
    for wrong in (0, "128", 32.0, None):
        with pytest.raises(UserError, match=r"hidden_size must (be a whole number|lie in 1\.\.)"):
            layer(wrong)


@pytest.mark.parametrize("layer", [DeltaNet, GLA])
@pytest.mark.parametrize(
    "options",
    [
        {"num_heads": 5},
        {"expand_k": 0.5},
        {"expand_v": 0.3},
        {"expand_k": 0.0},
    ],
    ids=str,
)
def test_heads_that_do_not_divide(layer, options):
    with pytest.raises(UserError, match="num_heads must divide hidden_size"):
        layer(HIDDEN, **options)


def test_value_heads_that_do_not_divide():
    with pytest.raises(UserError, match=r"num_v_heads must divide hidden_size \* expand_v"):
        GatedDeltaNet(HIDDEN, num_heads=3, num_v_heads=9)


@pytest.mark.parametrize("layer", [DeltaNet, GatedDeltaNet])
def test_the_config_of_another_layer(layer):
    """Not even of one that is made of this one: its gate or factors would be dropped."""
    with pytest.raises(UserError, match=r"takes a \w+Config; got a GatedDeltaProductConfig"):
        layer(HIDDEN, GatedDeltaProductConfig())


@pytest.mark.parametrize("name", ["expand_k", "expand_v"])
@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan")])
@pytest.mark.parametrize("layer", [DeltaNet, GLA])
def test_expansion_that_is_no_size(layer, name, value):
    with pytest.raises(UserError, match=name):
        layer(HIDDEN, **{name: value})


def test_expansion_that_is_whole_but_for_rounding():
    assert 100 * 1.1 != 110
    assert DeltaNet(100, num_heads=10, expand_v=1.1).value_size == 11


@pytest.mark.parametrize(
    ("config", "name", "value"),
    [
        (DeltaNetConfig, "num_heads", 0),
        (DeltaNetConfig, "num_v_heads", 0),
        (DeltaNetConfig, "num_v_heads", 6),
        (GatedDeltaNetConfig, "num_v_heads", -4),
        (DeltaProductConfig, "num_householder", 0),
        (GatedDeltaProductConfig, "num_householder", 0),
        (GatedDeltaProductConfig, "allow_neg_gate", 1),
        (DeltaNetConfig, "conv_size", -1),
        (DeltaNetConfig, "output_norm_eps", -1e-6),
        (DeltaNetConfig, "beta_stretch", -0.1),
        (DeltaNetConfig, "beta_stretch", float("nan")),
        (GLAConfig, "num_heads", 0),
        (GLAConfig, "conv_size", -1),
        (GLAConfig, "output_norm_eps", -1e-6),
        (GLAConfig, "gate_low_rank_dim", 0),
        (GLAConfig, "gate_logit_normalizer", 0.0),
        (GLAConfig, "gate_logit_normalizer", float("inf")),
        (GLAConfig, "gate_logit_normalizer", float("nan")),
        (MambaConfig, "d_state", 0),
        (MambaConfig, "expand", 0),
        (MambaConfig, "conv_size", -1),
        (MambaConfig, "dt_rank", 0),
        (MambaConfig, "dt_min", 0.0),
        (MambaConfig, "dt_min", 1.0),
        (MambaConfig, "dt_max", 1e-4),
        (MambaConfig, "dt_max", float("inf")),
        (MambaConfig, "dt_max", float("nan")),
        (Mamba2Config, "d_state", 0),
        (Mamba2Config, "expand", 0),
        (Mamba2Config, "head_dim", 0),
        (Mamba2Config, "n_groups", 0),
        (Mamba2Config, "conv_size", -1),
        (Mamba2Config, "dt_min", 0.0),
        (Mamba2Config, "dt_max", 1e-4),
        (Mamba2Config, "dt_limit_min", -0.1),
        (Mamba2Config, "dt_limit_max", -0.1),
        (Mamba2Config, "dt_limit_max", float("inf")),
        (Mamba2Config, "output_norm_eps", -1e-6),
    ],
)
def test_bad_values(config, name, value):
    with pytest.raises(UserError, match=name):
        config(**{name: value})


def test_the_registry():
    assert MIXERS["delta_net"] is MixerConfig.class_for("delta_net") is DeltaNetConfig
    assert MIXERS["gla"] is MixerConfig.class_for("gla") is GLAConfig
    assert MIXERS["mamba2"] is MixerConfig.class_for("mamba2") is Mamba2Config
    assert MIXERS["mamba"] is MixerConfig.class_for("mamba") is MambaConfig
    with pytest.raises(UserError, match=r"unknown mixer 'deltanet'; known: .*delta_net.*mamba"):
        MixerConfig.class_for("deltanet")


@pytest.mark.parametrize("config", LAYERS)
def test_configs_are_frozen(config):
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.allow_neg_eigval = True


@pytest.mark.parametrize("config", LAYERS)
@pytest.mark.parametrize(
    "shape", [(2, 5, HIDDEN + 1), (5, HIDDEN), (2, 0, HIDDEN), (0, 5, HIDDEN)], ids=str
)
def test_inputs_of_wrong_size(config, shape):
    layer = make_layer(config)
    with pytest.raises(UserError, match=rf"x must be \[B, T, {HIDDEN}\]"):
        layer(torch.zeros(shape).double())


@pytest.mark.parametrize("config", LAYERS)
@pytest.mark.parametrize("shape", [(2, HIDDEN + 1), (HIDDEN,), (2, 1, HIDDEN)], ids=str)
def test_steps_of_wrong_size(config, shape):
    layer = make_layer(config)
    with pytest.raises(UserError, match=rf"x_t must be \[B, {HIDDEN}\]"):
        layer.step(torch.zeros(shape).double(), layer.init_state(2))


@pytest.mark.parametrize("config", LAYERS)
def test_mask_and_cu_seqlens(config):
    layer = make_layer(config)
    x = inputs(1, 5)
    mask, cu_seqlens = torch.ones(1, 5, dtype=torch.bool), torch.tensor([0, 2, 5])
    with pytest.raises(UserError, match="not both"):
        layer(x, mask=mask, cu_seqlens=cu_seqlens)
    for wrong in (mask[0], mask[:, :4], mask.expand(2, 5)):
        with pytest.raises(UserError, match=r"mask must be a tensor \[B, T\] = \[1, 5\]"):
            layer(x, mask=wrong)
    with pytest.raises(UserError, match=r"mask must be a tensor .*; got a list"):
        layer(x, mask=mask.tolist())
    with pytest.raises(UserError, match="cu_seqlens must be a 1-d tensor"):
        layer(x, cu_seqlens=cu_seqlens.tolist())
    with pytest.raises(UserError, match="cu_seqlens must"):
        layer(x, cu_seqlens=torch.tensor([0, 2, 6]))
    with pytest.raises(UserError, match="batch must be 1"):
        layer(inputs(2, 5), cu_seqlens=cu_seqlens)


@pytest.mark.parametrize("config", LAYERS)
def test_states_of_another_batch(config):
    layer = make_layer(config)
    x, state = inputs(1, 5), make_state(layer, 3)
    message = "the state has batch 3, the input"
    with pytest.raises(UserError, match=message):
        layer(x, state)
    with pytest.raises(UserError, match=message):
        layer(x, state, mask=torch.ones(1, 5, dtype=torch.bool))
    with pytest.raises(UserError, match=message):
        layer(x, state, cu_seqlens=torch.tensor([0, 2, 5]))


@pytest.mark.parametrize("config", LAYERS)
def test_step_with_a_state_of_another_batch(config):
    layer = make_layer(config)
    with pytest.raises(UserError, match="the state has batch 3, the input 1"):
        layer.step(inputs(1, 1)[:, 0], make_state(layer, 3))
