"""`statetrack info`: what is installed, and the commands for what is not."""

from __future__ import annotations

import json
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from statetrack.kernels import gpu, library
from tests.conftest import Command


def read_info(command: Command) -> Any:
    return json.loads(command("info", "--json", "-").out)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


def install(monkeypatch: pytest.MonkeyPatch, *backends: str) -> None:
    def missing(name: str) -> str | None:
        return None if name in backends else gpu.INSTALL[name]

    monkeypatch.setattr(gpu, "missing", missing)


@pytest.mark.usefixtures("no_gpu")
def test_without_gpus(command: Command) -> None:
    assert read_info(command)["gpus"] == "none"


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(("hip", "kind"), [(None, "CUDA"), ("7.1", "ROCm")])
def test_gpus_have_names_and_memory(
    hip: str | None, kind: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = [
        SimpleNamespace(name="Small", total_memory=24 * 2**30),
        SimpleNamespace(name="Large", total_memory=192 * 2**30),
    ]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(cards))
    monkeypatch.setattr(torch.cuda, "get_device_properties", cards.__getitem__)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert read_info(command)["gpus"] == (
        f"cuda:0 (Small, 24 GiB, {kind}), cuda:1 (Large, 192 GiB, {kind})"
    )


@pytest.mark.usefixtures("no_gpu")
def test_the_gpu_of_a_mac(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 11 * 2**30)
    assert read_info(command)["gpus"] == "mps (Apple, 11 GiB)"


def test_what_is_missing_has_its_command(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    monkeypatch.setattr(library, "WHY_MISSING", "not built: install a C++ compiler")
    facts = read_info(command)
    assert facts["triton"] == 'not installed: pip install "triton>=3.5,<4"'
    assert facts["flash-linear-attention"] == 'not installed: pip install "statetrack[gpu]"'
    assert facts["native kernels"] == "not built: install a C++ compiler"
    assert facts["default backend"] == "torch on the CPU; torch on GPUs"


@pytest.mark.parametrize(
    ("backends", "default"),
    [(["triton"], "triton, then torch"), (["triton", "fla"], "fla, triton, then torch")],
    ids=["triton", "both"],
)
def test_what_is_installed(
    backends: list[str], default: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, *backends)
    monkeypatch.setattr(library, "WHY_MISSING", None)

    def version(name: str) -> str:
        if name == "triton":
            return "3.9.0"
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(gpu, "UNTESTED", {})
    facts = read_info(command)
    assert facts["triton"] == "3.9.0"
    assert (facts["flash-linear-attention"] == "installed") == ("fla" in backends)
    assert facts["default backend"] == f"native on the CPU; {default} on GPUs"


def test_a_version_that_was_not_tested(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "triton")
    monkeypatch.setattr(metadata, "version", lambda name: "4.1.0")
    reason = gpu.untested_version("triton", gpu.SUPPORTED["triton"])
    monkeypatch.setattr(gpu, "UNTESTED", {"triton": reason})
    sentence = 'triton 4.1.0 is not tested, >=3.5,<4 is: pip install "triton>=3.5,<4"'
    assert read_info(command)["triton"] == sentence
