"""The command, as people and programs use it."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

import statetrack
from statetrack.cli import train as train_command
from statetrack.cli.main import COMMANDS, SUBCOMMANDS
from statetrack.layers import MIXERS, MixerConfig
from statetrack.models import ExpertsConfig, ModelConfig
from statetrack.tasks import make_task
from statetrack.terminal import PlainConsole, print_progress
from statetrack.training import Progress, Run, TrainingConfig, evaluate
from tests.conftest import Command
from tests.training.small import FLAGS

# -- train ----------------------------------------------------------------------------------------


def test_train(command: Command, tmp_path: Path) -> None:
    code, out, err = command("train", *FLAGS, "--out", tmp_path / "run", "--max-length", "7")
    assert (code, err) == (0, "")
    assert "DeltaNet [0,1] on parity: step 4/4" in out
    assert f"Next: statetrack eval {tmp_path / 'run'}" in out
    run = Run.open(tmp_path / "run")
    assert run.config.training.max_length == 7
    assert run.config.model.hidden_size == 8
    assert run.config.model.mixers[0].num_heads == 2  # type: ignore[attr-defined]
    assert run.metrics()[-1]["step"] == 4
    assert run.checkpoint_steps() == [2, 4]


def test_train_mentions_every_option(command: Command) -> None:
    for mixer in MIXERS:
        for task in ("parity", "S3"):
            code, out, _ = command("train", "--task", task, "--mixer", mixer, "--help")
            assert code == 0
            sections = [type(make_task(task)), MixerConfig.class_for(mixer)]
            for section in (*sections, ModelConfig, ExpertsConfig, TrainingConfig):
                for field in dataclasses.fields(section):
                    if field.name in ("name", "vocab_size", "mixer", "experts"):
                        continue
                    prefix = "experts-" if section is ExpertsConfig else ""
                    flag = f"--{prefix}{field.name.replace('_', '-')}"
                    assert f"{flag} " in out or f"{flag}," in out, flag
                    assert field.metadata["help"] in out


def test_every_kind_of_option_can_be_given(command: Command, tmp_path: Path) -> None:
    flags = [
        "--task=S3", "--supervision=last", "--tokens-per-element=2", "--filler=repeat",
        "--generators", "1", "2",
        "--allow-neg-eigval", "--beta-stretch=0.1", "--no-final-norm", "--initializer-range=None",
        "--mlp-size=16", "--betas", "0.5", "0.75", "--clip=2", "--schedule=constant",
        "--data-seed=3", "--min-length=5", "--max-length=5", "--dataset-size=8",
    ]  # fmt: skip
    assert command("train", *FLAGS, *flags, "--out", tmp_path / "run").code == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["task"] == {
        "name": "S3",
        "supervision": "last",
        "generators": [1, 2],
        "tokens_per_element": 2,
        "filler": "repeat",
    }
    assert config["model"]["mixer"]["allow_neg_eigval"] is True
    assert config["model"]["mixer"]["beta_stretch"] == 0.1
    assert config["model"]["final_norm"] is False
    assert config["model"]["initializer_range"] is None
    assert config["model"]["mlp_size"] == 16
    training = config["training"]
    assert (training["betas"], training["clip"]) == ([0.5, 0.75], 2.0)
    assert (training["schedule"], training["data_seed"]) == ("constant", 3)
    assert training["dataset_size"] == 8


def test_train_tells_a_program(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code, out, err = command("train", *FLAGS, "--out", folder, "--json", "-")
    assert code == 0
    result = json.loads(out)
    assert "step 4/4" in err
    assert result["run"] == str(folder)
    assert result["config"] == json.loads((folder / "config.json").read_text())
    assert result["last"] == Run.open(folder).metrics()[-1]


@pytest.mark.parametrize(
    ("extra", "changes"),
    [
        pytest.param([], {}, id="as it is"),
        pytest.param(["--lr=0.5"], {"lr": 0.5}, id="another option"),
        pytest.param(["--task=parity", "--mixer=delta_net"], {}, id="the same names"),
    ],
)
def test_train_reads_a_run_s_configuration(
    extra: list[str], changes: dict[str, Any], command: Command, run_folder: Path, tmp_path: Path
) -> None:
    old = Run.open(run_folder).config
    new = tmp_path / "new"
    file = run_folder / "config.json"
    assert command("train", "--config", file, "--steps=3", "--out", new, *extra).code == 0
    training = dataclasses.replace(old.training, steps=3, **changes)
    assert Run.open(new).config == dataclasses.replace(old, training=training)
    assert Run.open(new).metrics()[-1]["step"] == 3


def test_train_takes_another_task_and_mixer_with_a_configuration(
    command: Command, run_folder: Path, tmp_path: Path
) -> None:
    args = ("--config", run_folder / "config.json", "--task=S3", "--mixer=mamba")
    assert command("train", *args, "--d-state=4", "--out", tmp_path / "new").code == 0
    config = Run.open(tmp_path / "new").config
    assert (config.task.name, config.model.mixers[0].name) == ("S3", "mamba")
    assert config.model.vocab_size == 6 + 7
    assert config.model.hidden_size == 8


def test_hybrid(command: Command, tmp_path: Path) -> None:
    flags = [
        "--mixer=delta_net,mamba", "--mixer0-num-heads=2", "--allow-neg-eigval",
        "--mixer1-d-state=4", "--num-layers=4", "--hidden-size=8", "--mlp=none",
        "--steps=2", "--batch-size=4",
    ]  # fmt: skip
    code, out, _ = command("train", *flags, "--out", tmp_path / "run")
    assert code == 0
    assert "DeltaNet [-1,1] + Mamba [-1,1] on parity" in out
    mixers = Run.open(tmp_path / "run").config.model.mixers
    assert [mixer.name for mixer in mixers] == ["delta_net", "mamba"] * 2
    assert [mixer.allow_neg_eigval for mixer in mixers] == [True, True] * 2
    # and what a run folder holds can be read again
    again = ["--config", tmp_path / "run" / "config.json", "--mixer1-d-state=8"]
    assert command("train", *again, "--out", tmp_path / "again").code == 0
    assert Run.open(tmp_path / "again").config.model.mixers[1].d_state == 8  # type: ignore[attr-defined]
    assert command("eval", tmp_path / "again", "--lengths=5", "--samples=4").code == 0


def test_a_hybrid_with_attention(command: Command, tmp_path: Path) -> None:
    """The switch is for the layers that have it; checkpoints and evaluation as for any model."""
    flags = [
        "--mixer=attention,delta_net,mamba,delta_net", "--mixer0-num-heads=2",
        "--mixer1-num-heads=2", "--mixer3-num-heads=4", "--allow-neg-eigval", "--num-layers=4",
        "--hidden-size=8", "--mlp-size=4", "--mlp-after", "attention", "mamba", "--steps=2",
        "--batch-size=4",
    ]  # fmt: skip
    code, out, _ = command("train", *flags, "--out", tmp_path / "run")
    assert code == 0
    assert "Attention + DeltaNet [-1,1] + Mamba [-1,1] on parity" in out
    config = Run.open(tmp_path / "run").config
    switches = [mixer.allow_neg_eigval for mixer in config.model.mixers]
    assert switches == [False, True, True, True]
    assert config.model.mlp_after == ("attention", "mamba")
    again = ["--config", tmp_path / "run" / "config.json", "--no-allow-neg-eigval"]
    assert command("train", *again, "--out", tmp_path / "again").code == 0
    other = Run.open(tmp_path / "again").config
    assert [mixer.allow_neg_eigval for mixer in other.model.mixers] == [False] * 4
    assert other.model.mlp_after == ("attention", "mamba")
    assert command("eval", tmp_path / "run", "--lengths=5", "--samples=4").code == 0

    # one layer set apart by a file: then each has its own flag
    data = json.loads((tmp_path / "run" / "config.json").read_text())
    data["model"]["mixer"][1]["allow_neg_eigval"] = False
    (tmp_path / "apart.json").write_text(json.dumps(data))
    own = ["--config", tmp_path / "apart.json", "--no-mixer2-allow-neg-eigval"]
    assert command("train", *own, "--out", tmp_path / "apart").code == 0
    apart = Run.open(tmp_path / "apart").config
    assert [mixer.allow_neg_eigval for mixer in apart.model.mixers] == [False] * 3 + [True]


def test_experts(command: Command, tmp_path: Path) -> None:
    flags = [*FLAGS, "--mlp=swiglu", "--num-layers=2", "--experts-count=3", "--experts-size=4"]
    assert command("train", *flags, "--experts-layers", "1", "--out", tmp_path / "run").code == 0
    model = Run.open(tmp_path / "run").config.model
    assert model.experts == ExpertsConfig(count=3, size=4, layers=(1,))
    again = ["--config", tmp_path / "run" / "config.json", "--experts-top-k=3"]
    assert command("train", *again, "--out", tmp_path / "again").code == 0
    assert Run.open(tmp_path / "again").config.model.experts == ExpertsConfig(3, 3, 4, layers=(1,))
    assert command("eval", tmp_path / "again", "--lengths=5", "--samples=4").code == 0
    code, _, err = command("train", *again, "--experts-count=2", "--out", tmp_path / "new")
    assert code == 2
    assert "top_k of the experts must be at most their count; got 3 of 2" in err


def test_a_mixer_without_the_switch(command: Command, tmp_path: Path) -> None:
    run = [*FLAGS, "--allow-neg-eigval", "--out", tmp_path / "one"]
    assert command("train", *run).code == 0
    # another mixer with a configuration takes over what both have: there is no switch here
    again = ["--config", tmp_path / "one" / "config.json", "--mixer=attention", "--num-heads=2"]
    assert command("train", *again, "--out", tmp_path / "two").code == 0
    assert Run.open(tmp_path / "two").config.model.title == "Attention"
    code, _, err = command("train", *again, "--allow-neg-eigval")
    assert code == 2
    assert "Attention has no allow_neg_eigval: it keeps every token" in err


def test_the_default_folder(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert command("train", *FLAGS).code == 0
    hybrid = ["--mixer=delta_net,mamba", "--hidden-size=8", "--steps=1", "--batch-size=4"]
    assert command("train", "--task=S3", *hybrid).code == 0
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == [
        "S3-delta_net+mamba-1",
        "parity-delta_net-1",
        "parity-delta_net-2",
    ]
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]


def test_interrupt_and_resume(
    command: Command, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ctrl_c(progress: Progress) -> None:
        if progress.step == 3:
            raise KeyboardInterrupt

    folder = tmp_path / "interrupted"
    with monkeypatch.context() as patch:
        patch.setattr(train_command, "print_progress", lambda console, title: ctrl_c)
        code, out, err = command("train", *FLAGS, "--out", folder)
    assert code == 130
    assert f"to go on: statetrack train --resume {folder}" in out
    assert err == ""
    assert Run.open(folder).checkpoint_steps() == [2]
    assert command("train", "--resume", folder).code == 0
    files = [f / "checkpoints" / "step-00000004.safetensors" for f in (folder, run_folder)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_resuming_a_finished_run(command: Command, run_folder: Path) -> None:
    before = {p: p.read_bytes() for p in run_folder.rglob("*") if p.is_file()}
    code, out, _ = command("train", "--resume", run_folder, "--json", "-")
    assert code == 0
    assert json.loads(out)["last"]["step"] == 4
    assert {p: p.read_bytes() for p in run_folder.rglob("*") if p.is_file()} == before


# -- eval -----------------------------------------------------------------------------------------


def test_eval(command: Command, run_folder: Path) -> None:
    args = ("--lengths", "5", "8-12", "--samples", "50", "--json", "-")
    code, out, err = command("eval", run_folder, *args)
    assert code == 0
    result = json.loads(out)
    assert result["run"] == str(run_folder)
    run = Run.open(run_folder)
    expected = [evaluate(run.model(), run.config.task, n, samples=50) for n in (5, (8, 12))]
    assert result["results"] == json.loads(json.dumps([e.to_json() for e in expected]))
    assert "DeltaNet [0,1] on parity, trained on 3-40" in err
    texts = [
        f"{n:.4f}"
        for e in expected
        for n in (e.score, e.majority, e.scaled, e.sequence_accuracy, e.token_accuracy)
    ]
    for text in ("8-12", "majority", "sequence", *texts):
        assert text in err
    assert "at output" not in err  # one answer has one position


def test_train_and_eval_write_json_files(command: Command, tmp_path: Path) -> None:
    trained, evaluated = tmp_path / "train.json", tmp_path / "eval.json"
    folder = tmp_path / "run"
    first = command("train", *FLAGS, "--out", folder, "--json", trained)
    second = command("eval", folder, "--lengths=5", "--samples=4", "--json", evaluated)
    assert first.code == second.code == 0
    assert "step 4/4" in first.out
    assert "answer accuracy" in second.out
    assert json.loads(trained.read_text())["run"] == str(folder)
    assert json.loads(evaluated.read_text())["results"][0]["samples"] == 4


def test_eval_of_another_split_and_seed(command: Command, run_folder: Path) -> None:
    def results(*args: str) -> Any:
        found = command("eval", run_folder, "--lengths=5-20", "--samples=200", "--json=-", *args)
        return json.loads(found.out)["results"]

    run = Run.open(run_folder)
    wanted = evaluate(
        run.model(), run.config.task, (5, 20), samples=200, split="validation", data_seed=8
    )
    assert results("--split=validation", "--data-seed=8") == [
        json.loads(json.dumps(wanted.to_json()))
    ]
    assert results() == results()


def test_eval_lengths_by_default(command: Command, run_folder: Path) -> None:
    out = command("eval", run_folder, "--samples=4", "--json=-").out
    lengths = [(r["min_length"], r["max_length"]) for r in json.loads(out)["results"]]
    assert lengths == [(3, 40), (40, 40), (80, 80), (160, 160), (320, 320)]


def test_eval_writes_nothing_into_the_run(command: Command, run_folder: Path) -> None:
    before = {p: p.read_bytes() for p in run_folder.rglob("*") if p.is_file()}
    assert command("eval", run_folder, "--lengths=5", "--samples=4").code == 0
    assert {p: p.read_bytes() for p in run_folder.rglob("*") if p.is_file()} == before


# -- what there is --------------------------------------------------------------------------------

LISTS = [
    pytest.param(["tasks"], ["parity", "S5_only_swaps", "A4_x_Z5", "dfa:FILE"], id="tasks"),
    pytest.param(["tasks", "parity"], ["the number of ones modulo 2", "input:"], id="tasks parity"),
    pytest.param(["tasks", "S5_only_swaps"], ["running product", "BOS"], id="tasks S5_only_swaps"),
    pytest.param(["models"], ["delta_net", "mamba", "DeltaNet", "[-1,1]"], id="models"),
    pytest.param(["models", "mamba"], ["d_state", "allow_neg_eigval"], id="models mamba"),
    pytest.param(["info"], [statetrack.__version__, torch.__version__], id="info"),
]


@pytest.mark.parametrize(("args", "texts"), LISTS)
def test_for_people(args: list[str], texts: list[str], command: Command) -> None:
    code, out, err = command(*args)
    assert (code, err) == (0, "")
    for text in texts:
        assert text in out


@pytest.mark.parametrize(("args", "texts"), LISTS)
def test_for_programs(args: list[str], texts: list[str], command: Command, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    to_file = command(*args, "--json", file)
    to_stdout = command(*args, "--json", "-")
    assert to_file.code == to_stdout.code == 0
    assert json.loads(to_stdout.out) == json.loads(file.read_text())
    assert to_file.out == to_stdout.err  # the text is the same; it makes room for JSON
    assert to_file.err == ""
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


def test_a_file_with_an_older_result_is_replaced(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text("old " * 10_000)
    assert command("info", "--json", file).code == 0
    assert json.loads(file.read_text())["torch"] == torch.__version__


def test_models_are_told_to_programs(command: Command) -> None:
    data = json.loads(command("models", "--json", "-").out)
    assert [m["mixer"] for m in data["models"]] == list(MIXERS)
    switches = {m["mixer"]: m["switch"] for m in data["models"]}
    assert (switches["mamba"], switches["attention"]) == ("yes", "no")
    large = {m["language model"]: m["parameters"] for m in data["language models"]}
    assert large["delta_net-340M"] == "341,594,112"
    options = json.loads(command("models", "mamba", "--json", "-").out)["models"]
    assert {"option": "d_state", "default": "16", "what it is": "states per channel"} in options
    assert [o["option"] for o in options] == [
        f.name for f in dataclasses.fields(MixerConfig.class_for("mamba"))
    ]
    options = json.loads(command("models", "attention", "--json", "-").out)["models"]
    names = [f.name for f in dataclasses.fields(MixerConfig.class_for("attention"))]
    assert [o["option"] for o in options] == [n for n in names if n != "allow_neg_eigval"]


def test_a_task_is_told_to_programs(command: Command) -> None:
    data = json.loads(command("tasks", "parity", "--json", "-").out)
    assert (data["name"], data["chance"], data["metric"]) == ("parity", 0.5, "answer")
    assert data["vocab"] == ["PAD", "0", "1"]
    example = data["example"]
    odd = example["input"].count("1") % 2
    assert example["target"] == ["."] * (len(example["input"]) - 1) + [str(odd)]


def test_info_is_true(command: Command) -> None:
    data = json.loads(command("info", "--json", "-").out)
    assert data["torch threads"] == torch.get_num_threads()
    assert data["python"] == ".".join(map(str, sys.version_info[:3]))


# -- progress -------------------------------------------------------------------------------------


def shown(steps: int, *, terminal: bool) -> str:
    out = StringIO()
    console = PlainConsole(file=out, force_terminal=terminal, width=100)
    show = print_progress(console, "DeltaNet [0,1]")
    for step in range(1, steps + 1):
        show(Progress(step, steps, 0.5, 0.75, float(step), float(steps - step)))
    return out.getvalue()


def on_screen(text: str) -> str:
    """What is to be seen of a line that is written again and again."""
    line, column = "", 0
    for part in re.split(r"(\r|\x1b\[[02]?K)", text.rstrip("\n")):
        if part == "\r":
            column = 0
        elif part.startswith("\x1b"):
            line = " " * column if "2" in part else line[:column]
        else:
            line = line[:column] + part + line[column + len(part) :]
            column += len(part)
    return line.rstrip()


def test_progress_without_a_terminal_is_a_few_lines() -> None:
    lines = shown(1000, terminal=False).splitlines()
    steps = [int(line.partition("step ")[2].partition("/")[0]) for line in lines]
    assert steps == [1, *range(100, 1001, 100)]
    assert lines[1] == "DeltaNet [0,1]: step 100/1000, loss 0.5000, accuracy 0.750, 900 s left"


def test_progress_in_a_terminal_is_one_line() -> None:
    text = shown(1000, terminal=True)
    assert text.count("\n") == 1
    # nothing is left of the longer lines before it
    last = "DeltaNet [0,1]: step 1000/1000, loss 0.5000, accuracy 0.750, 0 s left"
    assert on_screen(text) == last


# -- the process ----------------------------------------------------------------------------------

STATETRACK = [sys.executable, "-m", "statetrack"]


@pytest.mark.parametrize("args", [[], ["--help"]], ids=["nothing", "--help"])
def test_help(args: list[str], command: Command) -> None:
    code, out, _ = command(*args)
    assert code == 0
    for name in COMMANDS:
        assert name in out


@pytest.mark.parametrize("name", [*COMMANDS, *map(" ".join, SUBCOMMANDS)])
def test_help_of_a_command(name: str, command: Command) -> None:
    code, out, err = command(*name.split(), "--help")
    assert (code, err) == (0, "")
    assert f"usage: statetrack {name}" in out
    assert "--json" in out
    assert "--plugin" in out


def test_help_does_not_wait_for_torch() -> None:
    program = (
        "import sys; from statetrack import cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL).returncode == 0
    )


@pytest.mark.parametrize("args", [["tasks"], ["tasks", "--json", "-"]], ids=["text", "json"])
def test_a_reader_that_stops_reading(args: list[str]) -> None:
    """As in `statetrack tasks | head -1`."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*STATETRACK, *args], stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    assert done.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("args", [["tasks"], ["tasks", "--json", "-"]], ids=["text", "json"])
def test_standard_output_on_a_full_disk(args: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*STATETRACK, *args], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    message = done.stderr.splitlines()[-1]
    assert message == "statetrack: error: cannot read or write: No space left on device"
    assert "Traceback" not in done.stderr


def test_another_mixer_keeps_what_both_have(command: Command, tmp_path: Path) -> None:
    first = ["--allow-neg-eigval", "--conv-size=0", "--supervision=dense"]
    assert command("train", *FLAGS, *first, "--out", tmp_path / "one").code == 0
    again = ["--config", tmp_path / "one" / "config.json", "--mixer=mamba"]
    assert command("train", *again, "--out", tmp_path / "two").code == 0
    config = Run.open(tmp_path / "two").config
    assert config.model.title == "Mamba [-1,1]"
    assert config.model.mixers[0].conv_size == 0  # type: ignore[attr-defined]


def test_version(command: Command) -> None:
    code, out, _ = command("--version")
    assert (code, out) == (0, f"statetrack {statetrack.__version__}\n")
