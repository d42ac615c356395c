"""`statetrack check`: layers by name and those of a run, for people and for programs."""

from __future__ import annotations

import json

import pytest

from statetrack.layers import DiagonalRNN
from tests.simulated_device import NAME, simulated_device


def test_a_layer_by_name(command):
    result = command("check", "diagonal_rnn", "--only", "chunks", "eigenvalues")
    assert result.code == 0
    assert "Diagonal RNN in 2 variants" in result.out
    assert "passed 2 of 2" in result.out
    assert result.out.endswith("4 passed, 0 failed, 0 unsupported\n")


def test_one_range(command):
    options = ("--only", "rows", "--allow-neg-eigval", "True", "--json", "-")
    found = json.loads(command("check", "diagonal_rnn", *options).out)
    assert [layer["title"] for layer in found["layers"]] == ["Diagonal RNN [-1,1]"]
    assert [check["check"] for check in found["layers"][0]["checks"]] == ["rows"]
    assert (found["passed"], found["failed"]) == (1, 0)


def test_the_layers_of_a_run_with_their_weights(command, run_folder):
    result = command("check", run_folder, "--only", "chunks", "--json", "-")
    assert result.code == 0
    titles = [layer["title"] for layer in json.loads(result.out)["layers"]]
    assert titles == ["layer 0: DeltaNet [0,1]"]
    assert "layer 0" in result.err


def test_on_another_device(command):
    with simulated_device():
        result = command("check", "diagonal_rnn", "--only", "chunks", "--device", NAME)
    assert result.code == 0
    assert result.out.endswith("2 passed, 0 failed, 0 unsupported\n")


def test_what_is_unsupported_is_said_with_its_reason(command):
    result = command("check", "full_matrix", "--only", "long_sequences")
    assert result.code == 0
    assert "long_sequences unsupported: nothing confines its matrices" in result.out


def test_a_failure_ends_with_exit_code_1(command, monkeypatch):
    monkeypatch.setattr(DiagonalRNN, "step", lambda self, x, state: (2 * x, state))
    result = command("check", "diagonal_rnn", "--only", "steps", "rows")
    assert result.code == 1
    assert "Diagonal RNN [0,1]: steps failed: error " in result.out
    assert result.out.endswith("2 passed, 2 failed, 0 unsupported\n")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["delta"], "unknown layer or run folder 'delta'; known: "),
        (["gla", "--only", "chunk"], "unknown check 'chunk'; nearest of "),
        (["gla", "--json", "missing/file.json"], "cannot write JSON to missing/file.json"),
    ],
)
def test_mistakes(refused, args, message):
    refused("check", *args, says=[message])
