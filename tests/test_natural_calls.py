"""What a user would try first, in Python and on the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import statetrack
from benchmarks.reliability.calls import CALLS, ODD
from statetrack.compiler import CompiledModel, CompiledRNN, compile
from statetrack.errors import UserError
from statetrack.models import SequenceModel
from tests.conftest import Command

EVEN = "(b*ab*a)*b*"  # an even number of a


@pytest.mark.parametrize("target", ["auto", "gated_deltaproduct"])
def test_a_network_reads_words(target: str) -> None:
    net = compile(EVEN, target)
    assert net.accepts("abab") is True
    assert net.accepts("") is True
    assert net.accepts(["abab", "ab", "b"]) == [True, False, True]
    tokens = torch.tensor([[0, 1, 0, 1]])
    expected = torch.tensor([[False, False, True, True]])
    for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool):
        assert torch.equal(net.accepts(tokens.to(dtype)), expected)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("abc", "unknown symbol in 'abc': 'c'; known: a, b"),
        ([0, 1], "give a word, a list of words or a tensor"),
        (np.zeros((1, 2), dtype=np.int64), "tokens must be a tensor .*; got ndarray"),
        (torch.zeros(1, 2, dtype=torch.complex64), "tokens must be whole numbers"),
    ],
)
def test_what_is_no_word(given: object, says: str) -> None:
    with pytest.raises(UserError, match=says):
        compile(EVEN).accepts(given)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("call", "argument", "odd", "says"),
    [
        ("delta_rule", "scale", "object", "delta_rule: scale must be one number; got object"),
        ("delta_rule", "scale", "text", "delta_rule: scale must be one number; got str"),
        ("delta_rule", "backend", "numpy floats", "backend must be a text; got ndarray"),
        ("ModelConfig", "norm", "numpy floats", "norm must be one of"),
        ("DFA.accepts", "word", "nested list", r"unknown symbol \[0, 1\]"),
        ("DFA.run", "start", "ragged list", "start must be a state, or one for each word"),
        ("Task.solve", "tokens", "sparse", "must be an array of whole numbers; got Tensor"),
        ("automata.DFA", "delta", "sparse", "a DFA needs a next state for each"),
        (
            "delta_net",
            "hidden_size",
            "10**9",
            "hidden_size must lie in 1..1,048,576; got 1000000000",
        ),
        ("delta_net", "hidden_size", "True", "hidden_size must be a whole number; got bool"),
        ("st.compile", "dtype", "text", "dtype must be a torch.dtype; got str"),
        ("st.diagnose", "samples", "list", "samples must be a number; got list"),
        ("check_layer", "only", "scalar tensor", "only must be a list of names of checks"),
        ("check_layer", "factory", "text", "factory must be a function; got str"),
        ("evaluate", "samples", "list", "samples"),
        ("automata.group", "name", "list", "the name of a group must be a text; got list"),
        ("automata.group", "name", "5", "the name of a group must be a text; got int"),
    ],
)
def test_arguments_of_a_wrong_type(call: str, argument: str, odd: str, says: str) -> None:
    function, given = CALLS[call].make()
    with pytest.raises(UserError, match=says):
        function(**{**given, argument: ODD[odd]()})


def test_load_gives_the_model_of_any_folder(
    command: Command, run_folder: Path, tmp_path: Path
) -> None:
    assert isinstance(statetrack.load(run_folder), SequenceModel)
    assert isinstance(statetrack.load(str(run_folder)), SequenceModel)
    for target, kind in (("auto", CompiledRNN), ("gated_deltaproduct", CompiledModel)):
        folder = tmp_path / target
        assert command("compile", EVEN, "--target", target, "--out", folder).code == 0
        net = statetrack.load(folder)
        assert isinstance(net, kind)
        assert net.accepts("abab") is True
    for wrong in (tmp_path, 5):
        with pytest.raises(UserError, match=r"not a run folder|the path of a folder; got int"):
            statetrack.load(wrong)  # type: ignore[arg-type]


def test_models_shows_what_it_lists(command: Command) -> None:
    code, out, err = command("models", "delta_net-340M")
    assert (code, err) == (0, "")
    assert "delta_net-340M: 340," in out or "parameters" in out
    assert "mixer.num_heads" in out


def test_eval_of_a_compiled_model_does_not_say_trained(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "net"
    assert command("compile", "Z3", "--target=gated_deltaproduct", "--out", folder).code == 0
    code, out, _ = command("eval", folder, "--lengths=9", "--samples=4")
    assert code == 0
    assert "compiled: " in out
    assert "trained" not in out


def test_python_m_statetrack() -> None:
    command = [sys.executable, "-m", "statetrack", "--version"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out == f"statetrack {statetrack.__version__}\n"
