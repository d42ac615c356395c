"""docs/theory.md: its code as it stands, and what it says of tests, links and layers."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from statetrack.compiler import compile, limits
from tests.conftest import ROOT

PAGE = (ROOT / "docs/theory.md").read_text()


def test_python_runs_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(code, names)
    assert names["accuracy"] == 1
    assert 12_500 < names["first_error"](0.5**0.5, 2.0) < 13_500
    assert names["first_error"](1.0, 1.0) is None
    assert not list(names["Tracked"](compile("S3")).tracker.parameters())
    assert names["model"].keys.grad.abs().max() > 0
    printed = capsys.readouterr().out
    assert "permute 1 0" in printed
    assert "all 14,400 steps from 120 states" in printed


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


def test_links_lead_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", PAGE) if "://" not in link]
    assert len(links) >= 6
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
