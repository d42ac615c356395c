"""Explanations: their facts against the automata themselves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from statetrack.automata import DFA, from_regex
from statetrack.errors import UserError
from statetrack.layers import MIXERS
from statetrack.models import ModelConfig, SequenceModel
from statetrack.theory import compile, decompose, explain, theorems
from statetrack.theory.counting import DIAGONAL
from statetrack.theory.diagnostics.verdicts import architectural
from statetrack.theory.explanation import Explanation
from statetrack.theory.languages import find_dfa, find_language

NAMES = (
    "parity", "(ab)*", "a*b*", "tomita3", "tomita5", "tomita6", "tomita7", "S3", "Z6", "(aaaa)*",
    "flip_flop", "dyck1_depth3", "modular_arithmetic", "a*",
)  # fmt: skip
STAR_FREE = {"(ab)*", "a*b*", "tomita7", "flip_flop", "dyck1_depth3", "a*"}


@pytest.mark.parametrize("name", NAMES)
def test_named_languages(name: str) -> None:
    found = explain(name)
    assert found.properties is not None
    assert found.properties.is_aperiodic == (name in STAR_FREE)
    assert bool(found.exclusions) == (name not in STAR_FREE)
    assert ("star-free (aperiodic)" in str(found)) == (name in STAR_FREE)
    assert found.cascade.verify().holds
    data = json.loads(json.dumps(found.to_dict()))
    assert data["states"] == len(data["dfa"]["transitions"])
    assert data["sufficient"]["layers"] <= data["sufficient"]["most_layers"]
    check_counters(found)


def check_counters(found: Explanation) -> None:
    """Reading a word again and again must go around so many states, and no fewer."""
    dfa = found.dfa
    for counter in found.counters:
        word = dfa.encode(counter.word)
        step = np.arange(dfa.states)
        for symbol in word:
            step = dfa.delta[step, symbol]
        powers = [step]
        for _ in range(3 * dfa.states + counter.m):
            powers.append(step[powers[-1]])
        last = powers[-1 - counter.m :]
        assert (last[0] == last[-1]).all()
        assert not any((power == last[0]).all() for power in last[1:-1])


def test_who_is_excluded() -> None:
    def theorems(name: str) -> list[str]:
        return [f"{e.theorem}: {e.architectures}" for e in explain(name).exclusions]

    assert [t[:9] for t in theorems("parity")] == ["Theorem 1"]
    assert any("real diagonal transitions: " in t for t in theorems("Z3"))
    assert any("one layer of DeltaNet" in t for t in theorems("Z3"))
    assert any("fewer than 2 layers" in t for t in theorems("(aaaa)*"))
    assert not any("real diagonal" in t for t in theorems("tomita3"))  # counts modulo 2 only
    # no single symbol goes around more than two states
    assert not any("one layer" in t for t in theorems("modular_arithmetic"))


@pytest.mark.parametrize("mixer", MIXERS)
def test_exclusions_are_those_that_the_layers_guarantee(mixer: str) -> None:
    """What is said of architectures by name, against the bounds of the layers themselves."""
    config = MIXERS[mixer]
    label = config.label.removeprefix("Gated ").lower()

    def factor(layers: int, word: int, **options: bool) -> int | None:
        chosen = config(**options)
        made = SequenceModel(ModelConfig(3, 64, layers, chosen, mlp="none"))
        transitions = made.transitions(torch.randint(3, (1, 6)))
        return architectural(transitions, word).factor

    diagonal = DIAGONAL.lower().split(", ")
    named = label in [*diagonal, "deltanet", "deltaproduct"]
    if config.no_switch:
        assert not named
        return
    if named:
        for word in (1, 2, 3):
            assert factor(2, word) == 1
    if config.label.startswith("Gated "):
        assert factor(2, 1, allow_neg_gate=True) != 1  # and what is said excepts it
    if label in diagonal:
        for word in (1, 2, 3):
            assert factor(2, word, allow_neg_eigval=True) == 4
    if mixer == "delta_net":
        assert factor(1, 1, allow_neg_eigval=True) == 2


def test_a_monoid_that_is_too_large(tmp_path: Path) -> None:
    n = 8
    shift, swap, merge = np.roll(np.arange(n), -1), np.arange(n), np.arange(n)
    swap[:2], merge[0] = [1, 0], 1
    dfa = DFA(("r", "s", "m"), np.stack([shift, swap, merge], 1), 0, np.arange(n) == 0)
    path = tmp_path / "t8.json"
    path.write_text(json.dumps(dfa.to_json()))
    found = explain(str(path))
    assert found.properties is None
    assert "not known: the transition monoid of a DFA with 8 states" in str(found)
    assert found.to_dict()["star_free"] is None
    assert "whatever the weights: not known" in str(found)


def test_what_a_text_stands_for(tmp_path: Path) -> None:
    (tmp_path / "ab.json").write_text(json.dumps(from_regex("(ab)*").to_json()))
    kinds = {
        "S3": "word problem of a group",
        "regex:S3": "regular expression",
        "tomita3": "automaton of a task",
        "S3_only_swaps": "automaton of a task",
        str(tmp_path / "ab.json"): "DFA of a file",
        f"dfa:{tmp_path / 'ab.json'}": "DFA of a file",
        "(ab)*": "regular expression",
    }
    assert {text: find_language(text).kind for text in kinds} == kinds
    assert find_language(str(tmp_path / "ab.json")).value == from_regex("(ab)*")
    with pytest.raises(UserError, match="not regular, or too large"):
        find_language("modular_arithmetic_brackets")


def test_one_way_to_name_a_language(tmp_path: Path) -> None:
    """compile, decompose, theorem4 and explain read a text as the commands do."""
    (tmp_path / "ab.json").write_text(json.dumps(from_regex("(ab)*").to_json()))
    for text in ("tomita3", "(ab)*", "regex:S3", "S3", "parity", str(tmp_path / "ab.json")):
        value = find_language(text).value
        dfa = find_dfa(text).minimal()
        assert compile(text).dfa == dfa
        assert decompose(text).dfa == find_dfa(text)
        assert theorems.theorem4(text).dfa == dfa
        for found in (explain(text), explain(value)):
            assert found.dfa == dfa
        assert find_language(value).value is value
    for take in (compile, decompose, theorems.theorem4, explain):
        with pytest.raises(UserError, match="there is no task 'tomita9': either tomita"):
            take("tomita9")  # type: ignore[operator]
        with pytest.raises(UserError, match=r"a language is a regular expression.*got float"):
            take(2.5)  # type: ignore[operator]


def test_figure(tmp_path: Path) -> None:
    for name in ("tomita3", "a*", "S3"):
        path = tmp_path / "figure.png"
        explain(name).plot(path)
        assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UserError, match="at most 24 states; this DFA has 51"):
        explain("modular_arithmetic").plot(tmp_path / "large.png")
    assert not (tmp_path / "large.png").exists()
