"""docs/theory.md: what it says of tests, limits and layers."""

from __future__ import annotations

import re
from typing import Any

import torch

from statetrack.compiler import compile, limits
from tests.conftest import ROOT

PAGE = (ROOT / "docs/theory.md").read_text()


def test_the_frozen_network_is_what_makes_the_example_work() -> None:
    """The same training without its states stays at chance."""
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    (code,) = [block for block in blocks if "class Tracked" in block]
    blind = code.replace("self.tracker(tokens)", "torch.zeros_like(tokens)")
    assert blind != code
    exec("import torch\nfrom statetrack.compiler import compile\n" + blind, names)
    assert 0.4 < names["accuracy"] < 0.6


def test_bfloat16_of_the_root_of_one_half() -> None:
    v = torch.tensor(0.5**0.5).bfloat16().double()
    assert f"it is {float(v)}," in PAGE
    assert f"is {1 - 4 * float(v * v):.4f}," in PAGE


def test_layers_of_the_table() -> None:
    rows = re.findall(r"^\| `(.+?)` \| (\d+) \| (\d+) \| (\d+|-) \|$", PAGE, re.M)
    assert len(rows) == 8
    for name, states, layers, gates in rows:
        net = compile(name, "householder")
        assert (net.dfa.states, len(net.layers)) == (int(states), int(layers)), name
        auto = compile(name)
        assert (auto.stack[0].target == "diagonal") == (gates != "-")
        assert gates in ("-", str(len(auto.layers)))


def test_limits() -> None:
    assert f"{limits.MAX_CASCADE_IMAGES:,} sets of states" in PAGE
    assert f"{limits.MAX_CASCADE_RULES:,} update rules" in PAGE
    assert f"{limits.MAX_TABLE_CELLS:,} numbers" in PAGE
    assert f"{limits.MAX_MODULUS:,}" in PAGE


def test_named_tests_exist() -> None:
    named = re.findall(r"`(test_\w+)` in `([\w/.]+)`", PAGE)
    assert len(named) == 5
    for test, file in named:
        assert f"def {test}(" in (ROOT / file).read_text()
