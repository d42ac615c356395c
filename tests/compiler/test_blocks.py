"""Several tokens per element: single reflections, against the task and its automaton."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from statetrack.compiler import compile, load, theorems
from statetrack.compiler.network import CompiledRNN
from statetrack.compiler.stages_to_network import HouseholderLayer
from statetrack.errors import UserError
from statetrack.tasks import make_task

CASES = [("Z2", 2), ("S3", 2), ("Z3", 3), ("S3_x_Z2", 3), ("A4", 5), ("S4", 3)]


def check_task(net: CompiledRNN, name: str, tokens: int, length: int) -> None:
    """Read sequences of the task; the answers must be its targets."""
    task = make_task(name, tokens_per_element=tokens)
    batch = task.sample(np.random.default_rng(0), np.full(8, length))
    assert net.dfa.alphabet == task.vocab[: len(net.dfa.alphabet)]  # the same numbers
    assert net.dfa.outputs is not None
    states = net(torch.from_numpy(batch.tokens[:, 1:])).numpy()
    answers = np.array(net.dfa.outputs)[states].astype(int)
    np.testing.assert_array_equal(answers, batch.targets[:, 1:])


@pytest.mark.parametrize(("name", "tokens"), CASES)
def test_one_reflection_per_token_is_enough(name: str, tokens: int) -> None:
    net = compile(name, tokens_per_element=tokens)
    assert net.dfa == make_task(name, tokens_per_element=tokens).automaton()
    for layer in net.stack:
        assert isinstance(layer, HouseholderLayer)
        assert layer.factors == 1
    proof = net.prove()
    assert proof.holds, proof
    assert f"computes {name} with {tokens} tokens per element" in proof.claim
    assert "in chunks, in float32 and bfloat16" in proof.claim
    check_task(net, name, tokens, 50)


def test_full_s5_with_four_tokens() -> None:
    """The proof is in results/theory.md; here are long words of the task."""
    net = compile("S5", tokens_per_element=4)
    assert net.dfa.states == 120 + 3 * 120 * 120 + 1
    assert [layer.size for layer in net.stack] == [2, 2, 120, 5]
    assert {layer.factors for layer in net.stack} == {1}
    assert net.certificate()["exact"]
    check_task(net, "S5", 4, 2_000)


def test_tokens_that_are_out_of_place() -> None:
    net = compile("S3", tokens_per_element=2)
    words = np.array(np.meshgrid(*[np.arange(7)] * 4)).reshape(4, -1).T  # all of length 4
    np.testing.assert_array_equal(net(torch.from_numpy(words)).numpy(), net.dfa.run(words))
    assert net.read_words(["3 FILL", "3 3", "FILL"])[0]["output"] == "3"
    assert [row["output"] for row in net.read_words(["3 3", "FILL"])] == [None, None]


def test_a_wrong_table_is_refuted() -> None:
    """The proof knows the state of every layer: a wrong carry of the counter is found."""
    net = compile("S4", tokens_per_element=3)
    second = net.stack[1]
    rule = len(second.moves) - 1  # a filler after an odd number of fillers
    assert second.moves[rule].tolist() == [1, 0]
    second.get_buffer("keys")[rule] = 0
    proof = net.prove()
    assert not proof.holds
    assert proof.counterexample is not None
    assert "layer 2" in proof.reason


@pytest.mark.parametrize(("m", "tokens"), [(5, 2), (60, 2), (7, 3)])
def test_rotations_of_two_tokens(m: int, tokens: int) -> None:
    net = theorems.cyclic(m, tokens)
    check_task(net, f"Z{m}", tokens, 2_000)
    last = net.stack[-1].get_buffer("A").double()
    rank = torch.linalg.matrix_rank(torch.eye(2, dtype=last.dtype) - last[:-1], atol=1e-6)
    assert rank.max() == 1  # a single Householder factor
    assert theorems.horizon(net, 2_000, tokens_per_element=tokens)["random"]["holds_for"] is None
    with pytest.raises(UserError, match="rounds"):
        net.prove()


def test_it_is_saved_without_its_automaton(tmp_path: Path) -> None:
    net = compile("S3", tokens_per_element=2)
    folder = net.save(tmp_path / "net")
    assert (folder / "language.json").stat().st_size < 1_000
    loaded = load(folder)
    assert isinstance(loaded, CompiledRNN)
    assert loaded.dfa == net.dfa
    assert loaded.prove().holds
    assert loaded.source == net.source


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ("S5", {"tokens_per_element": 3}, "at least 4 tokens per element; got 3"),
        ("Z60", {"tokens_per_element": 2}, "a product of 9 swaps"),
        ("S3", {"tokens_per_element": 0}, "tokens_per_element must be at least 1"),
        ("(ab)*", {"tokens_per_element": 2}, r"is for groups such as S5; \(ab\)\* is none"),
        ("S3", {"tokens_per_element": 2, "target": "diagonal"}, "target must be auto"),
        ("S3", {"tokens_per_element": 2, "delay": "state"}, "delay shift"),
    ],
)
def test_refusals(given: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        compile(given, **options)  # type: ignore[call-overload]
