"""Languages as ordinary models: proved, exact over long words, refuted when a weight is spoilt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from statetrack.compiler import CompiledModel, compile, limits
from statetrack.compiler.model import has_whole_products
from statetrack.compiler.stages_to_model import reference_swaps
from statetrack.errors import UserError
from statetrack.kernels import library
from statetrack.models import SequenceModel
from statetrack.ops import delta_rule
from statetrack.ops.recurrence.chunk_delta import MAX_CHUNK
from tests.compiler.languages import LANGUAGES, ONE_LAYER, SHORTER, lively_word, random_dfa

TARGET = "gated_deltaproduct"
FORMATS = (torch.float32, torch.bfloat16)
LARGE = (
    "S5",
    "A5",
    "D12",
    "Z60",
    "tomita3",
    "dyck1_depth3",
    "modular_arithmetic",
)  # slow in bfloat16


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
    assert facts["whole_products"]
    assert facts["longest_chunk"] >= 8 * MAX_CHUNK
    one_block = name in ONE_LAYER and name not in SHORTER  # which take projectors
    assert (net.model.config.num_layers == 1) == one_block
    check_word(net, 100_000)
    net.model.to(torch.bfloat16)
    check_word(net, 2_000 if name in LARGE else 100_000)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("name", ["Z5", "S3", "tomita3", "[ab]*aba[ab]*"])
def test_without_native_kernels(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = compile(LANGUAGES[name], TARGET, dtype=dtype)
    monkeypatch.setattr(library, "WHY_MISSING", "not asked")
    assert not library.serves(torch.zeros(1))
    assert net.prove().holds
    check_word(net, 10_000)


def test_states_are_whole_numbers() -> None:
    """Chunk by chunk or token by token: the same bits, 0 or the same number everywhere."""
    for name in ("S3", "tomita3", "flip_flop"):
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
    for name in ("Z5", "[ab]*aba[ab]*", "tomita3"):
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
        net = compile(LANGUAGES["[ab]*aba[ab]*"], TARGET)
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
    net = compile(LANGUAGES["tomita3"], TARGET)
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


def spoil(net: CompiledModel, what: str) -> None:
    """Change numbers of the first layer so that they round, but do not answer otherwise."""
    layer = net.model.blocks[0].mixer
    q, _, v = torch.split(layer.qkv_proj.weight, layer.sizes)
    with torch.no_grad():
        if what == "values":  # a third of a power of two
            v /= 3
        elif what == "queries":  # of two equal coordinates, so (1, 1) / sqrt(2)
            pairs = q.view(layer.config.num_heads, -1, 2, q.shape[1])
            pairs[:, :, 1] = pairs[:, :, 0]
        elif what == "values of float32":  # bfloat16 makes 1024 of it
            v *= 1023 / 1024


@pytest.mark.parametrize(
    ("what", "dyadic"), [("values", True), ("queries", False), ("values of float32", True)]
)
def test_what_rounds_has_no_certificate(what: str, dyadic: bool) -> None:
    """Though every answer is right: a proof token by token is none for chunks."""
    net = compile(LANGUAGES["flip_flop"], TARGET)
    assert net.certificate()["exact"]
    spoil(net, what)
    assert net.prove().holds
    facts = net.certificate()
    assert facts["dyadic_entries"] is dyadic
    assert facts["longest_chunk"] < MAX_CHUNK
    assert not facts["exact"]
    assert facts["formats"] == (["bfloat16"] if what == "values of float32" else [])


@pytest.mark.parametrize("weight", ["beta.proj.weight", "a_proj.weight"])
def test_what_is_wrong_has_no_certificate(weight: str) -> None:
    net = compile(LANGUAGES["[ab]*aba[ab]*"], TARGET)
    with torch.no_grad():
        net.model.get_parameter(f"blocks.0.mixer.{weight}").mul_(1e-3)  # no longer 0, 1 or 2
    facts = net.certificate()
    assert (facts["dyadic_entries"], facts["exact"]) == (False, False)


def test_halves_alone_do_not_make_whole_products() -> None:
    k = torch.tensor([[1.0, 0, 0, 0], [0.5, 0.5, 0.5, 0.5]])[None, :, None]  # [1, n, 1, K]
    assert not has_whole_products(k, torch.ones(1, 2, 1))
    assert has_whole_products(k, torch.full((1, 2, 1), 2.0))


def test_chunks_of_the_certified_kind_are_exact() -> None:
    """Random swaps with the reference, keeps and resets: float32 has float64's numbers."""
    rng = np.random.default_rng(0)
    points, tokens = 8, 50 * MAX_CHUNK
    u = np.zeros((points, 2 * points))
    for i in range(points):
        u[i, [0, 1]] = u[i, [2 * i, 2 * i + 1]] = 1
    k = u[rng.integers(1, points, size=(3, tokens, 1))] / 2
    beta = rng.choice([0.0, 2.0], size=(3, tokens, 1), p=[0.1, 0.9])
    decay = rng.choice([0.0, 1.0], size=(3, tokens, 1), p=[0.01, 0.99])
    v, q = np.full((3, tokens, 1, 1), 1024.0), np.eye(2 * points)[rng.integers(2, 16, k.shape[:3])]
    inputs = [torch.tensor(x) for x in (q, k, v, beta)]
    options = {"scale": 0.25, "output_final_state": True}
    right = delta_rule(*inputs, decay=torch.tensor(decay), backend="naive", **options)
    single = [x.float() for x in inputs]
    ours = delta_rule(*single, decay=torch.tensor(decay).float(), backend="torch", **options)
    for x, y in zip(ours, right, strict=True):
        assert torch.equal(x.double(), y)


def test_swaps_with_the_reference() -> None:
    rng = np.random.default_rng(0)
    for size in range(1, 9):
        for _ in range(30):
            points = rng.permutation(size).tolist()
            images = list(range(size))  # of each point so far
            swaps = reference_swaps(points)
            for other in swaps:
                images = [{0: other, other: 0}.get(i, i) for i in images]
            assert images == points
            assert len(swaps) <= 3 * (size - 1) / 2


def test_a_step_of_the_delta_rule_swaps_with_the_reference() -> None:
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
    monkeypatch.setattr(limits, "MAX_MODEL_WEIGHTS", 1000)
    with pytest.raises(UserError, match=r"1,497 weights; at most 1,000.*householder takes fewer"):
        compile("(ab)*", TARGET)
    net = compile("a|b", TARGET)
    with pytest.raises(UserError, match="symbols from 0 to 1; got 0 to 2"):
        net(torch.tensor([[0, 2]]))
    with pytest.raises(UserError, match="more than 2 states"):
        net.prove(max_states=2)
