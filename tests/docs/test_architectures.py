"""The rows of docs/architectures.md say what the layers are; a new layer needs none."""

from __future__ import annotations

import re

import pytest
import torch

from statetrack.layers import MIXERS
from tests.conftest import ROOT

HIDDEN, T = 24, 5
PAGE = (ROOT / "docs" / "architectures.md").read_text()
LINES = (line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith("| `"))
ROWS = {cells[0].strip(" `"): cells for cells in LINES}

# the letters of the page for each layer
DELTA_RULE = {"H": "num_v_heads", "K": "key_size", "V": "value_size"}
SIZES = {
    "DeltaNet": DELTA_RULE,
    "GatedDeltaNet": DELTA_RULE,
    "DeltaProduct": DELTA_RULE,
    "GatedDeltaProduct": DELTA_RULE,
    "GLA": {"H": "config.num_heads", "K": "key_size", "V": "value_size"},
    "Mamba": {"D": "channels", "N": "config.d_state"},
    "Mamba2": {"H": "num_heads", "K": "config.d_state", "V": "config.head_dim"},
    "MLSTM": {"H": "config.num_heads", "K": "head_size"},
    "SLSTM": {"H": "config.num_heads", "K": "head_size"},
    "DiagonalRNN": {"D": "hidden_size"},
    "FullMatrix": {"size": "config.size"},
    "Attention": {"G": "kv_heads", "K": "head_size"},
}
LISTED = [name for name, config in MIXERS.items() if config.layer.__name__ in SIZES]
OPTIONS = {
    "delta_net": {"num_heads": 2, "num_v_heads": 4},
    "mamba2": {"head_dim": 8},
    "attention": {"num_heads": 4, "num_kv_heads": 2},
}


def test_the_rows_are_layers():
    assert ROWS.keys() == SIZES.keys() == {MIXERS[name].layer.__name__ for name in LISTED}
    assert all(len(cells) == 7 for cells in ROWS.values())


@pytest.mark.parametrize("name", LISTED)
def test_the_size_of_the_state(name):
    layer = MIXERS[name](**OPTIONS.get(name, {})).build(HIDDEN)
    sizes = {"T": T}
    for letter, path in SIZES[type(layer).__name__].items():
        value = layer
        for attribute in path.split("."):
            value = getattr(value, attribute)
        sizes[letter] = value
    formula = ROWS[type(layer).__name__][-1].strip().replace("`", "").replace("^", "**")
    product = re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", formula)
    _, state = layer(torch.randn(1, T, HIDDEN))
    parts = state._asdict()
    for beside in ("conv", "length"):
        parts.pop(beside, None)
    assert sum(part.numel() for part in parts.values()) == eval(product, {}, sizes)


@pytest.mark.parametrize("name", LISTED)
def test_what_the_switch_does(name):
    refused = ROWS[MIXERS[name].layer.__name__][3].strip().startswith("refused")
    assert refused == bool(MIXERS[name].no_switch)
