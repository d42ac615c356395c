"""Training and evaluation on another device than the CPU, simulated: see tests/simulated_device."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from statetrack.errors import UserError
from statetrack.layers import MixerConfig
from statetrack.layers.base import VARIANT_SIZE
from statetrack.models import SequenceModel
from statetrack.report.runs import runs_document
from statetrack.training import Run, RunConfig, Stage, curve, evaluate, loop, train
from statetrack.training.batches import Batches
from statetrack.training.device_batches import DeviceBatches
from tests.conftest import Command
from tests.layers.common import LAYERS
from tests.simulated_device import DEVICE, NAME, OnDevice, simulated_device
from tests.training.small import FLAGS, small_config
from tests.training.test_diverged import nan_at
from tests.training.test_stages import Interrupt, assert_same_weights


def on(device: str, config: RunConfig) -> RunConfig:
    return replace(config, training=replace(config.training, device=device))


def trained(config: RunConfig, folder: Path) -> tuple[Run, Run]:
    """The run on the CPU and on the device."""
    there = train(config, folder / "cpu")
    with simulated_device():
        return there, train(on(NAME, config), folder / NAME)


def assert_near(run: Run, expected: Run) -> None:
    """Rows of metrics agree up to the rounding of other kernels."""
    rows, wanted = run.metrics(), expected.metrics()
    assert [(row["step"], row["kind"]) for row in rows] == [
        (row["step"], row["kind"]) for row in wanted
    ]
    for row, right in zip(rows, wanted, strict=True):
        for name in ("loss", "penalty"):
            assert row.get(name, 0.0) == pytest.approx(right.get(name, 0.0), rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("mixer", LAYERS)
def test_every_layer_trains_and_evaluates(mixer: MixerConfig, tmp_path: Path) -> None:
    config = small_config(steps=2, eval_every=2, eval_lengths=("5-9",), eval_samples=4)
    model = replace(config.model, mixer=mixer, hidden_size=VARIANT_SIZE, mlp="swiglu", mlp_size=8)
    here, there = trained(replace(config, model=model), tmp_path)
    assert_near(there, here)
    assert there.devices == [NAME]
    with simulated_device():
        moved = there.model(device=NAME)
        assert {type(p) for p in moved.parameters()} == {OnDevice}
        found = evaluate(moved, "parity", (3, 20), samples=8)
    assert found.samples == 8


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"allow_neg_eigval": True, "clip": 0.1}, id="clip"),
        pytest.param(
            {"saturation": 0.5, "saturation_start": 0.0, "saturation_full": 0.5}, id="saturation"
        ),
        pytest.param(
            {"task": "S3", "carry": 2, "carry_start": 0.0, "checkpoint_every": 4}, id="carried"
        ),
        pytest.param({"task": "S3", "dataset_size": 20, "min_length": 12}, id="finite"),
        pytest.param({"mixer": "delta_net,mamba", "decay_groups": "standard"}, id="hybrid"),
    ],
)
def test_options(options: dict[str, Any], tmp_path: Path) -> None:
    here, there = trained(small_config(**{"steps": 6, **options}), tmp_path)
    assert_near(there, here)


def test_a_stage_that_ends_early_has_its_own_batches(tmp_path: Path) -> None:
    """The batch that was made ahead belongs to the stage that has ended."""
    stages = (Stage(steps=6, until=1e-9), Stage(steps=2, min_length=20, max_length=20))
    config = replace(small_config("S3", steps=8), stages=stages)
    here, there = trained(config, tmp_path)
    (early,) = (row["step"] for row in here.metrics() if row["kind"] == "stage")
    assert early < 6
    assert_near(there, here)


def test_numbers_are_read_when_they_are_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, losses = [], []
    measured = loop._Measured

    def count(self: Any) -> tuple[float, float, float]:
        read.append(1)
        return plain(self)

    plain = measured.read
    monkeypatch.setattr(measured, "read", count)
    config = small_config(steps=7, log_every=3)
    with simulated_device():
        train(on(NAME, config), tmp_path / NAME, on_progress=lambda p: losses.append(p.loss))
    assert len(read) == 4  # after the steps 1, 3, 6 and 7
    assert losses[0] == losses[1] != losses[2] == losses[3]
    assert all(map(math.isfinite, losses))
    train(config, tmp_path / "cpu")
    assert len(read) == 4 + 7


def test_a_loss_that_is_no_number_is_found_when_it_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nan_at(3, monkeypatch)
    with simulated_device(), pytest.raises(loop.DivergedError, match="the loss is nan at step 4"):
        train(on(NAME, small_config(steps=8, log_every=4)), tmp_path / "run")


def test_a_batch_is_made_ahead_on_a_device_alone() -> None:
    config = small_config()
    batches = DeviceBatches(Batches(config, None), config.task, torch.device("cpu"))
    batches.prefetch(1)
    assert batches._next is None
    with simulated_device():
        batches = DeviceBatches(Batches(config, None), config.task, DEVICE)
        batches.prefetch(1)
        ahead = batches._next
        assert ahead is not None
        assert batches.batch(1) is ahead[1]
        batches.prefetch(2)
        assert batches.batch(3).tokens.shape == batches.batch(3).targets.shape
        assert batches._next is None  # another step was asked for


def test_checkpoints_move_between_devices(tmp_path: Path, command: Command) -> None:
    config = small_config(steps=6, checkpoint_every=2)
    whole = train(config, tmp_path / "whole")
    with simulated_device():
        with pytest.raises(KeyboardInterrupt):
            train(on(NAME, config), tmp_path / "run", callbacks=[Interrupt(3)])
        run = train(config, tmp_path / "run", resume=True)
        assert "device" not in json.loads((run.folder / "config.json").read_text())["training"]
    assert run.devices == [NAME, "cpu"]
    assert_near(run, whole)
    assert runs_document([run.folder, whole.folder], longest=0).facts["trained on"] == [NAME, "cpu"]
    with simulated_device():
        steps = ("--steps", "8", "--device", NAME)
        assert command("train", "--resume", run.folder, *steps).code == 0
        assert command("eval", run.folder, "--samples", "4", "--device", NAME).code == 0
        words = ("--curve", "12", "--samples", "4", "--out", tmp_path / "report")
        assert command("report", run.folder, *words, "--device", NAME).code == 0
        opened = Run.open(run.folder)
        assert opened.config.training.device == NAME
        assert opened.devices == [NAME, "cpu", NAME]
    assert command("eval", run.folder).code == 2  # its configuration names an unknown device


def test_exact_resume_on_a_device(tmp_path: Path) -> None:
    with simulated_device():
        config = on(NAME, small_config(steps=6, checkpoint_every=2))
        whole = train(config, tmp_path / "whole")
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run", callbacks=[Interrupt(5)])
        assert_same_weights(train(config, tmp_path / "run", resume=True), whole)


def test_the_same_first_weights_on_every_device(tmp_path: Path) -> None:
    config = small_config("S3", steps=1, lr=0.0, min_lr=0.0)
    here, there = trained(config, tmp_path)
    for name, weight in here.load()[1].items():
        if name.startswith("model."):
            assert torch.equal(weight, there.load()[1][name])


def test_a_curve(tmp_path: Path) -> None:
    run = train(small_config(), tmp_path / "run")
    expected = curve(run.model(), "parity", 30, samples=8)
    with simulated_device():
        found = curve(run.model(device=NAME), "parity", 30, samples=8)
    assert found.to_json() == expected.to_json()


def test_torchs_default_device_does_not_matter(tmp_path: Path) -> None:
    """What forgets to name a device would be made on torch's default one."""
    config = small_config(
        eval_every=2, eval_lengths=("5-9",), eval_samples=4, saturation=0.5, saturation_start=0.0
    )
    expected = train(on("cpu", config), tmp_path / "plain")
    with torch.device("meta"):
        run = train(on("cpu", config), tmp_path / "run")
        model = run.model()
        assert {p.device.type for p in model.parameters()} == {"cpu"}
        found = curve(model, "parity", 20, samples=4)
    assert_same_weights(run, expected)
    assert found.to_json() == curve(expected.model(), "parity", 20, samples=4).to_json()


@pytest.mark.parametrize("command_line", [[], ["--device", "auto"], ["--device", "cpu"]])
def test_the_device_is_no_part_of_a_configuration(
    command_line: list[str], tmp_path: Path, command: Command
) -> None:
    assert command("train", *FLAGS, *command_line, "--out", tmp_path / "run").code == 0
    training = json.loads((tmp_path / "run" / "config.json").read_text())["training"]
    assert training.get("device") == ("cpu" if "cpu" in command_line else None)
    assert "compile" not in training
    assert Run.open(tmp_path / "run").devices == ["cpu"]


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # which torch itself reads
def test_compiled_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def eager(model: SequenceModel) -> None:
        compiled.append(model)
        plain(model, backend="eager")

    plain = loop.compile_blocks
    monkeypatch.setattr(loop, "compile_blocks", eager)
    config = small_config(steps=3, min_length=12, eval_every=3, eval_lengths=("12",))
    expected = train(config, tmp_path / "plain")
    assert not compiled
    torch.compiler.reset()
    run = train(replace(config, training=replace(config.training, compile=True)), tmp_path / "run")
    torch.compiler.reset()
    assert len(compiled) == 1
    assert run.load()[1].keys() == expected.load()[1].keys()
    assert_near(run, expected)


def test_compiled_blocks_hide_betas() -> None:
    with pytest.raises(UserError, match="saturation reads betas inside of blocks"):
        small_config(compile=True, saturation=0.1)
