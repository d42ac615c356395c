"""Languages as ordinary models: proved, exact over long words, refuted when a weight is spoilt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from statetrack.errors import UserError
from statetrack.models import SequenceModel
from statetrack.ops import native
from statetrack.theory import CompiledModel, compile
from statetrack.theory import model as model_module
from statetrack.theory.hub import hub_swaps
from tests.theory.languages import LANGUAGES, ONE_LAYER, lively_word, random_dfa

TARGET = "gated_deltaproduct"
FORMATS = (torch.float32, torch.bfloat16)
# of several layers, for sinks as the vector 0 take projectors
CASCADES = ("(ab)*", "Tomita 2", "Dyck")
LARGE = ("S5", "A5", "D12", "Z60", "Tomita 3", "Dyck", "arithmetic modulo 5")  # slow in bfloat16


def check_word(net: CompiledModel, length: int) -> None:
    word, states = lively_word(net.dfa, length)
    assert torch.equal(net(word), states)


@pytest.mark.parametrize("name", LANGUAGES)
def test_named_languages(name: str) -> None:
    net = compile(LANGUAGES[name], TARGET)
    proof = net.prove()
    assert proof.holds, proof
    assert "float32 and bfloat16" in str(proof)
    facts = net.certificate()
    assert facts["exact"]
    assert facts["formats"] == ["float32", "bfloat16"]
    assert facts["longest_chunk"] >= 1 << 18  # beyond any chunk of the ops
    one_block = name in ONE_LAYER and name not in CASCADES
    assert (net.model.config.num_layers == 1) == one_block
    check_word(net, 100_000)
    net.model.to(torch.bfloat16)
    check_word(net, 2_000 if name in LARGE else 100_000)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("name", ["Z5", "S3", "Tomita 3", "contains aba"])
def test_without_native_kernels(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = compile(LANGUAGES[name], TARGET, dtype=dtype)
    monkeypatch.setattr(native, "WHY_MISSING", "not asked")
    assert not native.serves(torch.zeros(1))
    assert net.prove().holds
    check_word(net, 10_000)


def test_states_are_whole_numbers() -> None:
    """Chunk by chunk or token by token: the same bits, 0 or the same number everywhere."""
    for name in ("S3", "Tomita 3", "flip-flop"):
        for dtype in FORMATS:
            net = compile(LANGUAGES[name], TARGET, dtype=dtype)
            word, _ = lively_word(net.dfa, 99)
            with torch.no_grad():
                _, whole = net.model(word + 1)
                state = net.model.init_state(1)
                for token in (word + 1).unbind(1):
                    _, state = net.model.step(token, state)
            for layer, other in zip(whole, state, strict=True):
                assert torch.equal(layer.S, other.S)
                assert set(layer.S.unique().tolist()) <= {0.0, 1024.0}


def test_padding_changes_nothing() -> None:
    for name in ("Z5", "contains aba", "Tomita 3"):
        net = compile(LANGUAGES[name], TARGET)
        word, states = lively_word(net.dfa, 50)
        spread = torch.zeros(1, 100, dtype=torch.long)
        spread[:, ::2] = word + 1
        with torch.no_grad():
            logits, _ = net.model(spread)
        told = logits[:, ::2].argmax(-1) - 1 - len(net.dfa.alphabet)
        assert torch.equal(told, states)


@pytest.mark.parametrize("method", ["holonomy", "strict", "banned"])
def test_random_automata(method: str) -> None:
    rng = np.random.default_rng(5)
    for i in range(6):
        dfa = random_dfa(rng, 3 + i % 4)
        net = compile(dfa, TARGET, method)
        assert net.prove().holds
        words = rng.integers(2, size=(3, 60))
        ours = net.accepts(torch.tensor(words)).numpy()
        np.testing.assert_array_equal(ours, dfa.accepting[dfa.run(words)])


def test_one_state() -> None:
    net = compile("a*", TARGET)
    assert net.prove().holds
    assert net(torch.tensor([[0, 0]])).tolist() == [[0, 0]]


def test_a_spoilt_weight_is_found() -> None:
    """A proof must name a word on which the model really is wrong."""
    for weight in ("blocks.0.mixer.qkv_proj.weight", "blocks.1.mixer.conv.weight"):
        net = compile(LANGUAGES["contains aba"], TARGET)
        with torch.no_grad():
            net.model.get_parameter(weight).zero_()
        proof = net.prove()
        assert not proof.holds
        assert proof.counterexample is not None
        word = net.dfa.encode(proof.counterexample)[None]
        right = net.dfa.run(word)[0]
        told = net(torch.tensor(word)).numpy()[0]
        assert told[-1] != right[-1]
        np.testing.assert_array_equal(told[:-1], right[:-1])


def test_a_chunk_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Token by token everything is right, whole words are not."""
    net = compile(LANGUAGES["Tomita 3"], TARGET)
    real = SequenceModel.forward

    def spoilt(self: SequenceModel, tokens: torch.Tensor, state: Any = None) -> Any:
        logits, state = real(self, tokens, state)
        logits[:, 40] = logits[:, 40].roll(1, dims=-1)
        return logits, state

    monkeypatch.setattr(SequenceModel, "forward", spoilt)
    proof = net.prove()
    assert proof.counterexample is not None
    assert len(proof.counterexample) >= 41

    def astray(self: SequenceModel, tokens: torch.Tensor, state: Any = None) -> Any:
        logits, (first, *rest) = real(self, tokens, state)
        return logits, (first._replace(S=first.S * 1.001), *rest)

    monkeypatch.setattr(SequenceModel, "forward", astray)
    assert not net.prove().holds


@pytest.mark.parametrize(
    ("weight", "factor"),
    [
        ("blocks.0.mixer.beta.proj.weight", 1e-3),  # no reflection
        ("blocks.0.mixer.a_proj.weight", 1e-3),  # a gate between 0 and 1
        ("blocks.1.mixer.qkv_proj.weight", 0.3),  # values of no small power of two
    ],
)
def test_what_rounds_has_no_certificate(weight: str, factor: float) -> None:
    net = compile(LANGUAGES["contains aba"], TARGET)
    with torch.no_grad():
        net.model.get_parameter(weight).mul_(factor)
    facts = net.certificate()
    assert not facts["exact"]
    assert facts["longest_chunk"] == 0


def test_swaps_with_the_hub() -> None:
    rng = np.random.default_rng(0)
    for size in range(1, 9):
        for _ in range(30):
            points = rng.permutation(size).tolist()
            images = list(range(size))  # of each point so far
            swaps = hub_swaps(points)
            for other in swaps:
                images = [{0: other, other: 0}.get(i, i) for i in images]
            assert images == points
            assert len(swaps) <= 3 * (size - 1) / 2


def test_a_step_of_the_delta_rule_swaps_with_the_hub() -> None:
    """The geometry that the construction rests on, in exact numbers."""
    n = 6
    u = np.zeros((n, 2 * n))
    for i in range(1, n):
        u[i, [0, 1, 2 * i, 2 * i + 1]] = 1
    for i in range(1, n):
        k = u[i] / 2
        assert k @ k == 1
        after = u - 2 * np.outer(u @ k, k) + 2 * k
        expected = u.copy()
        expected[[0, i]] = u[[i, 0]]
        np.testing.assert_array_equal(after, expected)


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="delay must be 'shift'"):
        compile("(ab)*", TARGET, delay="state")
    monkeypatch.setattr(model_module, "MAX_WEIGHTS", 1000)
    with pytest.raises(UserError, match=r"1,497 weights; at most 1,000.*householder takes fewer"):
        compile("(ab)*", TARGET)
    net = compile("a|b", TARGET)
    with pytest.raises(UserError, match="symbols from 0 to 1; got 0 to 2"):
        net(torch.tensor([[0, 2]]))
    with pytest.raises(UserError, match="more than 2 states"):
        net.prove(max_states=2)
