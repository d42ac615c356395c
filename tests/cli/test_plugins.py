"""Layers and tasks of other packages: `--plugin MODULE`, entry points, and what a run records."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import statetrack
from statetrack import plugins
from statetrack.layers import MIXERS
from statetrack.tasks import FAMILIES
from statetrack.training import Run
from tests.conftest import Command
from tests.training.refusal import Refused

PLUGIN = '''
"""A layer and a task of another package."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from statetrack.config import option
from statetrack.layers import Dense, Guarantee, Mixer, MixerConfig
from statetrack.layers.base import register as register_layer
from statetrack.tasks.base import register as register_task
from statetrack.tasks.machines import walk_on_cycle
from statetrack.tasks.uniform_string import UniformString


@dataclass(frozen=True)
class SwingConfig(MixerConfig):
    name: ClassVar[str] = "swing"
    label: ClassVar[str] = "Swing"
    about: ClassVar[str] = "a gated layer of another package"
    no_switch: ClassVar[str] = "its gates are sigmoids"

    heat: float = option(1.0, "an option of this layer only")


class SwingState(NamedTuple):
    h: torch.Tensor


@register_layer
class Swing(Mixer):
    config_class = SwingConfig

    def __init__(self, hidden_size, config=None, **options):
        super().__init__(hidden_size, config, **options)
        self.gate = torch.nn.Linear(hidden_size, hidden_size)
        self.write = torch.nn.Linear(hidden_size, hidden_size)

    def init_state(self, batch):
        return SwingState(self.zeros(batch, self.hidden_size))

    def gates(self, x):
        return torch.sigmoid(self.config.heat * self.gate(x))

    def mix(self, x, state, ops):
        a, b = self.gates(x), self.write(x)
        if ops.mask is not None:
            padding = ~ops.mask[..., None]
            a, b = a.masked_fill(padding, 1.0), b.masked_fill(padding, 0.0)
        h, read = state.h, []
        for t in range(x.shape[1]):
            h = a[:, t] * h + b[:, t]
            read.append(h)
        return torch.stack(read, 1), SwingState(h)

    def transitions(self, x):
        matrices = torch.diag_embed(self.gates(x))[:, :, None]
        return Dense(matrices, (0.0, 1.0), guarantee=Guarantee.NON_NEGATIVE)


@register_task
@dataclass(frozen=True)
class Thirds(UniformString):
    family: ClassVar[str] = "thirds"
    examples: ClassVar[tuple[str, ...]] = ("thirds",)
    about: ClassVar[str] = "the number of ones modulo 3"
    symbols: ClassVar[tuple[str, ...]] = ("0", "1", "2")
    name: str = option("thirds", "which task of its family")

    def dense_targets(self, tokens):
        return 1 + np.cumsum(tokens == 2, axis=1) % 3

    def automaton(self):
        return walk_on_cycle(self.symbols, (0, 1, 0), 3, accept=1)
'''
TRAIN = [
    "train", "--task=thirds", "--mixer=swing", "--heat=2", "--hidden-size=6",
    "--num-layers=1", "--steps=2", "--batch-size=4", "--max-length=9", "--out=run",
]  # fmt: skip


def forget() -> None:
    """As in a new process."""
    for name in [name for name in sys.modules if name.startswith("swinging")]:
        del sys.modules[name]
        plugins._LOADED.discard(name)
    MIXERS.pop("swing", None)
    FAMILIES[:] = [family for family in FAMILIES if family.family != "thirds"]


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module in the current folder; what it registers is removed afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "swinging.py").write_text(PLUGIN)
    yield "--plugin=swinging"
    forget()


def test_every_command_takes_a_plugin(plugin: str, command: Command) -> None:
    result = command(*TRAIN, plugin)
    assert result.code == 0, result.err
    config = json.loads(Path("run/config.json").read_text())
    assert config["plugins"] == ["swinging"]
    assert config["model"]["mixer"]["heat"] == 2.0
    for args, text in [
        (["eval", "run", "--lengths=5", "--samples=4"], "Swing on thirds"),
        (["diagnose", "run", "--max-length=0"], "Swing"),
        (["check", "run", "--only=rows"], "Swing"),
        (["check", "swing", "--only=rows"], "Swing"),
        (["models"], "a gated layer of another package"),
        (["models", "swing"], "an option of this layer only"),
        (["tasks"], "the number of ones modulo 3"),
        (["tasks", "thirds", "--supervision=dense"], "the number of ones modulo 3"),
        (["explain", "thirds"], "Swing"),  # its guarantee excludes counting
        (["compile", "thirds"], "runs/compiled-thirds-1"),
        (["train", "--resume=run"], "run has all 2 steps already"),
        (["train", "--mixer=swing", "--help"], "--heat"),
    ]:
        forget()
        code, out, err = command(*args, plugin)
        assert code == 0, err
        assert text in out, args
    forget()
    assert command("harden", "run", plugin).code in (1, 2)  # it has learned nothing


def test_a_run_names_the_plugin_that_it_needs(
    plugin: str, command: Command, refused: Refused
) -> None:
    assert command(*TRAIN, plugin).code == 0
    forget()
    for args in (["eval", "run"], ["diagnose", "run"], ["harden", "run"], ["check", "run"]):
        refused(*args, says=["run/config.json needs the plugin swinging: give --plugin swinging"])
        assert "swinging" not in sys.modules  # a run's files start no code
    with pytest.raises(statetrack.UserError, match="needs the plugin swinging"):
        statetrack.load("run")
    __import__("swinging")
    assert isinstance(Run.open(Path("run")).config.model.mixers[0], MIXERS["swing"])
    refused("train", "--mixer=swign", plugin, says=["unknown mixer 'swign'", "swing"])


@pytest.mark.parametrize("spoilt", ['"swinging"', "[1]", "{}"])
def test_a_list_of_plugins_that_is_none(
    spoilt: str, plugin: str, command: Command, refused: Refused
) -> None:
    assert command(*TRAIN, plugin).code == 0
    config = json.loads(Path("run/config.json").read_text())
    Path("run/config.json").write_text(json.dumps({**config, "plugins": json.loads(spoilt)}))
    refused("eval", "run", plugin, says=["plugins must be a list of names of modules"])


def test_a_plugin_that_fails_to_import(plugin: str, refused: Refused) -> None:
    Path("swinging_too.py").write_text("raise RuntimeError('first\\nsecond')")
    says = ["cannot import the plugin 'swinging_too': RuntimeError: first"]
    refused("models", "--plugin", "swinging_too", says=says)


@pytest.mark.parametrize("path", ["swinging.py", "./swinging.py", "./swinging"])
def test_a_path_instead_of_a_plugin(path: str, plugin: str, refused: Refused) -> None:
    refused("models", "--plugin", path, says=["give the module's name, swinging"])


def test_an_installed_plugin(plugin: str, command: Command, refused: Refused) -> None:
    """An entry point is loaded when a layer or a task is looked for."""
    info = Path("swinging-1.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: swinging\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[statetrack.plugins]\nswinging = swinging\n")
    sys.path.append(str(Path.cwd()))
    assert statetrack.make_task("thirds").name == "thirds"
    assert "swing" in MIXERS
    assert command(*TRAIN).code == 0
    forget()
    assert command("eval", "run", "--lengths=5", "--samples=4").code == 0
    forget()
    Path("swinging.py").write_text("import no_such_module")
    refused("models", says=["cannot import the plugin 'swinging'", "no_such_module"])
