"""Compiled networks: proved, exact over long words, and refuted when a table is spoilt."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from statetrack.automata import DFA, from_regex, group
from statetrack.compiler import CompiledRNN, compile, decompose, limits
from statetrack.compiler.dfa_to_cascade import METHODS
from statetrack.compiler.dfa_to_stage import states_as_axes
from statetrack.compiler.stages_to_network import HouseholderLayer, Layer
from statetrack.errors import UserError
from statetrack.explanation import explain
from tests.compiler.languages import (
    LANGUAGES,
    ONE_LAYER,
    SHORTER,
    STAR_FREE,
    lively_word,
    random_dfa,
    random_minimal,
)

FORMATS = (torch.float32, torch.bfloat16)
MILLION = ("S5", "tomita3", "modular_arithmetic")


def check_word(net: CompiledRNN, length: int, backend: str = "auto") -> None:
    word, states = lively_word(net.dfa, length)
    result = net.run(word, backend=backend)
    assert torch.equal(result.states, states)
    assert result.deviation == 0.0


@pytest.mark.parametrize("name", LANGUAGES)
@pytest.mark.parametrize("target", ["dense", "householder", "diagonal"])
def test_named_languages(name: str, target: str) -> None:
    if target == "diagonal" and name not in STAR_FREE:
        with pytest.raises(UserError, match=r"not star-free.*'householder' can"):
            compile(LANGUAGES[name], target)
        return
    for delay in ("shift", "state") if target != "diagonal" else ("shift",):
        net = compile(LANGUAGES[name], target, delay=delay)
        proof = net.prove()
        assert proof.holds, proof
        assert "token by token and in chunks, in float32 and bfloat16" in proof.claim
        assert net.certificate()["exact"]
        for dtype in FORMATS:
            check_word(net.to(dtype), 2_000)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("name", LANGUAGES)
def test_long_words(name: str, dtype: torch.dtype) -> None:
    net = compile(LANGUAGES[name], dtype=dtype)
    assert (len(net.layers) == 1) == (name in ONE_LAYER and name not in SHORTER)
    assert (len(compile(LANGUAGES[name], "householder").layers) == 1) == (name in ONE_LAYER)
    target = "diagonal" if name in STAR_FREE else "householder"
    assert {layer.target for layer in net.stack} == {target}
    check_word(net, 1_000_000 if name in MILLION else 100_000)


@pytest.mark.parametrize("backend", ["naive", "torch", "native"])
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("name", ["tomita3", "S5", "[ab]*aba[ab]*", "dyck1_depth3"])
def test_step_by_step_and_chunk_by_chunk(name: str, dtype: torch.dtype, backend: str) -> None:
    targets = ["householder"] + ["diagonal"] * (name in STAR_FREE)
    for target in targets:
        net = compile(LANGUAGES[name], target, dtype=dtype)
        check_word(net, 1_000 if backend == "naive" else 20_000, backend)


@pytest.mark.parametrize("method", ["holonomy", "strict", "banned"])
def test_random_automata(method: str) -> None:
    rng = np.random.default_rng(3)
    for i in range(12):
        target = ("dense", "householder")[i % 2]
        delay = ("shift", "state")[i // 2 % 2]
        dfa = random_dfa(rng, 3 + i % 6)
        net = compile(dfa, target, method, delay)
        assert net.prove().holds
        check_word(net, 200)
        words = rng.integers(2, size=(5, 40))
        ours = net.accepts(torch.tensor(words)).numpy()
        np.testing.assert_array_equal(ours, dfa.accepting[dfa.run(words)])


@pytest.mark.parametrize("method", METHODS)
def test_eighty_random_automata_are_proved(method: str) -> None:
    """Minimal DFAs of 3 to 10 states; none of them meets a limit, whatever the method."""
    for i in range(80):
        dfa = random_minimal(3 + i % 8, seed=i)
        net = compile(dfa, method=method)
        proof = net.prove()
        assert proof.holds, proof
        assert proof.claim.endswith("in float32 and bfloat16")
        if method in ("auto", "banned"):
            assert len(net.layers) <= dfa.states - 1
        if i % 10 == 0:  # an evaluation that shares nothing with the proof
            check_word(net, 200)


def test_forms_of_a_language() -> None:
    assert compile("(ab)*").dfa == from_regex("(ab)*")
    assert compile("Z3").dfa.states == 3
    assert compile(group("Z3")).title == compile("Z3").title
    assert len(compile("Z2_x_Z2").dfa.alphabet) == 4
    assert compile("tomita3").dfa.states == 5
    assert compile("regex:S3").dfa.alphabet == ("3", "S")
    cascade = decompose(from_regex("(ab)*"))
    net = compile(cascade)
    assert len(net.layers) == 2
    assert net.forms[0] is cascade
    assert compile("a*").dfa.states == 1  # every word: a layer of one state
    assert compile("a*").prove().holds


def test_a_group_acts_on_the_fewest_points() -> None:
    sizes = {"S3": 3, "A5": 5, "Z12": 7, "Z60": 12, "S5": 5, "Q8": 8}
    for name, points in sizes.items():
        net = compile(name)
        assert net.stack[0].size == points
        order = group(name).order
        words = np.random.default_rng(0).integers(order, size=(3, 50))
        products = words[:, :1]
        for t in range(1, 50):
            step = group(name).table[products[:, -1], words[:, t]]
            products = np.concatenate([products, step[:, None]], axis=1)
        np.testing.assert_array_equal(net(torch.tensor(words)).numpy(), products)


def test_a_permutation_automaton_acts_on_the_fewest_points() -> None:
    table = group("A5").table.astype(np.int64)
    letters = list(group("A5").generators())
    symbols = tuple(map(str, letters))
    dfa = DFA(symbols, table[:, letters], 0, np.arange(60) == 0, tuple(map(str, range(60))))
    net = compile(dfa)
    assert net.stack[0].size == 5
    assert net.prove().holds
    check_word(net, 500)


def test_it_goes_on_where_it_stopped() -> None:
    net = compile(LANGUAGES["modular_arithmetic"], delay="state")
    word, _ = lively_word(net.dfa, 300)
    whole = net(word)
    first = net.run(word[:, :123])
    second = net.run(word[:, 123:], first.carry)
    assert torch.equal(torch.cat([first.states, second.states], 1), whole)


@pytest.mark.parametrize("delay", ["shift", "state"])
@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("modular_arithmetic", "householder"),
        ("tomita3", "dense"),
        ("[ab]*aba[ab]*", "diagonal"),
        ("S3", "householder"),
    ],
)
def test_a_spoilt_table_is_refuted_by_a_word(name: str, target: str, delay: str) -> None:
    if target == "diagonal" and delay == "state":
        delay = "shift"
    rng = np.random.default_rng(0)
    refuted = 0
    for _ in range(20):
        net = compile(LANGUAGES[name], target, delay=delay)
        layer = net.stack[int(rng.integers(len(net.layers)))]
        tables = layer.tables()
        table = tables[sorted(tables)[int(rng.integers(len(tables)))]].view(-1)
        place = int(rng.integers(len(table)))
        table[place] = 0 if table[place] else 0.5
        proof = net.prove()
        assert proof.holds == (not goes_astray(net))
        if proof.holds:  # the entry makes no difference, such as the key of a beta that is 0
            check_word(net, 500)
            continue
        refuted += 1
        assert proof.counterexample
        word = net.dfa.encode(proof.counterexample)[None]
        result = net.run(torch.tensor(word))
        wrong = bool((result.states.numpy() != net.dfa.run(word)).any())
        assert wrong or result.deviation > 0
        assert "layer" in proof.reason
    assert refuted >= 4


def dense_maps(layer: Layer) -> tuple[torch.Tensor, torch.Tensor]:
    """A [rules, n, n] and B [rules, n, V] by the definition of the layer's op."""
    t = layer.tables()
    if layer.target == "dense":
        return t["A"], t["B"]
    A = t["gates"][:, None, None] * torch.eye(layer.size)
    B = torch.zeros(layer.rules, *layer.H0.shape)
    if layer.target == "diagonal":
        return A, t["keys"][:, :, None] * t["values"][:, None, :]
    for k, beta, v in zip(
        *(t[name].unbind(1) for name in ("keys", "betas", "values")), strict=True
    ):
        A = A - beta[:, None, None] * k[:, :, None] * (k[:, None, :] @ A)
        B = B + k[:, :, None] * (beta[:, None, None] * (v[:, None] - k[:, None] @ B))
    return A, B


def goes_astray(net: CompiledRNN) -> bool:
    """Whether A h + B is not the next codeword in some step that can be reached, one by one."""
    tables = []
    for layer in net.stack:
        A, B = dense_maps(layer)
        h = A[:, None] @ layer.codewords + B[:, None]  # [rules, S, n, V]
        right = (h == layer.codewords[layer.moves]).flatten(2).all(2)
        current = layer.current(np.arange(layer.moves.shape[1]))
        tables.append((layer.moves.tolist(), right.tolist(), layer.out[:, current].tolist()))
    start = tuple(layer.start for layer in net.stack)
    seen, pending = {start}, [start]
    for states in pending:  # grows while it is read
        for rule in net.first.tolist():
            after = []
            for (moves, right, out), state in zip(tables, states, strict=True):
                if not right[rule][state]:
                    return True
                after.append(moves[rule][state])
                rule = out[rule][state]
            if tuple(after) not in seen:
                seen.add(tuple(after))
                pending.append(tuple(after))
    return False


def test_a_spoilt_look_up_is_refuted_by_a_word() -> None:
    net = compile(LANGUAGES["modular_arithmetic"])
    net.stack[0].out[0] = net.stack[0].out[0].roll(1)
    proof = net.prove()
    assert proof.counterexample is not None
    word = net.dfa.encode(proof.counterexample)[None]
    assert net(torch.tensor(word))[0, -1] != net.dfa.run(word)[0, -1]
    assert "instead of" in str(proof)


@pytest.mark.parametrize("target", ["householder", "diagonal"])
def test_a_chunk_that_is_wrong_is_found(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Token by token everything is right, words at once are not."""
    name = "[ab]*aba[ab]*"
    net = compile(LANGUAGES[name], target)
    kind = type(net.stack[-1])
    real = kind.run

    def spoilt(self: Layer, rules: torch.Tensor, *args: Any) -> Any:
        readings, last = real(self, rules, *args)
        if rules.shape[1] > 40:
            readings = readings.clone()
            readings[:, 40] = 3 - readings[:, 40]  # the other of two states
        return readings, last

    monkeypatch.setattr(kind, "run", spoilt)
    proof = net.prove()
    assert proof.counterexample is not None
    assert 41 <= len(proof.counterexample) <= 41 + net.dfa.states
    assert "at once" in proof.reason


def test_without_a_certificate_the_claim_is_for_single_tokens() -> None:
    net = compile("S3", "householder")
    keys, betas = net.stack[0].tables()["keys"], net.stack[0].tables()["betas"]
    keys[betas == 0] = 0.5  # makes no difference, but is no integer
    assert not net.certificate()["exact"]
    proof = net.prove()
    assert proof.holds
    assert "states), token by token, in float32" in proof.claim
    # nor has a factor that expands, though what it makes of the whole is of norm 1
    net = compile("Z2", "householder")
    layer = net.stack[0]
    assert isinstance(layer, HouseholderLayer)
    assert net.certificate()["exact"]
    for name, table in layer.tables().items():
        again = torch.cat([table, table], 1) if name != "gates" else table
        layer.register_buffer(name, again)
    layer.betas[1] = torch.tensor([-1.0, 3.0])[: layer.betas.shape[1]]
    assert not net.certificate()["exact"]


def test_a_spoilt_start_is_refuted_by_the_empty_word() -> None:
    net = compile("S3")
    net.stack[0].H0[0] += 1
    assert net.prove().counterexample == ()


def test_tables_and_report() -> None:
    net = compile(LANGUAGES["tomita3"], "householder")
    dense = compile(LANGUAGES["tomita3"], "dense")
    for ours, theirs in zip(net.stack, dense.stack, strict=True):
        for maps in (ours.matrices(), dense_maps(ours), theirs.matrices()):
            assert all(map(torch.equal, maps, dense_maps(theirs)))
    star_free = compile(LANGUAGES["[ab]*aba[ab]*"], "diagonal")
    dense = compile(LANGUAGES["[ab]*aba[ab]*"], "dense", star_free.forms[0].method)  # type: ignore[attr-defined]
    for ours, theirs in zip(star_free.stack, dense.stack, strict=True):
        for maps in (ours.matrices(), dense_maps(ours)):
            assert all(map(torch.equal, maps, dense_maps(theirs)))
    report = compile("S5").report(verbose=True)
    assert "Layer 1: householder, state [5, 4], 120 update rules, 4 Householder factors" in report
    assert report.startswith("Computes S5 exactly at any length in float32 and bfloat16")


def test_writes_that_add_up_are_not_certified() -> None:
    """Integers and norms of 1 are not enough: a reset that keeps the old state counts on."""
    net = compile(LANGUAGES["flip_flop"], "dense")
    layer = net.stack[0]
    resets = layer.B.flatten(1).any(1)
    assert net.certificate()["fresh_writes"]
    layer.A[resets] = torch.eye(layer.size)
    facts = net.certificate()
    assert (facts["integer_entries"], facts["largest_norm"]) == (True, 1.0)
    assert not facts["exact"]


def test_bfloat16_holds_integers_up_to_256() -> None:
    cycle = (np.arange(257) + 1) % 257
    net = compile(DFA(("a",), cycle[:, None], 0, np.arange(257) == 0), "dense")
    assert net.certificate()["formats"] == ["float32"]
    proof = net.prove()
    assert proof.holds
    assert "bfloat16" not in proof.claim
    check_word(net, 600)
    with pytest.raises(UserError, match=r"bfloat16 holds integers up to 256.*reads.*257.*float32"):
        net.to(torch.bfloat16)
    with pytest.raises(UserError, match="bfloat16 holds"):
        torch.nn.Sequential(net).bfloat16()
    with pytest.raises(UserError, match="bfloat16 holds"):
        compile(net.dfa, dtype=torch.bfloat16)
    assert net.stack[0].H0.dtype is torch.float32  # nothing has changed
    check_word(net.double(), 600)


def test_limits_come_before_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_TABLE_CELLS", 300)
    for text in ("(abc)*", "Z5", "(a|b)*aba(a|b)*"):
        compile(text)
    with pytest.raises(
        UserError, match=r"2 update rules, 20 axes and 21 states.* 800 numbers; at most"
    ):
        compile("a" * 18 + "b?")
    monkeypatch.setattr(limits, "MAX_TABLE_CELLS", 120)  # the old state doubles the axes
    compile("(a|b)*aba(a|b)*", "householder", "banned")
    with pytest.raises(UserError, match=r"8 axes and 20 states has.*at most 120"):
        compile("(a|b)*aba(a|b)*", "householder", "banned", delay="state")
    # what would take terabytes is refused all the same
    cycle = (np.arange(3_000_000) + 1) % 3_000_000
    monkeypatch.undo()
    with pytest.raises(UserError, match="3,000,000 axes"):
        states_as_axes(DFA(("a",), cycle[:, None], 0, cycle == 0), len(cycle))


def refusals() -> list[tuple[dict[str, object], str]]:
    star_free = from_regex(".*aba.*", "ab")
    return [
        ({"language": "(ab)*", "target": "gpu"}, "target must be one of auto, dense"),
        ({"language": "(ab)*", "method": "none"}, "method must be one of"),
        ({"language": "(ab)*", "delay": "none"}, "delay must be one of shift, state"),
        ({"language": "(ab)*", "dtype": torch.int64}, "floating-point type.*got torch.int64"),
        ({"language": 3}, "a language is a regular expression.*got int"),
        (
            {"language": star_free, "target": "diagonal", "method": "banned"},
            "method 'banned' has layers that permute.*'strict' has none",
        ),
        (
            {"language": star_free, "target": "diagonal", "delay": "state"},
            "delay 'state'.*delay 'shift' can do without",
        ),
        ({"language": "Z509"}, "509 update rules, 509 axes.*fewer symbols"),
    ]


@pytest.mark.parametrize(("arguments", "message"), refusals())
def test_refusals(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        compile(**arguments)  # type: ignore[arg-type]


def test_tokens_that_are_none() -> None:
    net = compile("(ab)*")
    with pytest.raises(UserError, match="symbols from 0 to 1; got 0 to 2"):
        net(torch.tensor([[0, 2]]))
    with pytest.raises(UserError, match="whole numbers \\[B, T\\]"):
        net(torch.tensor([0, 1]))
    with pytest.raises(UserError, match="whole numbers"):
        net(torch.zeros(1, 3))


def test_names_of_groups_are_not_regular_expressions() -> None:
    assert compile("S3").dfa.states == 6
    assert compile(from_regex("S3")).dfa.alphabet == ("3", "S")


PLURAL_OF_ONE = (
    r"\b1 (generalised )?(Householder )?(layer|state|symbol|block|update rule|head|factor|weight|"
    r"step|element|level|reset|permutation|identitie)s\b"
)


def test_one_of_a_thing_is_no_plural() -> None:
    texts = [explain(text).report(verbose=True) for text in ("a{1}", "a*")]
    for language, target in (
        ("(0|1)*1", "diagonal"),
        ("a*", "householder"),
        ("Z2", "gated_deltaproduct"),
    ):
        net = compile(language, target)
        texts += [net.report(net.prove(), verbose=True), net.report()]
    texts.append(compile("(0|1)*1", "diagonal", "holonomy").report(verbose=True))
    assert [text for text in texts if re.search(PLURAL_OF_ONE, text)] == []
    assert texts[-1].startswith("Computes (0|1)*1 exactly at any length in float32 and bfloat16")
    assert "\nA cascade of 1 layer for a DFA with " in texts[-1]
    assert "\nSettings: method holonomy, target diagonal." in texts[-1]


def test_long_reports_are_abridged() -> None:
    net = compile("a{26}", "diagonal")
    report = net.report(verbose=True)
    assert "and 21 more layers" in report
    assert "and 22 more stages" in report
    assert "and 21 more levels" in str(net.forms[0])
    assert "2, 2, 2, 2, 2, 2, 2, 2, ... 27 layers" in str(explain("a{26}"))
    assert len(net.report().splitlines()) == 2


@pytest.mark.parametrize("name", [name for name in STAR_FREE if len(compile(name).layers) > 1])
def test_auto_names_the_single_layer_that_it_did_not_take(name: str) -> None:
    found = re.search(
        "'householder' would have one layer, with a state of size ([0-9]+)", compile(name).report()
    )
    assert (found is not None) == (name in SHORTER)
    if found:
        (layer,) = compile(name, "householder").stack
        assert layer.size == int(found[1])
    assert "would have" not in compile(name, "diagonal").report()
