"""A trained model from end to end, and the command."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch

from statetrack.automata import DFA, read_dfa
from statetrack.diagnosis import diagnose
from statetrack.errors import UserError
from statetrack.hardening import harden
from statetrack.hardening.runs import (
    Learned,
    compare_automata,
    validation_batch,
    write_run,
)
from statetrack.layers import GLAConfig, MambaConfig, MixerConfig
from statetrack.recipes import presets
from statetrack.training import Run, evaluate, train
from statetrack.training.optim import make_optimizer
from tests.conftest import Command
from tests.training.refusal import Refused
from tests.training.small import small_config
from tests.training.test_full_disk import full_disk


def content(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def test_command(command: Command, trained: Run, tmp_path: Path) -> None:
    before = content(trained.folder)
    out, file = tmp_path / "exact", tmp_path / "result.json"
    code, said, err = command(
        "harden", trained.folder, "--out", out, "--lengths", "40", "10000", "--samples", "4",
        "--json", file,
    )  # fmt: skip
    assert (code, err) == (0, "")
    verdict = (
        "Exact at every length, up to rounding (proved in float64): the model computes the task's "
        "automaton, which has 2 states."
    )
    assert said.startswith(verdict)
    assert "Hardened: the model is as good at its training lengths as before" in said
    assert "Settings of layer 0" not in said
    assert content(trained.folder) == before
    told = json.loads(file.read_text())
    assert (told["run"], told["out"]) == (str(trained.folder), str(out))
    short, long = told["accuracy"]
    assert short == {"length": 40, "before": 1.0, "after": 1.0}
    assert long["before"] < 0.9
    assert long["after"] == 1.0
    assert told["loss"]["after"] <= told["loss"]["before"] + 0.003
    automaton = told["automaton"]
    assert (automaton["states"], automaton["is_the_tasks"], automaton["reason"]) == (2, True, None)
    assert automaton["merge_error"] < 1e-12 < 1e-6 < automaton["separation"]
    # the automaton is a file that other commands take
    read = read_dfa(out / "automaton.json")
    assert read == DFA.from_json(automaton["dfa"])
    assert read.accepts("1101")
    assert not read.accepts("11011")
    assert command("explain", out / "automaton.json").code == 0
    # the new run is one like any other
    made = Run.open(out)
    assert made.config.task == trained.config.task
    assert made.checkpoint_steps() == [200]
    assert evaluate(made.model(), made.config.task, 20_000, samples=2).token_accuracy == 1.0
    assert command("eval", out, "--lengths", "500", "--samples", "4").code == 0
    code, said, _ = command("diagnose", out, "--max-length", "64", "--samples", "16")
    assert code == 0
    assert "Every modulus from 2 to 12 is ruled out except 2." in said
    assert (
        diagnose(out, max_length=0).layers[0].before is None
    )  # it never was a model at initialisation
    assert json.loads((out / "hardened.json").read_text())["loss"] == told["loss"]
    # and nothing is ever written over
    kept = content(out)
    code, _, err = command("harden", trained.folder, "--out", out)
    assert code == 2
    assert f"{out} exists and is not empty" in err
    assert content(out) == kept


@pytest.mark.parametrize(
    "mixer",
    [
        GLAConfig(allow_neg_eigval=True, num_heads=2, conv_size=0),
        MambaConfig(allow_neg_eigval=True, conv_size=0),
    ],
    ids=lambda mixer: mixer.name,
)
def test_trained_diagonal_models(mixer: MixerConfig, tmp_path: Path) -> None:
    config = presets.demo_parity("mamba", allow_neg_eigval=True, seed=0)
    training = replace(config.training, steps=200, max_length=20)
    config = replace(config, model=replace(config.model, mixer=mixer), training=training)
    model = train(config, tmp_path / "run").model()
    result = harden(model, validation_batch(config))
    before, after = (evaluate(m, config.task, 5000, samples=8) for m in (model, result.model))
    assert before.token_accuracy < 0.95
    assert after.token_accuracy == 1.0
    automata = compare_automata(result, config)
    assert automata.is_the_tasks
    decays = automata.reading is not None and automata.reading.margin is not None
    assert ("to first order in the decaying channels" in str(automata)) == decays


def test_the_folder_beside_the_run(command: Command, trained: Run) -> None:
    code, out, err = command("harden", trained.folder, "--lengths", "40", "--json", "-")
    assert code == 0
    folder = trained.folder.with_name("run-hardened")
    assert json.loads(out)["out"] == str(folder)
    assert f"The new run: {folder}\n" in err
    assert command("harden", trained.folder).code == 2


@pytest.fixture
def untrained(tmp_path: Path) -> Run:
    """A run of four steps."""
    config = small_config(allow_neg_eigval=True)
    mixer = replace(config.model.mixers[0], conv_size=0)  # type: ignore[call-arg]
    return train(replace(config, model=replace(config.model, mixer=mixer)), tmp_path / "run")


def test_a_run_that_has_not_learned_its_task(
    command: Command, untrained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("statetrack.hardening.harden")  # the package has its function
    monkeypatch.delattr(module, "Search")  # before any analysis
    code, out, err = command("harden", untrained.folder, "--json", tmp_path / "told.json")
    assert (code, err) == (1, "")
    assert "Train it first: the model has not learned parity: " in out
    assert "Nothing is written." in out
    told = json.loads((tmp_path / "told.json").read_text())
    assert (told["changed"], told["out"]) == (False, None)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run", "told.json"]


def test_a_run_that_cannot_be_hardened_leaves_nothing(
    command: Command, untrained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, learned = untrained, Learned(accuracy=1.0, constant=0.5)
    monkeypatch.setattr("statetrack.hardening.runs.learned", lambda *_: learned)
    code, out, err = command("harden", run.folder, "--json", run.folder / "told.json")
    assert (code, err) == (1, "")
    told = json.loads((run.folder / "told.json").read_text())
    assert (told["changed"], told["accuracy"], told["automaton"]) == (False, [], None)
    assert "Kept as it was: none of its heads or channels is close enough to an exact one." in out
    assert "Nothing is written." in out
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_full_disk_leaves_nothing(
    trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = trained.config
    result = harden(trained.model(), validation_batch(config))
    automata = compare_automata(result, config)
    for files in range(5):
        with monkeypatch.context() as patch:
            full_disk(patch, files)
            with pytest.raises(OSError, match="No space left on device"):
                write_run(tmp_path / "new" / "exact", config, 1, result, automata)
        assert list(tmp_path.iterdir()) == []
    write_run(tmp_path / "new" / "exact", config, 1, result, automata)
    assert len(content(tmp_path)) == 5


def test_a_run_with_undefined_weights(command: Command, trained: Run, tmp_path: Path) -> None:
    model = trained.model()
    with torch.no_grad():
        model.head.weight[0, 0] = math.nan  # type: ignore[index, union-attr]
    run = Run.create(tmp_path / "astray", trained.config)
    run.save(1, model, make_optimizer(model, trained.config.training))
    for name in ("harden", "diagnose", "eval"):
        code, _, err = command(name, run.folder, "--json", "-")
        assert code == 2
        where = f"the checkpoint of step 1 in {run.folder}"
        assert f"head.weight of {where} has entries that are infinite or undefined" in err
    with pytest.raises(UserError, match=r"head\.weight of the model has entries that are inf"):
        harden(model, validation_batch(trained.config))


def test_what_is_exact_already(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "net"
    assert command("compile", "Z3", "--target", "gated_deltaproduct", "--out", out).code == 0
    code, _, err = command("harden", out)
    assert code == 2
    assert f"{out} was compiled, and is exact as it is" in err
    told = diagnose(out, "1", max_length=0).to_dict()
    assert all(layer["after"]["oscillating_modulus"] is not None for layer in told["layers"])
    assert all(layer["after"]["decay_length"]["fp32"] is None for layer in told["layers"])  # no end


def test_judged_at_the_training_lengths_only(trained: Run) -> None:
    batch = validation_batch(trained.config)
    assert batch.lengths.max() <= trained.config.training.max_length
    assert batch.tokens.shape[1] <= 40
    assert len(batch.tokens) == 1024


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["nowhere"], ["nowhere is not a run folder: it has no config.json"]),
        (["run"], ["DeltaNet [0,1] cannot be hardened: its eigenvalues lie in [0, 1]"]),
        (["run", "--checkpoint", "3"], ["no checkpoint of step 3; it has [2, 4]"]),
        (["run", "--lengths", "0"], ["length"]),
        (["run", "--samples", "0"], ["samples must be at least 1; got 0"]),
        (["run", "--orders", "0"], ["order"]),
        (["run", "--json", "no/x.json"], ["cannot write JSON"]),
    ],
)
def test_careless_users(
    args: list[str], says: list[str], refused: Refused, run_folder: Path
) -> None:
    refused("harden", *args, says=says)
