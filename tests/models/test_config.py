"""ModelConfig: strict on the way in, the same after a round trip through JSON."""

from __future__ import annotations

import dataclasses
import json

import pytest

from statetrack.config import changed, from_dict, to_dict
from statetrack.errors import UserError
from statetrack.layers import DeltaNetConfig, MambaConfig
from statetrack.models import ExpertsConfig, ModelConfig
from tests.models.common import ATTENTION, DELTA, MAMBA, MODELS


def read(data):
    return from_dict(ModelConfig, data, "model")


@pytest.mark.parametrize("config", [ModelConfig(), *MODELS])
def test_json_round_trip(config):
    text = json.dumps(to_dict(config))
    assert read(json.loads(text)) == config


def test_json_of_a_hybrid():
    config = ModelConfig(mixer=(DELTA, MAMBA))
    data = to_dict(config)
    assert [next(iter(m)) for m in data["mixer"]] == ["name", "name"]
    assert [m["name"] for m in data["mixer"]] == ["delta_net", "mamba"]
    data["mixer"][1]["d_state"] = 9
    assert read(data).mixers[1] == dataclasses.replace(MAMBA, d_state=9)


def test_absent_keys_are_defaults_and_whole_numbers_are_numbers():
    assert read({}) == ModelConfig()
    config = read({"mixer": {"name": "mamba", "dt_max": 1}, "initializer_range": None})
    assert config == ModelConfig(mixer=MambaConfig(dt_max=1.0), initializer_range=None)
    assert type(config.mixer.dt_max) is float


def test_frozen():
    config = ModelConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.num_layers = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.mixer.allow_neg_eigval = True
    assert len({ModelConfig(), ModelConfig(), ModelConfig(num_layers=3)}) == 2


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"num_layer": 2}, r"unknown key 'num_layer' in model; known: .*num_layers"),
        ({"mixer": {"name": "mamba", "num_heads": 2}}, r"'num_heads' in model\.mixer"),
        ({"mixer": [{"name": "mamba", "x": 1}]}, r"'x' in model\.mixer\[0\]"),
        ({"mixer": {"name": "ttt"}}, "unknown mixer 'ttt'; known: .*delta_net"),
        ({"mixer": {"name": ["mamba"]}}, r"model\.mixer\.name must be a text"),
        ({"mixer": {"name": None}}, r"model\.mixer\.name must be a text"),
        ({"mixer": {"num_heads": 2}}, "needs a 'name'"),
        ({"mixer": "mamba"}, r"model\.mixer must be an object"),
        ({"mixer": None}, r"model\.mixer must be an object"),
        ({"mixer": []}, "pattern of mixers"),
        ({"num_layers": "2"}, r"model\.num_layers must be a whole number"),
        ({"num_layers": 2.0}, r"model\.num_layers must be a whole number"),
        ({"num_layers": True}, r"model\.num_layers must be a whole number"),
        ({"num_layers": None}, r"model\.num_layers must be a whole number"),
        ({"residual": 1}, r"model\.residual must be true or false"),
        ({"norm_eps": "small"}, r"model\.norm_eps must be a number"),
        ({"norm": "batch"}, r"model\.norm must be one of rms, layer, none"),
        ({"norm": ["rms"]}, r"model\.norm must be one of"),
        ({"mlp_size": 1.5}, r"model\.mlp_size must be a whole number"),
        ([], "model must be an object"),
        (None, "model must be an object"),
    ],
)
def test_bad_json(data, message):
    with pytest.raises(UserError, match=message):
        read(data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_size": 0}, "vocab_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"num_layers": 0}, "num_layers"),
        ({"mlp_size": 0}, "mlp_size"),
        ({"norm_eps": -1e-6}, "norm_eps"),
        ({"norm_eps": float("nan")}, "norm_eps"),
        ({"initializer_range": -0.1}, "initializer_range"),
        ({"initializer_range": float("inf")}, "initializer_range"),
        ({"embedding": "onehot"}, "embedding must be one of learned, one_hot"),
        ({"norm": "batch"}, "norm must be one of"),
        ({"norm_after": ("mamba",)}, "norm_after must be one of delta_net; got 'mamba'"),
        ({"mlp": "relu"}, "mlp must be one of"),
        ({"mlp_after": ("mamba",)}, "mlp_after must be one of delta_net; got 'mamba'"),
        ({"mlp_after": ()}, r"mlp_after names the mixers with an MLP.*mlp_after = \[\]"),
        ({"mlp_after": ("delta_net",), "mlp": "none"}, "mlp says which; got mlp = none"),
        ({"experts": ExpertsConfig(), "mlp": "gated_gelu"}, "need mlp = swiglu; got gated_gelu"),
        ({"experts": ExpertsConfig(), "mlp": "none"}, "need mlp = swiglu; got none"),
        ({"experts": ExpertsConfig(layers=(0, 2))}, r"lie in 0\.\.1; got 2"),
        ({"experts": ExpertsConfig(layers=(-1,))}, r"lie in 0\.\.1; got -1"),
        (
            {
                "experts": ExpertsConfig(layers=(0,)),
                "mixer": (DELTA, MAMBA),
                "mlp_after": ("mamba",),
            },
            "must have an MLP .* got 0",
        ),
        ({"experts": 4}, "experts must be an object"),
        ({"mixer": ()}, "pattern of mixers"),
        ({"mixer": (DELTA, MAMBA), "num_layers": 3}, "2 mixers for 3 layers"),
        ({"mixer": (DELTA, MAMBA, DELTA), "num_layers": 2}, "3 mixers for 2 layers"),
        ({"embedding": "one_hot", "vocab_size": 9, "hidden_size": 8}, "hidden_size >= vocab_size"),
        ({"embedding": "one_hot", "tie_embeddings": True}, "tie_embeddings"),
        ({"head": "mlp"}, "head must be one of linear, none"),
        ({"head": "none"}, "without a head hidden_size must be vocab_size; got 128 and 2"),
        ({"head": "none", "vocab_size": 128, "head_bias": True}, "need head = linear"),
        ({"head": "none", "vocab_size": 128, "tie_embeddings": True}, "need head = linear"),
    ],
)
def test_bad_values(options, message):
    with pytest.raises(UserError, match=message):
        ModelConfig(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, "count must be at least 1; got 0"),
        ({"count": 2, "top_k": 3}, "top_k of the experts must be at most their count; got 3 of 2"),
        ({"top_k": 0}, "top_k must be"),
        ({"size": 1.5}, "size must be a whole number; got 1.5"),
        ({"shared_size": None}, "shared_size must be a whole number; got None"),
        ({"normalize": 1}, "normalize must be true or false"),
        ({"layers": ()}, r"one or more, each once; got \[\]"),
        ({"layers": (1, 1)}, r"one or more, each once; got \[1, 1\]"),
    ],
)
def test_bad_experts(options, message):
    with pytest.raises(UserError, match=message):
        ExpertsConfig(**options)


def test_which_layers_have_experts():
    pattern = {"mixer": (DELTA, MAMBA), "num_layers": 4, "mlp_after": ("mamba",)}
    for layers, expected in ((None, [1, 3]), ((3,), [3])):
        config = ModelConfig(experts=ExpertsConfig(layers=layers), **pattern)
        assert [n for n in range(4) if config.has_experts(n)] == expected
    assert not ModelConfig().has_experts(0)


def test_options_at_their_default_leave_no_trace_in_keys():
    """A new option must not change the keys of existing jobs, which are hashes of what is set."""
    assert changed(ModelConfig()) == {}
    assert changed(ModelConfig(experts=ExpertsConfig(top_k=3))) == {"experts": {"top_k": 3}}


def test_title():
    assert ModelConfig().title == "DeltaNet [0,1]"
    hybrid = ModelConfig(mixer=(DELTA, MAMBA, DeltaNetConfig(allow_neg_eigval=True)), num_layers=3)
    assert hybrid.title == "DeltaNet [-1,1] + Mamba [-1,1]"
    assert len(hybrid.mixers) == 3
    three_to_one = ModelConfig(mixer=(DELTA, DELTA, DELTA, ATTENTION), num_layers=8)
    assert three_to_one.title == "DeltaNet [-1,1] + Attention"
    assert [m.name for m in three_to_one.mixers] == [*["delta_net"] * 3, "attention"] * 2


@pytest.mark.parametrize("mixer", ["mamba", [MambaConfig()], (MambaConfig(), "mamba"), None])
def test_a_mixer_that_is_no_configuration(mixer):
    with pytest.raises(UserError, match="mixer must be"):
        ModelConfig(mixer=mixer)
