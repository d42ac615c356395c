"""The page on presets, and presets on the command line."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from statetrack.recipes import presets
from statetrack.training import Run, RunConfig
from tests.conftest import ROOT, Command

ARITHMETIC = ("modular_arithmetic", "modular_arithmetic_brackets")

TABLE = re.findall(
    r"^\| (\w+)\.yaml \| ([^|]+) \| `statetrack (train [^`]+)` \|$",
    (ROOT / "docs" / "presets.md").read_text(),
    flags=re.MULTILINE,
)
MODELS = {
    "delta_net": ("delta_net", False), "delta_net_2": ("delta_net", True),
    "delta_net_20": ("delta_net", True), "mamba": ("mamba", False), "mamba_2": ("mamba", True),
    "xlstm10": ("mlstm", False), "xlstm01": ("slstm", False),
}  # fmt: skip


def meant(name: str) -> tuple[str, str, bool]:
    """The mixer, task and range of one of the authors' files."""
    tasks = {"parity": "parity", "mod_arithmetic": ARITHMETIC[0],
             "mod_arithmetic_with_brackets": ARITHMETIC[1]}  # fmt: skip
    task, model = re.fullmatch(r"(\w+?)_((?:delta|mamba|xlstm)\w*)", name).groups()  # type: ignore[union-attr]
    mixer, switch = MODELS[model]
    return mixer, tasks[task], switch


def test_the_page_lists_every_one_of_the_authors_commands() -> None:
    assert len(TABLE) == 18
    assert len({line for _, _, line in TABLE}) == 18
    assert {meant(name)[0] for name, *_ in TABLE} == {"delta_net", "mamba", "mlstm", "slstm"}


@pytest.mark.parametrize(("name", "numbers", "line"), TABLE)
def test_a_line_of_the_page(
    name: str, numbers: str, line: str, command: Command, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    short = ("--steps=1", "--batch-size=2", "--eval-samples=2", "--out", out)
    mixer, task, switch = meant(name)
    done = command(*shlex.split(line), *short)
    assert done.code == 0
    wanted = presets.repo(mixer, task, allow_neg_eigval=switch)
    training = replace(wanted.training, steps=1, batch_size=2, eval_samples=2)
    assert Run.open(out).config == replace(wanted, training=training)
    t = wanted.training
    steps, warmup, decay = (float(n.replace("k", "e3")) for n in numbers.split(", "))
    assert (t.steps, t.warmup * t.steps, t.weight_decay) == (steps, warmup, decay)


# -- what follows from a flag beside a preset -----------------------------------------------------


def trained(command: Command, out: Path, *args: str) -> RunConfig:
    short = ("--steps=1", "--batch-size=2", "--eval-samples=2")
    result = command("train", *args, *short, "--out", out)
    assert result.code == 0, result.err
    return Run.open(out).config


def test_the_learning_rate_and_seed_of_the_authors_commands(
    command: Command, tmp_path: Path
) -> None:
    t = trained(command, tmp_path / "a", "--preset=repo", "--lr=1e-4", "--seed=7").training
    assert (t.lr, t.min_lr, t.seed, t.data_seed) == (1e-4, pytest.approx(1e-7), 7, 7)
    given = ("--preset=repo", "--lr=1e-4", "--min-lr=1e-5", "--seed=7", "--data-seed=3")
    t = trained(command, tmp_path / "b", *given).training
    assert (t.lr, t.min_lr, t.seed, t.data_seed) == (1e-4, 1e-5, 7, 3)


def test_several_tokens_on_the_command_line(command: Command, tmp_path: Path) -> None:
    given = ("--preset=paper", "--task=S5", "--dataset-size=20")
    config = trained(command, tmp_path / "a", *given, "--tokens-per-element=4", "--num-layers=5")
    assert (config.training.max_length, config.model.vocab_size) == (64, 128)
    wanted = presets.paper("delta_net", "S5", tokens_per_element=4, num_layers=5)
    assert config.model == wanted.model
    more = ("--tokens-per-element=4", "--min-length=8", "--max-length=8")
    assert trained(command, tmp_path / "b", *given, *more).training.max_length == 8


def test_no_multiplication_on_the_command_line(command: Command, tmp_path: Path) -> None:
    given = ("--preset=paper", "--task=modular_arithmetic_brackets", "--no-mult")
    config = trained(command, tmp_path / "run", *given)
    assert config.task.mult is False  # type: ignore[attr-defined]
    assert config.training.clip == 1.0


@pytest.mark.parametrize(
    ("mixer", "task", "more"),
    [
        ("attention", "parity", ()),
        ("diagonal_rnn", "parity", ("--allow-neg-eigval",)),
        ("full_matrix", "S5", ("--dataset-size=20", "--tokens-per-element=4")),
    ],
)
def test_the_papers_other_models_on_the_command_line(
    mixer: str, task: str, more: tuple[str, ...], command: Command, tmp_path: Path
) -> None:
    given = ("--preset=paper", f"--mixer={mixer}", f"--task={task}")
    config = trained(command, tmp_path / "run", *given, *more)
    options = {"tokens_per_element": 4} if task == "S5" else {}
    switch = "--allow-neg-eigval" in more
    assert config.model == presets.paper(mixer, task, allow_neg_eigval=switch, **options).model
