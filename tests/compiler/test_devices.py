"""Compiled networks on another device than the CPU, simulated: see tests/simulated_device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from statetrack.compiler import compile, load, theorems
from statetrack.compiler.theorem6_model import theorem6_model
from tests.compiler.test_theorem6_model import config, word_problem
from tests.conftest import Command
from tests.simulated_device import DEVICE, NAME, simulated_device

NETWORKS = {
    "householder": {"language": "(aa)*b", "target": "householder"},
    "old state": {"language": "tomita3", "target": "householder", "delay": "state"},
    "dense": {"language": "(a|b)*aa", "target": "dense"},
    "diagonal": {"language": "(a|b)*aa", "target": "diagonal"},
    "model": {"language": "(aa)*", "target": "gated_deltaproduct"},
    "blocks": {"language": "S3", "target": "householder", "tokens_per_element": 3},
}


@pytest.mark.parametrize("options", NETWORKS.values(), ids=NETWORKS)
def test_networks(options: dict, tmp_path: Path) -> None:
    expected = compile(**options)
    tokens = torch.randint(len(expected.dfa.alphabet), (2, 40))
    word = " ".join(expected.dfa.alphabet[i] for i in tokens[0])
    with simulated_device():
        net = compile(**options).to(DEVICE)
        assert net.device == DEVICE
        states = net(tokens.to(DEVICE))
        accepted = net.accepts(tokens.to(DEVICE))
        assert states.device == accepted.device == DEVICE
        states, accepted = states.cpu(), accepted.cpu()
        read = net.read_words([word])
        proof = net.prove()
        folder = net.save(tmp_path / "net")
        loaded = load(folder, device=NAME)
        assert loaded.device == DEVICE
        assert loaded.read_words([word]) == read
    assert torch.equal(states, expected(tokens))
    assert torch.equal(accepted, expected.accepts(tokens))
    assert read == expected.read_words([word]) == load(folder).read_words([word])
    assert proof.holds
    assert proof.claim == f"{expected.prove().claim} on {NAME}"


def test_a_mistake_on_the_device_is_found() -> None:
    with simulated_device():
        net = compile("(aa)*", "householder").to(DEVICE)
        net.stack[0].betas.mul_(0.5)
        assert not net.prove().holds


def test_commands(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "net"
    with simulated_device():
        made = command("compile", "(aa)*", "--out", out, "--prove", "--device", NAME)
        read = command("run", out, "aa", "aaa", "--device", NAME)
    assert (made.code, read.code) == (0, 0)
    assert f"on {NAME}" in made.out
    assert read.out == command("run", out, "aa", "aaa").out


def test_rounding_networks() -> None:
    expected = theorems.horizon(theorems.cyclic(3), 50)
    with simulated_device():
        found = theorems.horizon(theorems.cyclic(3).to(DEVICE), 50)
    assert found == expected


def test_torchs_default_device_does_not_matter(tmp_path: Path) -> None:
    with torch.device("meta"):
        for options in NETWORKS.values():
            net = compile(**options)
            assert net.device.type == "cpu"
            assert net.prove().holds
        folder = compile("(aa)*").save(tmp_path / "net")
        assert load(folder).read_words(["aa"])[0]["result"] == "accept"
        for net in (theorems.parity(), theorems.cyclic(3), theorems.theorem6(3)):
            assert theorems.horizon(net, 20)["tokens"] == 20
        model = theorem6_model(config(3, 12, 2), word_problem(3))
    assert {p.device.type for p in model.parameters()} == {"cpu"}
