"""The recipes, and the page that lists them."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from statetrack.errors import UserError
from statetrack.experiments import presets
from statetrack.models import SequenceModel
from statetrack.training import Run, RunConfig
from tests.conftest import ROOT, Command

MIXERS = ("delta_net", "mamba")
ARITHMETIC = ("modular_arithmetic", "modular_arithmetic_brackets")
FORMAL = ("parity", *ARITHMETIC)
GROUPS = ("S5", "S5_only_swaps", "S5_up_to_3", "Z60", "A5", "A4_x_Z5")

RECIPES = [
    *((presets.paper, m, t) for t in (*FORMAL, *GROUPS) for m in MIXERS),
    *((presets.repo, m, t) for t in FORMAL for m in MIXERS),
    *((presets.demo, m, "parity") for m in MIXERS),
    (presets.demo, "delta_net", "S5_only_swaps"),
]
EVERY = pytest.mark.parametrize(
    ("recipe", "mixer", "task"),
    [pytest.param(*r, id=f"{r[0].__name__} {r[1]} {r[2]}") for r in RECIPES],
)
MIXER = pytest.mark.parametrize("mixer", MIXERS)


def without_the_switch(config: RunConfig) -> RunConfig:
    (mixer,) = set(config.model.mixers)
    model = replace(config.model, mixer=replace(mixer, allow_neg_eigval=False))
    return replace(config, model=model)


@EVERY
def test_both_ranges_differ_in_the_switch_alone(recipe: Any, mixer: str, task: str) -> None:
    positive = recipe(mixer, task, allow_neg_eigval=False, seed=7)
    negative = recipe(mixer, task, allow_neg_eigval=True, seed=7)
    assert positive != negative
    assert without_the_switch(negative) == positive
    assert positive.training.seed == 7


@EVERY
def test_it_is_of_that_mixer_and_task_and_can_be_built(recipe: Any, mixer: str, task: str) -> None:
    config = recipe(mixer, task, allow_neg_eigval=True)
    assert {m.name for m in config.model.mixers} == {mixer}
    assert config.task.name == task
    assert config.model.vocab_size == len(config.task.vocab)
    assert SequenceModel(config.model).num_parameters() > 0


@pytest.mark.parametrize(
    ("recipe", "task"),
    [(presets.paper, "parity"), (presets.paper, "S5"), (presets.repo, "parity"),
     (presets.demo, "parity")],
)  # fmt: skip
def test_an_unknown_mixer(recipe: Any, task: str) -> None:
    with pytest.raises(UserError, match="unknown mixer 'lstm'; known: delta_net, mamba"):
        recipe("lstm", task, allow_neg_eigval=True)


@pytest.mark.parametrize(
    ("recipe", "mixer", "task", "message"),
    [
        (presets.paper, "mamba", "nope", "unknown task 'nope'"),
        (presets.paper, "mamba", "board", "the paper has no board; it has parity, modular_arithm"),
        (presets.paper, "mamba", "chomsky/even_pairs", "the paper has no chomsky/even_pairs"),
        (presets.repo, "mamba", "S5", "no command for S5; known: parity, modular_arithmetic, mod"),
        (presets.repo, "mamba", "nope", "no command for nope"),
        (presets.demo, "mamba", "S5_only_swaps", "the demo has no mamba on S5_only_swaps"),
        (presets.demo, "delta_net", "S5", "the demo has no delta_net on S5"),
    ],
)
def test_an_unknown_task(recipe: Any, mixer: str, task: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        recipe(mixer, task, allow_neg_eigval=True)


# -- the paper ------------------------------------------------------------------------------------


@MIXER
def test_parity_as_in_the_paper(mixer: str) -> None:
    config = presets.paper(mixer, "parity", allow_neg_eigval=True)
    t = config.training
    assert (t.steps, t.batch_size, t.lr, t.schedule) == (100_000, 1024, 1e-3, "cosine")
    assert (t.warmup, t.min_lr, t.weight_decay, t.clip) == (0.1, 1e-6, 0.1, None)
    assert (t.min_length, t.max_length, t.betas) == (3, 40, (0.9, 0.999))
    assert (t.precision, t.dataset_size) == ("fp32", None)
    assert (config.model.num_layers, config.model.hidden_size) == (2, 128)
    assert config.model.mixers[0].conv_size == 4  # type: ignore[attr-defined]


@pytest.mark.parametrize("task", ARITHMETIC)
@MIXER
def test_arithmetic_as_in_the_paper(mixer: str, task: str) -> None:
    config = presets.paper(mixer, task, allow_neg_eigval=True)
    t = config.training
    assert (t.steps, t.batch_size, t.lr, t.schedule) == (100_000, 1024, 1e-3, "cosine")
    assert (t.weight_decay, t.clip, t.dataset_size) == (0.1, 1.0, None)
    assert (t.min_length, t.max_length) == (3, 40)
    assert (config.model.num_layers, config.model.hidden_size) == (3, 128)
    assert config.model.mixers[0].conv_size == 4  # type: ignore[attr-defined]
    if task == "modular_arithmetic_brackets":
        assert config.task.mult is True  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("task", "vocab", "count"),
    [("modular_arithmetic", 10, 796_128), ("modular_arithmetic_brackets", 12, 796_640)],
)
@pytest.mark.parametrize("switch", [False, True], ids=["[0,1]", "[-1,1]"])
def test_parameters_of_the_papers_arithmetic_models(
    task: str, vocab: int, count: int, switch: bool
) -> None:
    model = presets.paper("delta_net", task, allow_neg_eigval=switch).model
    assert model.vocab_size == vocab
    assert SequenceModel(model).num_parameters() == count


@pytest.mark.parametrize("task", GROUPS)
@pytest.mark.parametrize(("mixer", "layers"), [("delta_net", 1), ("mamba", 5)])
def test_word_problems_as_in_the_paper(mixer: str, layers: int, task: str) -> None:
    config = presets.paper(mixer, task, allow_neg_eigval=True)
    t = config.training
    assert (t.steps, t.batch_size, t.dataset_size) == (312_500, 512, 1_600_000)
    assert t.steps * t.batch_size == 100 * t.dataset_size
    assert (t.lr, t.schedule, t.warmup, t.weight_decay, t.clip) == (1e-4, "constant", 0, 0.01, 1)
    assert (t.min_length, t.max_length) == (32, 32)
    assert (config.model.num_layers, config.model.hidden_size) == (layers, 128)
    conv = {"delta_net": 0, "mamba": 4}[mixer]
    assert config.model.mixers[0].conv_size == conv  # type: ignore[attr-defined]
    if mixer == "mamba":
        assert (config.model.norm, config.model.final_norm, config.model.head_bias) == (
            "layer", True, True,
        )  # fmt: skip


# -- the authors' commands ------------------------------------------------------------------------


@pytest.mark.parametrize("task", FORMAL)
@MIXER
def test_the_authors_commands(mixer: str, task: str) -> None:
    config = presets.repo(mixer, task, allow_neg_eigval=True)
    t = config.training
    steps, decay = (20_000, 0.0) if task == "parity" else (100_000, 0.1)
    assert (t.steps, t.batch_size, t.weight_decay) == (steps, 256, decay)
    assert (t.precision, t.clip, t.lr, t.schedule) == ("bf16", None, 1e-3, "cosine")
    assert (t.min_length, t.max_length, t.dataset_size) == (3, 40, None)
    assert (t.seed, t.data_seed) == (42, 42)
    assert (config.model.num_layers, config.model.hidden_size) == (2, 128)
    conv = {"delta_net": 4, "mamba": 1}[mixer]
    assert config.model.mixers[0].conv_size == conv  # type: ignore[attr-defined]
    if task == "modular_arithmetic_brackets":
        assert config.task.mult is False  # type: ignore[attr-defined]


TABLE = re.findall(
    r"^\| (\w+) \| `statetrack (train [^`]+)` \|$",
    (ROOT / "docs" / "presets.md").read_text(),
    flags=re.MULTILINE,
)


def test_the_page_lists_every_one_of_the_authors_commands() -> None:
    assert len(TABLE) == 12
    assert len({command for _, command in TABLE}) == 12


@pytest.mark.parametrize(("name", "line"), TABLE)
def test_a_line_of_the_page(name: str, line: str, command: Command, tmp_path: Path) -> None:
    out = tmp_path / "run"
    short = ("--steps=1", "--batch-size=2", "--out", out)
    assert command(*shlex.split(line), *short).code == 0
    tasks = {"parity": "parity", "mod_arithmetic": ARITHMETIC[0],
             "mod_arithmetic_with_brackets": ARITHMETIC[1]}  # fmt: skip
    task, mixer, switch = re.fullmatch(r"(\w+?)_(delta_net|mamba)(_20?)?", name).groups()  # type: ignore[union-attr]
    wanted = presets.repo(mixer, tasks[task], allow_neg_eigval=switch is not None)
    training = replace(wanted.training, steps=1, batch_size=2)
    assert Run.open(out).config == replace(wanted, training=training)
