"""Names of devices, and what stands for them on this machine."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from statetrack import devices
from statetrack.cli.main import exit_code
from statetrack.devices import (
    available_devices,
    check_device_name,
    cpu_copy,
    device_of,
    device_title,
    on_cpu,
    prefer_gpu,
    use_device,
)
from statetrack.errors import UserError
from statetrack.training.config import TrainingConfig
from tests.conftest import Command


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A machine with two GPUs, as far as torch is asked; returns which was made current."""
    current = [0]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[-1])
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: current.append(device.index))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(devices, "_preferred_gpu", None)
    return current


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu() -> None:
    assert use_device("auto") == use_device("cpu") == torch.device("cpu")
    for name in ("cuda", "cuda:1", "mps", "cpu:1"):
        with pytest.raises(UserError, match=f"^there is no device {name} here; there is: cpu$"):
            use_device(name)


def test_with_gpus(two_gpus: list[int]) -> None:
    assert use_device("auto") == use_device("cuda") == torch.device("cuda", 0)
    assert use_device("cuda:1") == torch.device("cuda", 1)
    assert two_gpus[-1] == 1
    assert use_device("cuda") == torch.device("cuda", 1)  # the current one
    assert available_devices()[:3] == ["cpu", "cuda:0", "cuda:1"]
    assert device_title(torch.device("cuda", 1)) == "cuda:1 (a GPU)"
    with pytest.raises(UserError, match="no device cuda:2 here; there is: cpu, cuda:0, cuda:1"):
        use_device("cuda:2")


def test_workers_share_the_gpus(two_gpus: list[int]) -> None:
    found = []
    for number in range(4):
        prefer_gpu(number)
        found.append(use_device("cuda").index)
    assert found == [0, 1, 0, 1] == two_gpus[1:]
    assert use_device("cuda:1").index == 1
    assert use_device("cpu").type == "cpu"


def test_mps_only_if_it_is_asked_for(monkeypatch: pytest.MonkeyPatch, no_gpu: None) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert use_device("auto").type == "cpu"
    assert use_device("mps").type == "mps"


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "CPU", "", "cuda:0 ", "meta"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(UserError, match="device must be auto, cpu, cuda, mps or such as cuda:1"):
        check_device_name(name)
    with pytest.raises(UserError, match="device must be"):
        TrainingConfig(device=name)


def test_a_configuration_may_name_a_device_of_another_machine() -> None:
    assert TrainingConfig(device="cuda:7") == TrainingConfig()


def test_modules() -> None:
    module, empty = nn.Linear(2, 2, device="meta"), nn.Identity()
    assert device_of(module).type == "meta"
    assert device_of(empty).type == "cpu"
    assert cpu_copy(empty) is empty
    table = nn.Module()
    table.register_buffer("table", torch.zeros(2, device="meta"))
    assert device_of(table).type == "meta"


def test_new_tensors_on_the_cpu() -> None:
    @on_cpu()
    def made() -> torch.Tensor:
        return torch.zeros(1)

    with torch.device("meta"):
        assert made().device.type == "cpu"
        assert torch.zeros(1).device.type == "meta"
    assert made().device.type == "cpu"


def test_a_gpu_without_memory(capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> int:
        text = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of ..."
        raise torch.OutOfMemoryError(text)

    assert exit_code("statetrack", run) == 2
    expected = "not enough memory: CUDA out of memory. Tried to allocate 2.00 GiB; choose a smaller"
    assert expected in capsys.readouterr().err


COMMANDS = [
    ["train"], ["eval", "run"], ["diagnose", "run"], ["harden", "run"], ["run", "net", "1"],
    ["compile", "(11)*"], ["check", "gla"], ["demo"], ["sweep"], ["reproduce", "theorems"],
    ["report", "run"],
]  # fmt: skip


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_every_command_refuses_a_device_that_is_not_there(
    words: list[str], command: Command, tmp_path, monkeypatch
) -> None:
    from statetrack.compiler import compile
    from statetrack.training import train
    from tests.training.small import small_config

    monkeypatch.chdir(tmp_path)
    if "run" in words[1:]:
        train(small_config(steps=1), tmp_path / "run")
    if "net" in words:
        compile("(11)*").save(tmp_path / "net")
    before = sorted(path.name for path in tmp_path.iterdir())
    result = command(*words, "--device", "cuda")
    assert result.code == 2
    assert result.err == ("statetrack: error: there is no device cuda here; there is: cpu\n"), (
        result.err
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == before
