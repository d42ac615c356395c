"""Configurations and names of transformers' Mamba2, without transformers."""

from __future__ import annotations

import pytest
import torch

from statetrack.errors import UserError
from statetrack.layers import Mamba2Config
from statetrack.models.convert import convert, translate

CONFIG = {
    "model_type": "mamba2",
    **{"vocab_size": 7, "hidden_size": 8, "num_hidden_layers": 2, "state_size": 3, "expand": 2},
    **{"num_heads": 4, "head_dim": 4, "n_groups": 2, "conv_kernel": 3, "use_bias": False},
    **{"use_conv_bias": True, "hidden_act": "silu", "layer_norm_epsilon": 1e-5},
    **{"time_step_min": 0.01, "time_step_max": 0.2, "time_step_limit": [0.0, float("inf")]},
    **{"tie_word_embeddings": False, "initializer_range": 0.1, "chunk_size": 256},
}


def weights() -> dict[str, torch.Tensor]:
    """What transformers calls the weights, and their shapes."""
    shapes = {"backbone.embeddings.weight": (7, 8), "backbone.norm_f.weight": (8,)}
    shapes["lm_head.weight"] = (7, 8)
    for n in range(2):
        layer = f"backbone.layers.{n}."
        shapes[layer + "norm.weight"] = (8,)
        for name in ("A_log", "D", "dt_bias"):
            shapes[layer + f"mixer.{name}"] = (4,)
        shapes[layer + "mixer.in_proj.weight"] = (16 + 28 + 4, 8)
        shapes[layer + "mixer.conv1d.weight"] = (28, 1, 3)
        shapes[layer + "mixer.conv1d.bias"] = (28,)
        shapes[layer + "mixer.norm.weight"] = (16,)
        shapes[layer + "mixer.out_proj.weight"] = (8, 16)
    return {name: torch.randn(*shape) for name, shape in shapes.items()}


def test_config():
    config, _ = translate(CONFIG, weights())
    assert config.mixer == Mamba2Config(
        d_state=3, head_dim=4, n_groups=2, conv_size=3, norm_by_group=True
    )
    assert (config.vocab_size, config.hidden_size, config.num_layers) == (7, 8, 2)
    assert (config.mlp, config.final_norm, config.tie_embeddings) == ("none", True, False)
    assert config.norm_eps == 1e-5


@pytest.mark.parametrize(
    ("limit", "expected"),
    [([0.1, 0.5], (0.1, 0.5)), ((0.0, {"__float__": "Infinity"}), (0.0, None))],
)
def test_limits_of_the_step_size(limit, expected):
    config, _ = translate({**CONFIG, "time_step_limit": limit}, weights())
    mixer = config.mixers[0]
    assert (mixer.dt_limit_min, mixer.dt_limit_max) == expected


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("use_bias", True, "use_bias must be False; got True"),
        ("use_conv_bias", False, "use_conv_bias must be True"),
        ("hidden_act", "gelu", "hidden_act must be 'silu' or 'swish'; got 'gelu'"),
        ("time_step_limit", 0.5, "time_step_limit must be two numbers; got 0.5"),
        ("time_step_limit", [0.5], r"time_step_limit must be two numbers; got \[0.5\]"),
        ("time_step_limit", [0.0, "many"], "time_step_limit must be two numbers"),
        ("time_step_limit", [0.0, True], "dt_limit_max must be a number"),
        ("model_type", ["mamba2"], r"unknown model_type \['mamba2'\]; known: "),
        (
            "hidden_size",
            10**30,
            "hidden_size must be a whole number .* at most 16,777,216",
        ),
        ("num_heads", True, "num_heads must be a whole number above 0"),
        ("expand", "2", "expand must be a whole number above 0 .*; got '2'"),
        ("vocab_size", 2**24, r"tensors do not fit .* embedding.weight would be \[7, 8\]"),
        ("num_heads", 3, r"must be expand \* hidden_size; got 3 \* 4 and 2 \* 8"),
    ],
)
def test_what_there_is_no_such_model_for(key, value, message):
    with pytest.raises(UserError, match=message):
        convert({**CONFIG, key: value}, weights())


@pytest.mark.parametrize("tied", [False, True])
def test_every_weight_finds_its_place(tied):
    theirs = weights()
    if tied:
        del theirs["lm_head.weight"]  # as in a file
    model = convert({**CONFIG, "tie_word_embeddings": tied}, theirs)
    mixer = model.blocks[1].mixer
    assert torch.equal(mixer.dt_bias, theirs["backbone.layers.1.mixer.dt_bias"])
    assert torch.equal(mixer.conv.weight, theirs["backbone.layers.1.mixer.conv1d.weight"][:, 0])
    assert torch.equal(model.blocks[0].mixer_norm.weight, theirs["backbone.layers.0.norm.weight"])


@pytest.mark.parametrize("name", ["model.norm.weight", "backbone.layers.x.norm.weight"])
def test_weights_of_something_else(name):
    with pytest.raises(UserError, match=f"tensors without a place here: {name}"):
        convert(CONFIG, {**weights(), name: torch.ones(1)})


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("mixer.A_log", torch.tensor(1.0), "A_log is a single number"),
        ("mixer.conv1d.weight", torch.ones(28, 3), r"convolution of size \[28, 3\], not"),
        ("mixer.D", torch.ones(5), r"mixer\.D would be \[5\], not \[4\]"),
        ("mixer.D", torch.ones(4, dtype=torch.complex64), r"mixer\.D is of torch\.complex64"),
    ],
)
def test_tensors_of_other_shapes_and_types(name, tensor, message):
    with pytest.raises(UserError, match=message):
        convert(CONFIG, {**weights(), f"backbone.layers.0.{name}": tensor})


def test_the_model_itself_is_no_state():
    model = convert(CONFIG, weights())
    with pytest.raises(UserError, match=r"model\.config\.to_dict\(\); got a ModelConfig"):
        convert(model.config, weights())
    with pytest.raises(UserError, match=r"model\.state_dict\(\); got a SequenceModel"):
        convert(CONFIG, model)
    with pytest.raises(UserError, match=r"tensors by name; lm_head\.weight is a list"):
        convert(CONFIG, {**weights(), "lm_head.weight": [1.0]})
