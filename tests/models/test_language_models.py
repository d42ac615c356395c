"""The paper's language models: their sizes, counted by hand, in both ranges."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from statetrack.errors import UserError
from statetrack.layers import MIXERS
from statetrack.models import ModelConfig, SequenceModel, count_parameters
from statetrack.models.language_models import LANGUAGE_MODELS, language_model
from tests.conftest import ROOT

SWITCH = pytest.mark.parametrize("switch", [False, True], ids=["[0,1]", "[-1,1]"])
TOKENS = 32_000


def delta_net(width: int, heads: int, mlp: int, layers: int, embeddings: int) -> int:
    """q, k, v, o; their convolutions of width 4; beta; norms of head, mixer and MLP; the MLP."""
    layer = 4 * width**2 + 3 * width * 4 + width * heads + width // heads + 2 * width
    return layers * (layer + 3 * width * mlp) + width + embeddings * TOKENS * width


def mamba(width: int, states: int, layers: int) -> int:
    inner, rank = 2 * width, width // 16
    layer = width * 2 * inner + (4 + 1) * inner  # in, convolution
    layer += inner * (rank + 2 * states) + (rank + 1) * inner  # delta, B and C; delta's bias
    layer += inner * states + inner + inner * width + width  # A, D, out, norm
    return layers * layer + width + TOKENS * width


@pytest.mark.parametrize(
    ("name", "tied", "count", "said"),
    [
        ("delta_net-340M", True, delta_net(1024, 8, 2816, 24, 1), "341.6M"),
        ("delta_net-1.3B", False, delta_net(2048, 16, 5632, 24, 2), "1365.7M"),  # 1.37B
        ("delta_net-1.3B", True, delta_net(2048, 16, 5632, 24, 1), "1300.1M"),  # 1.30B
        ("mamba-370M", True, mamba(1024, 16, 48), "352.8M"),
    ],
)
@SWITCH
def test_sizes(name, tied, count, said, switch):
    model = replace(language_model(name, allow_neg_eigval=switch), tie_embeddings=tied)
    assert count_parameters(model) == count
    assert f"{count / 1e6:.1f}M" == said


def test_exact_numbers():
    assert {name: count_parameters(m) for name, m in LANGUAGE_MODELS.items()} == {
        "delta_net-340M": 341_594_112,
        "delta_net-1.3B": 1_365_677_056,
        "mamba-370M": 352_797_696,
    }


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_both_ranges_differ_in_the_switch_alone(name):
    positive, negative = (language_model(name, allow_neg_eigval=s) for s in (False, True))
    assert positive == language_model(name) == LANGUAGE_MODELS[name]
    assert [m.allow_neg_eigval for m in (positive.mixer, negative.mixer)] == [False, True]
    assert replace(negative, mixer=positive.mixer) == positive


def test_an_unknown_name():
    with pytest.raises(UserError, match=r"unknown language model 'gpt'; known: delta_net-1\.3B, "):
        language_model("gpt")


@pytest.mark.parametrize("name", MIXERS)
def test_every_layer_can_be_counted_without_being_made(name):
    config = ModelConfig(vocab_size=7, hidden_size=32, num_layers=2, mixer=MIXERS[name]())
    assert count_parameters(config) == SequenceModel(config).num_parameters()
    with torch.device("meta"):
        model = SequenceModel(config)
    assert {p.device.type for p in model.parameters()} == {"meta"}


def test_the_page_has_the_numbers():
    page = (ROOT / "docs" / "presets.md").read_text()
    for name, model in LANGUAGE_MODELS.items():
        assert f"| {name} | {model.hidden_size} | {model.num_layers} |" in page
        assert f" | {model.initializer_range} | {count_parameters(model):,} |" in page
