"""Explanations: their facts against the automata themselves."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import rc_context

from statetrack.automata import DFA, from_regex
from statetrack.compiler import compile, decompose, decomposition, theorems
from statetrack.compiler.counting import DIAGONAL
from statetrack.compiler.languages import find_dfa, find_language
from statetrack.compiler.targets import DiagonalLayer
from statetrack.diagnosis.verdicts import architectural
from statetrack.errors import UserError
from statetrack.explanation import explain
from statetrack.explanation.explain import Explanation
from statetrack.layers import MIXERS
from statetrack.models import ModelConfig, SequenceModel
from tests.compiler.languages import LANGUAGES, ONE_LAYER, SHORTER
from tests.compiler.languages import STAR_FREE as NO_GROUPS

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
    assert data["sufficient"]["layers"] <= data["most_layers"]
    assert data["left_out"] == {}
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

    first, second = theorems("parity")
    assert first.startswith("Theorem 1: eigenvalues in [0,1]: Mamba")
    assert "DeltaProduct of two factors" in first
    # products of three can have negative eigenvalues, so that Theorem 1 says nothing of them
    assert second.startswith("Proposition 1.3: (Gated) DeltaProduct of 3 or more factors [0,1]")
    # of longer words, as many factors fewer per token
    first, second = theorems("modular_arithmetic")[:2]
    assert ("(Gated) DeltaNet (gated" in first, "DeltaProduct" in first) == (True, False)
    assert "DeltaProduct of 2 or more factors" in second
    first, second = theorems("b*(aa*bb*aa*bb*)*a*")[:2]
    assert "Delta" not in first
    assert "(Gated) DeltaNet and DeltaProduct [0,1]" in second
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
    assert "left out, the algebra: the transition monoid of a DFA with 8 states" in str(found)
    assert found.net is not None  # the rest is known
    assert found.to_dict()["star_free"] is None
    # but what single symbols count is known
    assert "powers of s are counted modulo 2" in str(found)
    check_counters(found)
    assert {counter.m for counter in found.counters} == {2, 8}


def test_tables_that_are_too_large() -> None:
    found = explain("Z509")
    text = str(found)
    assert found.net is None
    assert "sufficient: 1 layer with eigenvalues in [-1, 1] (Theorems 3 and 4)" in text
    assert "left out, the network: a layer with 509 contexts" in text
    assert "at most 100,000,000 are supported" in text
    assert found.exclusions
    assert found.cascade is not None
    data = json.loads(json.dumps(found.to_dict()))
    assert data["sufficient"] is None
    assert list(data["left_out"]) == ["network"]
    assert len(data["dfa"]["transitions"]) == 509


def test_everything_too_large(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        importlib.import_module("statetrack.explanation.explain"), "MAX_TRANSITIONS", 9
    )
    found = explain("a*b*a*b*")
    text = str(found)
    assert "left out, the algebra and cascade and network: 5 states and 2 symbols make 10" in text
    assert "at most 9 are explained" in text
    assert "whatever the weights: not known" in text
    assert "sufficient: 4 layers" in text
    found.plot(tmp_path / "automaton.png")
    assert (tmp_path / "automaton.png").is_file()


def test_cascades_that_explode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decomposition, "MAX_CONTEXTS", 3)
    found = explain("a*b*a*b*")
    assert found.properties is not None
    assert (found.cascade, found.net) == (None, None)
    assert "left out, the cascade and network: no method has a cascade" in str(found)
    assert "more than 3 contexts" in str(found)
    assert "compile smaller languages" in str(found)
    # some symbols before the end, or after the start
    backwards = from_regex("(a|b){4}a(a|b)*").minimal().states
    assert f"its words, read from the end, are a language with {backwards} states" in str(
        explain("(a|b)*a(a|b){4}")
    )


def test_large_automata_have_a_short_table() -> None:
    text = str(explain("S5"))
    assert "and 114 more states: --json has them all" in text
    assert "5 -> 5   and 114 more" in text
    assert "permute 1 0 3 2 5 4 7 6 ... 120 coordinates" in text
    assert max(map(len, text.splitlines())) < 220
    small = str(explain("dyck1_depth3"))
    assert "more states" not in small


@pytest.mark.parametrize("name", LANGUAGES)
def test_star_free_languages_have_gates_of_0_and_1(name: str) -> None:
    """`compile` takes them by itself; where projectors make a shorter network, both are told."""
    found = explain(LANGUAGES[name])
    assert (found.gates is not None) == (name in NO_GROUPS)
    if found.gates is None:
        return
    for layer in found.gates.stack:
        assert isinstance(layer, DiagonalLayer)
        assert set(layer.gates.unique().tolist()) <= {0.0, 1.0}
    assert found.gates.prove().holds
    assert "with gates of 0 and 1, eigenvalues in [0, 1]" in str(found)
    assert ("sufficient as well" in str(found)) == (found.net is not found.gates)
    assert all(isinstance(layer, DiagonalLayer) for layer in compile(LANGUAGES[name]).stack)
    assert ("sufficient: 1 layer with" in str(found)) == (name in ONE_LAYER)
    assert (found.net is not found.gates) == (name in SHORTER)


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


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("s5", "S5"), ("S 5", "S5"), ("a4 x z5", "A4_x_Z5"), ("q8", "Q8"), ("Tomita 3", "tomita3"),
        ("tomita-3", "tomita3"), ("flip-flop", "flip_flop"), ("FlipFlop", "flip_flop"),
        ("s5 up to 3", "S5_up_to_3"), ("Dyck1 depth 4", "dyck1_depth4"),
        ("Random DFA 8 seed 0", "random_dfa8_seed0"), ("Even Pairs", "even_pairs"),
    ],
)  # fmt: skip
def test_names_however_they_are_spelt(given: str, name: str) -> None:
    found, meant = find_language(given), find_language(name)
    assert (found.text, found.kind) == (name, meant.kind)
    assert find_dfa(given) == find_dfa(name)


@pytest.mark.parametrize("text", ["ab", "abba", "a-b", "a5b", "ba5", "a1", "A", "a_b", "flip|flop"])
def test_what_is_no_name_stays_a_regular_expression(text: str) -> None:
    found = find_language(text)
    assert (found.text, found.kind) == (text, "regular expression")
    assert found.value == from_regex(text)


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


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("D12", ["left out: 24 states, 576 arrows", "of 1 level", "24 coordinates", "1 identity"]),
        ("a*b*", ["cascade of 2 levels", "old coordinates to its left", "1 reset"]),
        ("a{26}", ["left out: 28 states", "and 19", "more levels"]),
    ],
)
def test_figure_of_what_can_be_drawn(tmp_path: Path, name: str, says: list[str]) -> None:
    with rc_context({"svg.fonttype": "none"}):  # texts as texts
        explain(name).plot(tmp_path / "figure.svg")
    texts = (tmp_path / "figure.svg").read_text()
    assert [words for words in says if words not in texts] == []
    assert ("automaton left out" in texts) == (name != "a*b*")


def test_nothing_to_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decomposition, "MAX_CONTEXTS", 3)
    with pytest.raises(UserError, match="nothing to draw: the automaton has 32 states, 64 arrows"):
        explain("(a|b)*a(a|b){4}").plot(tmp_path / "large.png")
    assert not (tmp_path / "large.png").exists()
