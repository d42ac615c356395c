"""Explanations: their facts against the automata themselves."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from matplotlib import rc_context

from statetrack.automata import DFA, from_regex
from statetrack.compiler import compile, decompose, limits, theorems
from statetrack.compiler.stages_to_network import DiagonalLayer
from statetrack.compiler.text_to_dfa import find_dfa, find_language
from statetrack.diagnosis.verdicts import architectural
from statetrack.errors import UserError
from statetrack.explanation import explain
from statetrack.explanation.explain import Explanation
from statetrack.layers import (
    MIXERS,
    DeltaProductConfig,
    Diagonal,
    GatedDeltaProductConfig,
    Mixer,
    MixerConfig,
)
from statetrack.models import ModelConfig, SequenceModel
from tests.compiler.cascades import verify
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
    assert ("Star-free (aperiodic)" in str(found)) == (name in STAR_FREE)
    assert verify(found.cascade).holds
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


def excluded(name: str) -> dict[tuple[str, int | None], set[str]]:
    found = explain(name).exclusions
    return {(e.theorem, e.layers): set(e.architectures) for e in found}


def test_who_is_excluded() -> None:
    parity = excluded("parity")
    assert list(parity) == [("Theorem 1", None), ("Proposition 1.3", None)]
    first = parity["Theorem 1", None]
    assert {"Mamba [0,1]", "DeltaNet [0,1]", "DeltaProduct [0,1], n = 2"} <= first
    assert not any("[-1,1]" in title for title in first)
    # products of three can have negative eigenvalues, so that Theorem 1 says nothing of them
    assert parity["Proposition 1.3", None] == {
        "DeltaProduct [0,1], n >= 3", "Gated DeltaProduct [0,1], n >= 3"
    }  # fmt: skip
    # for longer words, fewer factors per token
    arithmetic = excluded("modular_arithmetic")
    assert "Gated DeltaNet [0,1]" in arithmetic["Theorem 1", None]
    assert "DeltaProduct [0,1], n = 2" in arithmetic["Proposition 1.3", None]
    assert not any("Delta" in t for t in excluded("b*(aa*bb*aa*bb*)*a*")["Theorem 1", None])
    assert "Mamba [-1,1]" in excluded("Z3")["Theorem 2", None]
    assert "DeltaNet [-1,1]" in excluded("Z3")["Theorem 2", 1]
    assert "Mamba [-1,1]" in excluded("(aaaa)*")["Theorem 2", 1]
    assert {"Theorem 1", "Proposition 1.3"} == {t for t, _ in excluded("tomita3")}
    # no single symbol goes around more than two states
    assert ("Theorem 2", 1) not in arithmetic
    text = str(explain("Z3").exclusions[-1])
    assert text.startswith("1 layer of DeltaNet [-1,1]; Gated DeltaNet [0,1], gate [-1,1]; ")
    assert text.endswith(
        "(Theorem 2): powers of 1 are counted modulo 3, and all eigenvalues are real"
    )


@pytest.mark.parametrize("name", ["parity", "Z3", "Z6", "(aaaa)*", "tomita3", "(a(ab*a)b)*"])
def test_exclusions_are_those_of_the_diagnosis(name: str) -> None:
    """For models of the same layers `diagnose` must rule out the same languages."""
    found = explain(name)
    too_few = {title: e.layers for e in found.exclusions for title in e.architectures}
    for kind in MIXERS.values():
        for title, config in kind.architectures().items():
            for layers in (1, 2, 3):
                model = SequenceModel(ModelConfig(3, 12, layers, config, mlp="none"))
                transitions = model.transitions(torch.randint(3, (1, 6)))
                bounds = [(architectural(transitions, len(c.word)).factor, c.m) for c in
                          found.counters]  # fmt: skip
                ruled_out = any(factor is not None and factor % m for factor, m in bounds)
                most = too_few.get(title, 0)
                assert ruled_out == (most is None or layers <= most), (title, layers)


@pytest.mark.parametrize("kind", [DeltaProductConfig, GatedDeltaProductConfig])
def test_guarantees_from_three_factors_on_are_the_same(kind: type[MixerConfig]) -> None:
    for title, config in kind.architectures().items():
        if "n >= 3" in title:
            first, *others = [
                replace(config, num_householder=n).build(12).transitions(torch.zeros(1, 1, 12))
                for n in (3, 4, 5, 8)
            ]
            for other in others:
                for length in (1, 2, 3):
                    assert first.guarantee(length) is other.guarantee(length)


def test_a_layer_of_a_plugin_is_in_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    class Decay(Mixer):
        """S_t = S_{t-1} / 2 + x_t."""

        @dataclass(frozen=True)
        class config_class(MixerConfig):  # noqa: N801
            name: ClassVar[str] = "decay"
            label: ClassVar[str] = "Decay"

        def mix(self, *args: Any) -> Any:
            raise NotImplementedError  # explain needs the transitions alone

        init_state = mix

        def transitions(self, x: torch.Tensor) -> Diagonal:
            return Diagonal(torch.full_like(x, 0.5)[:, :, None], (0.0, 1.0))

    monkeypatch.setattr("statetrack.layers.base.MIXERS", MIXERS)
    monkeypatch.setitem(MIXERS, "decay", Decay.config_class)
    Decay.config_class.layer = Decay
    assert "Decay [0,1]" in excluded("parity")["Theorem 1", None]


def test_a_monoid_that_is_too_large(tmp_path: Path) -> None:
    n = 8
    shift, swap, merge = np.roll(np.arange(n), -1), np.arange(n), np.arange(n)
    swap[:2], merge[0] = [1, 0], 1
    dfa = DFA(("r", "s", "m"), np.stack([shift, swap, merge], 1), 0, np.arange(n) == 0)
    path = tmp_path / "t8.json"
    path.write_text(json.dumps(dfa.to_json()))
    found = explain(str(path))
    assert found.properties is None
    assert "Left out, the algebra: the transition monoid of a DFA with 8 states" in str(found)
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
    assert "Enough: 1 layer with eigenvalues in [-1, 1] (Theorems 3 and 4)" in text
    assert "Left out, the network: a layer with 509 update rules" in text
    assert "at most 100,000,000 are supported" in text
    assert found.exclusions
    assert found.cascade is not None
    data = json.loads(json.dumps(found.to_dict()))
    assert data["sufficient"] is None
    assert list(data["left_out"]) == ["network"]
    assert len(data["dfa"]["transitions"]) == 509


def test_everything_too_large(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(limits, "MAX_EXPLAINED_TRANSITIONS", 9)
    found = explain("a*b*a*b*")
    text = str(found)
    assert "Left out, the algebra and cascade and network: 5 states and 2 symbols make 10" in text
    assert "at most 9 are explained" in text
    assert "whatever the weights: not known" in text
    assert "Enough: 4 layers" in text
    found.plot(tmp_path / "automaton.png")
    assert (tmp_path / "automaton.png").is_file()


def test_cascades_that_explode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CASCADE_RULES", 3)
    found = explain("a*b*a*b*")
    assert found.properties is not None
    assert (found.cascade, found.net) == (None, None)
    assert "Left out, the cascade and network: no method has a cascade" in str(found)
    assert "more than 3 update rules" in str(found)
    assert "compile smaller languages" in str(found)
    # some symbols before the end, or after the start
    backwards = from_regex("(a|b){4}a(a|b)*").minimal().states
    assert f"its words, read from the end, are a language with {backwards} states" in str(
        explain("(a|b)*a(a|b){4}")
    )


def test_large_automata_have_a_short_table() -> None:
    text = explain("S5").report(verbose=True)
    assert "and 114 more states: --json has them all" in text
    assert "5 -> 5   and 114 more" in text
    assert "permute 1 0 3 2 5 4 7 6 ... 120 states" in text
    assert max(map(len, text.splitlines())) < 320
    small = explain("dyck1_depth3").report(verbose=True)
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
    assert ("Enough as well" in str(found)) == (found.net is not found.gates)
    assert all(isinstance(layer, DiagonalLayer) for layer in compile(LANGUAGES[name]).stack)
    assert ("Enough: 1 layer with" in str(found)) == (name in ONE_LAYER)
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
        ("D12", ["left out: 24 states, 576 arrows", "of 1 level", "24 states", "1 identity"]),
        ("a*b*", ["cascade of 2 levels", "old states to its left", "1 reset"]),
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
    monkeypatch.setattr(limits, "MAX_CASCADE_RULES", 3)
    with pytest.raises(UserError, match="nothing to draw: the automaton has 32 states, 64 arrows"):
        explain("(a|b)*a(a|b){4}").plot(tmp_path / "large.png")
    assert not (tmp_path / "large.png").exists()
