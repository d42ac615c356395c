"""What a user may get wrong: exit code 2, one sentence, nothing made, changed or overwritten."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from statetrack import cli
from statetrack.config import unknown
from statetrack.files import sole_writer, write_json
from statetrack.layers import MIXERS
from statetrack.training import Run
from tests.training.refusal import Refused, flags
from tests.training.small import FLAGS, small_config

UNKNOWN_MIXER = str(unknown("mixer", "nope", MIXERS))  # with all names, or the nearest


def named(*cases: tuple[list[str], list[str]]) -> list[Any]:
    """Cases of (arguments, what must be said), named after their arguments."""
    return [pytest.param(*case, id=" ".join(case[0])) for case in cases]


# -- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    named(
        (["--task=nope"], ["unknown task 'nope'", "nearest of ", " known: "]),
        (["--task="], ["unknown task ''", "nearest of "]),
        (["--mixer=nope"], [UNKNOWN_MIXER]),
        (["--mixer=delta_net,nope"], [UNKNOWN_MIXER]),
        (["--mixer=delta_net,"], ["unknown mixer ''", "known: "]),
        (["--task=Q5"], ["unknown group 'Q5'", "S<n>, A<n>, Z<m>"]),
        (["--task=Z1"], ["group Z1", "at least 2; got 1"]),
        (["--task=A4_x_Z1"], ["group A4_x_Z1", "at least 2; got 1"]),
        (["--task=S1"], ["group S1", "the least are S2 and A3"]),
        (["--task=S9"], ["group S9", "362,880 elements", "at most 2,520"]),
        (["--task=S5_up_to_1"], ["S5_up_to_1", "only the identity"]),
        (["--task=Z60_only_swaps"], ["Z60", "permutations"]),
        (["--task=S3", "--generators=1"], ["(1,) do not generate S3", "reach 2 of 6 elements"]),
        (["--task=S3", "--generators=6"], ["generators of S3 must lie in 0..5"]),
        (["--task=S3", "--generators=-1"], ["generators of S3 must lie in 0..5"]),
        (["--task=group:nowhere.json"], ["nowhere.json"]),
        (["--task=dfa:nowhere.json"], ["nowhere.json"]),
        (["--task=regex:(ab"], ["(ab"]),
        (["--task=regex:"], ["regex"]),
        (["--preset=nope"], ["unknown preset 'nope'", "known: demo, paper, repo"]),
        (["--preset=paper", "--config=x.json"], ["--preset or --config, not both"]),
        (["--preset=paper", "--task=board"], ["the paper has no board", "parity", "S5", "Z60"]),
        (["--preset=paper", "--mixer=mlstm", "--task=S5"], ["Figure 4 has no mlstm"]),
        (["--preset=repo", "--task=S5"], ["no command for S5", "known: parity"]),
        (["--preset=demo", "--task=S5"], ["the demo has no delta_net on S5"]),
        (["--preset=paper", "--mixer=lstm"], ["unknown mixer 'lstm'", "delta_net, mamba"]),
        (["--task=S3", "--tokens-per-element=0"], ["tokens_per_element", "1..1,000; got 0"]),
        (["--num-heads=3"], ["num_heads must divide", "got 3 heads for 8"]),
        (["--mixer=--"], ["--mixer cannot be '--'"]),
        (["--num-heads=0"], ["num_heads", "at least 1; got 0"]),
        (["--expand-k=0.3"], ["num_heads must divide", "expand_k"]),
        (["--expand-k=-1"], ["expand_k"]),
        (["--expand-k=nan"], ["expand_k"]),
        (["--expand-v=inf"], ["expand_v"]),
        (["--conv-size=-1"], ["conv_size", "at least 0; got -1"]),
        (["--hidden-size=0"], ["hidden_size", "at least 1; got 0"]),
        (["--hidden-size=1000000"], ["parameters with AdamW", "TB; this machine has "]),
        (["--num-layers=100000000"], ["parameters with AdamW", "TB; this machine has "]),
        (["--batch-size=1000000000"], ["tokens at once needs", "this machine has "]),
        (["--max-length=10000000000"], ["parity of length 10,000,000,000 needs 640 GB"]),
        ([f"--num-layers={10**30}"], ["num_layers", "at most 2^53"]),
        (["--num-layers=0"], ["num_layers", "at least 1; got 0"]),
        (["--mlp-size=0"], ["mlp_size", "at least 1; got 0"]),
        (["--embedding=one_hot", "--hidden-size=2"], ["one-hot", "hidden_size >= vocab_size"]),
        (["--embedding=one_hot", "--tie-embeddings"], ["tie_embeddings needs embedding = learned"]),
        (["--steps=0"], ["steps", "at least 1; got 0"]),
        (["--batch-size=0"], ["batch_size", "at least 1; got 0"]),
        (["--log-every=0"], ["log_every", "at least 1; got 0"]),
        (["--checkpoint-every=0"], ["checkpoint_every", "at least 1; got 0"]),
        (["--eval-every=-1"], ["eval_every", "at least 0; got -1"]),
        (["--eval-samples=0"], ["eval_samples", "at least 1; got 0"]),
        (["--lr=nan"], ["lr", "finite number, at least 0; got nan"]),
        (["--lr=-0.1"], ["lr", "finite number, at least 0; got -0.1"]),
        (["--lr=inf"], ["lr", "finite number, at least 0; got inf"]),
        (["--clip=0"], ["clip must be finite and above 0, or none; got 0"]),
        (["--clip=nan"], ["clip", "above 0", "got nan"]),
        (["--clip=inf"], ["clip", "got inf"]),
        (["--warmup=2"], ["warmup", "0..1; got 2"]),
        (["--saturation-start=0.9"], ["0 <= saturation_start <= saturation_full <= 1"]),
        (["--min-length=0"], ["the length of parity", "at least 2; got 0"]),
        (["--min-length=1"], ["the length of parity", "at least 2; got 1"]),
        (["--task=S3", "--min-length=0"], ["the length of S3", "at least 1; got 0"]),
        (["--min-length=9", "--max-length=5"], ["greatest length 5 is below the least, 9"]),
        (["--eval-every=2", "--eval-lengths=1-9"], ["the length of parity", "at least 2; got 1"]),
        (["--dataset-size=2"], ["dataset_size", "at least 4; got 2"]),
        (["--dataset-size=64"], ["one length: min_length = max_length"]),
        (
            ["--dataset-size=64", "--min-length=3", "--max-length=3"],
            ["parity has too few different sequences of length 3"],
        ),
        (["--seed=-1"], ["seed", "got -1"]),
        ([f"--seed={10**30}"], ["seed"]),
        (["--data-seed=-1"], ["data_seed must lie in 0..2^32-1; got -1"]),
        ([f"--data-seed={2**32}"], ["data_seed must lie in 0..2^32-1"]),
    ),
)
def test_train_options(changes: list[str], says: list[str], refused: Refused) -> None:
    refused("train", *flags(*changes), "--out=new", says=says)


@pytest.mark.parametrize(
    ("changes", "says"),
    named(
        (["--betas", "0.9", "1.0"], ["betas must lie in 0..1, 1 excluded"]),
        (["--mixer=mamba", "--d-state=0"], ["d_state", "at least 1; got 0"]),
        (["--mixer=mamba", "--dt-min=0"], ["0 < dt_min <= dt_max"]),
        (["--mixer=mamba", "--dt-min=1"], ["0 < dt_min <= dt_max", "got 1.0 and 0.1"]),
        (["--mixer=mamba", "--dt-max=inf"], ["dt_max"]),
        (["--mixer=delta_net,mamba", "--num-layers=3"], ["2 mixers for 3 layers"]),
    ),
)
def test_train_options_of_other_mixers(
    changes: list[str], says: list[str], refused: Refused
) -> None:
    refused("train", "--steps=2", "--batch-size=4", "--hidden-size=8", *changes, says=says)


@pytest.mark.parametrize(
    ("args", "says"),
    named(
        (["tasks", "nope"], ["unknown task 'nope'", "nearest of "]),
        (["tasks", "S3", "--tokens-per-element=0"], ["tokens_per_element", "got 0"]),
        (["tasks", "Z1"], ["group Z1", "at least 2; got 1"]),
        (["models", "nope"], ["unknown model 'nope'", "known: attention"]),
        (["train", "--nope", "3"], ["unknown option '--nope'", "nearest of "]),
        (["train", "--hiden-size=3"], ["unknown option '--hiden-size'", ": --hidden-size,"]),
        (["train", "--learning_rate=3"], ["unknown option '--learning_rate'", "nearest of "]),
        (["train", "--mixer=mamba", "--num-heads=3"], ["unknown option '--num-heads'"]),
        (
            ["tasks", "parity", "--nope"],
            ["known: --help, --json, --plugin, --supervision"],
        ),
        (["info", "--nope"], ["unknown option '--nope'; known: --help, --json, --plugin"]),
        (["demo", "--seed=-1"], ["seed must lie in 0..2^30-1; got -1"]),
        (["demo", f"--seed={2**30}"], ["seed must lie in 0..2^30-1"]),
        (["demo", "--smoke", "--jobs=0"], ["runs side by side must be at least 1; got 0"]),
    ),
)
def test_options_of_other_commands(args: list[str], says: list[str], refused: Refused) -> None:
    refused(*args, says=says)


@pytest.mark.parametrize(
    ("args", "says"),
    named(
        (["nope"], ["nope", "demo", "train", "eval"]),
        (["train", "--steps=many"], ["--steps", "many"]),
        (["train", "--steps=1.5"], ["--steps", "1.5"]),
        (["train", "--schedule=linear"], ["--schedule", "cosine", "constant"]),
        (["train", "--betas", "0.9"], ["--betas"]),
        (["train", "--config"], ["--config"]),
        (["eval"], ["RUN is missing: a run folder"]),
        (["tasks", "export"], ["NAME is missing: a task"]),
        (["tasks", "import", "x.csv"], ["--task is missing: the task that the file is of"]),
        (["eval", "x", "--samples=many"], ["--samples", "many"]),
        (["demo", "extra"], ["extra"]),
        (["demo", "--plugin"], ["--plugin"]),
        (["info", "--plugin=no.such.module"], ["the plugin 'no.such.module'", "No module named"]),
    ),
)
def test_what_the_parser_refuses(args: list[str], says: list[str], refused: Refused) -> None:
    refused(*args, says=says)


# -- configuration files --------------------------------------------------------------------------

MISSING = object()


def edited(path: str, value: Any) -> str:
    """The text of a configuration file with one value changed, added or removed."""
    data: Any = json.loads(json.dumps(small_config().to_json()))
    *parents, key = path.split(".")
    inner = data
    for parent in parents:
        inner = inner[parent]
    if value is MISSING:
        del inner[key]
    else:
        inner[key] = value
    return json.dumps(data)


EDITS = [
    ("schema", 3, ["schema 3", "reads 2"]),
    ("schema", "1", ["schema '1'", "reads 2"]),
    ("schema", True, ["schema True", "reads 2"]),
    ("schema", MISSING, ["lacks the key 'schema'"]),
    ("task", MISSING, ["lacks the key 'task'"]),
    ("extra", 1, ["unknown key 'extra'", "known: task, model, training"]),
    ("task.extra", 1, ["unknown key 'extra'", "task", "known: name, supervision"]),
    ("model.extra", 1, ["unknown key 'extra'", "model", "hidden_size"]),
    ("model.mixer.extra", 1, ["unknown key 'extra'", "model.mixer", "num_heads"]),
    ("training.extra", 1, ["unknown key 'extra'", "training", "steps"]),
    ("task.name", "Parity", ["unknown task 'Parity'", "parity"]),
    ("task.name", "Z1", ["group Z1", "at least 2"]),
    ("task.name", 5, ["5", "name"]),
    ("task.name", [], ["[]", "name"]),
    ("task.name", MISSING, ["task", "needs a 'name'"]),
    ("model.mixer.name", "nope", [UNKNOWN_MIXER]),
    ("model.mixer.name", [], ["[]", "name"]),
    ("model.mixer.name", MISSING, ["model.mixer", "needs a 'name'"]),
    ("model.mixer", 5, ["model.mixer", "an object"]),
    ("model.mixer", [], ["mixers", "got 0 mixers"]),
    ("model.mixer.num_heads", 3, ["num_heads must divide"]),
    ("model.mixer.expand_k", float("nan"), ["expand_k"]),
    ("model.residual", 1, ["model.residual must be true or false; got 1"]),
    ("model.vocab_size", 5, ["parity has 3 tokens", "vocab_size is 5"]),
    ("training", None, ["training must be an object"]),
    ("training.steps", "many", ["training.steps must be a whole number; got 'many'"]),
    ("training.steps", 1.5, ["training.steps must be a whole number; got 1.5"]),
    ("training.steps", True, ["training.steps must be a whole number; got True"]),
    ("training.steps", None, ["training.steps must be a whole number; got None"]),
    ("training.lr", "x", ["training.lr must be a number; got 'x'"]),
    ("training.lr", float("nan"), ["lr", "finite"]),
    ("training.clip", float("inf"), ["clip"]),
    ("training.betas", [0.9], ["training.betas must be a list of 2 values"]),
    ("training.betas", 0.9, ["training.betas must be a list"]),
    ("training.schedule", "linear", ["training.schedule must be one of cosine, constant"]),
    ("training.min_length", 1, ["the length of parity", "at least 2"]),
]


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        pytest.param(*edit, id=f"{edit[0]} {'missing' if edit[1] is MISSING else edit[1]!r}")
        for edit in EDITS
    ],
)
def test_configuration_files(
    path: str, value: Any, says: list[str], refused: Refused, tmp_path: Path
) -> None:
    (tmp_path / "file.json").write_text(edited(path, value))
    refused("train", "--config=file.json", "--out=new", says=says)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"schema": 1', b"\xff\xfe\x00", b"[1]", b"null", b'"text"'],
    ids=["empty", "brace", "cut", "bytes", "list", "null", "text"],
)
def test_files_that_are_no_configuration(content: bytes, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "file.json").write_bytes(content)
    refused("train", "--config=file.json", "--out=new", says=["file.json"])
    # the same as a run's configuration
    (tmp_path / "run").mkdir()
    (tmp_path / "file.json").rename(tmp_path / "run" / "config.json")
    refused("eval", "run", says=["run/config.json"])
    refused("train", "--resume=run", says=["run/config.json"])


def test_a_configuration_that_is_not_there(refused: Refused, tmp_path: Path) -> None:
    refused("train", "--config=nowhere.json", says=["nowhere.json does not exist"])
    (tmp_path / "folder").mkdir()
    refused("train", "--config=folder", says=["folder", "directory"])


# -- folders and files to write -------------------------------------------------------------------


@pytest.mark.parametrize("command", [["train", *FLAGS], ["demo", "--smoke"]], ids=["train", "demo"])
def test_out_that_cannot_be(command: list[str], refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("years of work")
    refused(*command, "--out=full", says=["full exists and is not empty", "another folder"])
    refused(*command, "--out=full/thesis.tex", says=["thesis.tex exists"])
    refused(*command, "--out=full/thesis.tex/run", says=["full/thesis.tex", "is not a folder"])


@pytest.mark.parametrize(
    "command",
    [
        ["train", *FLAGS, "--out=new"],
        ["eval", "run", "--lengths=5", "--samples=4"],
        ["demo", "--smoke", "--out=new"],
        ["tasks"],
        ["tasks", "parity"],
        ["models"],
        ["info"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_json_that_cannot_be_written(
    command: list[str],
    refused: Refused,
    run_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").write_text("mine")
    allowed = "a file in a writable folder"
    refused(*command, "--json=nowhere/x.json", says=["nowhere/x.json", allowed])
    refused(*command, "--json=run", says=["run", allowed])
    refused(*command, "--json=file/x.json", says=["file/x.json", allowed])
    monkeypatch.setattr(os, "access", lambda *_: False)  # as when the folder is another user's
    refused(*command, "--json=x.json", says=["x.json", allowed])


# -- runs -----------------------------------------------------------------------------------------


def test_what_is_no_run(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    for name in ("nowhere", "folder", "file"):
        says = [f"{name} is not a run folder: it has no config.json"]
        refused("eval", name, says=says)
        refused("train", "--resume", name, says=says)


def test_a_run_without_a_checkpoint(refused: Refused, tmp_path: Path) -> None:
    Run.create(tmp_path / "run", small_config())
    refused("eval", "run", says=["run has no checkpoint yet"])


@pytest.mark.parametrize(
    ("args", "says"),
    named(
        (["--samples=0"], ["samples", "at least 1; got 0"]),
        (["--samples=-5"], ["samples", "at least 1; got -5"]),
        (["--lengths", "abc"], ["a number or a range such as 40-256; got 'abc'"]),
        (["--lengths", "5", "1.5"], ["got '1.5'"]),
        (["--lengths", "5-"], ["got '5-'"]),
        (["--lengths", "-"], ["got '-'"]),
        (["--lengths", "5-6-7"], ["got '5-6-7'"]),
        (["--lengths", "5", "9-5"], ["greatest length 5 is below the least, 9"]),
        (["--lengths", "0"], ["the length of parity", "at least 2; got 0"]),
        (["--lengths", "5", "1"], ["the length of parity", "at least 2; got 1"]),
        (["--data-seed=-1"], ["data_seed must lie in 0..2^32-1; got -1"]),
        (["--curve=1"], ["the length of parity", "at least 2; got 1"]),
        (["--figure=x.jpg"], ["ending of a figure", ".png, .svg, .pdf", ".jpg"]),
        (["--figure=x"], ["ending of a figure", ".png, .svg, .pdf"]),
    ),
)
def test_eval_options(args: list[str], says: list[str], refused: Refused, run_folder: Path) -> None:
    refused("eval", "run", *args, says=says)


@pytest.mark.parametrize(
    "command",
    [["eval", "run"], ["diagnose", "run"], ["explain", "(11)*"]],
    ids=lambda command: command[0],
)
def test_a_figure_that_cannot_be_written(
    command: list[str],
    refused: Refused,
    run_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allowed = "a file in a writable folder"
    refused(*command, "--figure=nowhere/x.png", says=["nowhere/x.png", allowed])
    (tmp_path / "x.png").mkdir()
    refused(*command, "--figure=x.png", says=["x.png", allowed])
    monkeypatch.setattr(os, "access", lambda *_: False)  # as when the folder is another user's
    refused(*command, "--figure=y.png", says=["y.png", allowed])


@pytest.mark.parametrize(
    "command",
    [["train", *FLAGS], ["harden", "run"], ["compile", "(11)*"], ["demo", "--smoke"]],
    ids=lambda command: command[0],
)
def test_a_folder_that_cannot_be_made(
    command: list[str], refused: Refused, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    refused(*command, "--out=new", says=["cannot make new", "folder that can be written to"])


def test_folders_that_another_process_writes_to(
    refused: Refused, run_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "new").mkdir()
    says = [f"process {os.getpid()} on {socket.gethostname()} (since ", "is writing to "]
    with sole_writer(run_folder), sole_writer(tmp_path / "new"):
        refused("train", "--resume=run", says=says)
        refused("train", *FLAGS, "--out=new", says=says)
        refused("compile", "(11)*", "--out=new", says=says)
        assert cli.main(["eval", "run", "--lengths=5", "--samples=4"]) == 0


@pytest.mark.parametrize("kind", ["dfa", "group"])
def test_a_pipe_is_no_task(kind: str, refused: Refused, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    refused("tasks", f"{kind}:pipe.json", says=["pipe.json", "not a regular file"])
    refused("train", "--config=pipe.json", says=["pipe.json", "not a regular file"])
    refused("explain", "dfa:/dev/zero", says=["/dev/zero", "not a regular file"])


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_a_pipe_has_no_sequences(ending: str, refused: Refused, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"pipe.{ending}")
    refused("tasks", "import", f"pipe.{ending}", "--task=S3", says=["not a regular file"])


@pytest.mark.parametrize(
    ("args", "says"),
    named(
        (["S3", "--n=0"], ["number of sequences", "at least 1; got 0"]),
        (["S3", "--min-length=0"], ["the length of S3", "at least 1; got 0"]),
        (["S3", "--min-length=9", "--max-length=5"], ["greatest length 5 is below the least, 9"]),
        (["S3", "--data-seed=-1"], ["data_seed must lie in 0..2^32-1; got -1"]),
        (["partiy"], ["unknown task 'partiy'", "parity"]),
        (["S3", "--tokens-per-element=0"], ["tokens_per_element", "1..1,000; got 0"]),
        (["parity", "--out=new.csv"], ["csv", "group word problems", "parity is none"]),
        (["parity", "--out=new.txt"], ["new.txt must end in one of .jsonl, .parquet, .csv"]),
        (["S3", "--format=csv"], ["new.jsonl does not end in .csv"]),
        (["S3", "--out=old.jsonl"], ["old.jsonl exists; choose another file"]),
        (["S3", "--out=nowhere/new.jsonl", "--n=2"], ["nowhere"]),
    ),
)
def test_export(args: list[str], says: list[str], refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "old.jsonl").write_text("years of work")
    out = [] if any(arg.startswith("--out") for arg in args) else ["--out=new.jsonl"]
    refused("tasks", "export", *args, *out, says=says)


@pytest.mark.parametrize(
    ("args", "says"),
    named(
        (["none.jsonl", "--task=S3"], ["none.jsonl does not exist"]),
        (["old.csv", "--task=S4"], ["old.csv is no file of S4", "token ids must lie in 0..30"]),
        (["old.csv", "--task=parity"], ["csv", "group word problems", "parity is none"]),
        (["old.csv", "--task=nope"], ["unknown task 'nope'"]),
        (["old.txt", "--task=S3"], ["old.txt must end in one of .jsonl, .parquet, .csv"]),
    ),
)
def test_import(args: list[str], says: list[str], refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "old.csv").write_text("seed,input,target\n0,99,99\n")
    refused("tasks", "import", *args, says=says)


@pytest.mark.parametrize(
    "extra", ["--steps=2", "--batch-size=9", "--task=S3", "--mixer=mamba", "--config=other.json"]
)
def test_resume_takes_no_other_configuration(
    extra: str, refused: Refused, run_folder: Path, tmp_path: Path
) -> None:
    write_json(tmp_path / "other.json", small_config(steps=9).to_json())
    refused("train", "--resume=run", extra, says=["run"])


def test_resume_or_out(refused: Refused, run_folder: Path) -> None:
    refused("train", "--resume=run", "--out=new", says=["--out", "--resume", "not both"])
