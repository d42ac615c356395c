"""Checkpoints on disk: config.json and safetensors, whole or in shards."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from statetrack.errors import UserError
from statetrack.models.convert import convert, load_pretrained
from tests.models.convert.test_mamba2 import CONFIG, weights
from tests.ops.common import assert_all_close

STATE = weights()


def write_checkpoint(folder: Path) -> Path:
    """Write a checkpoint in one file."""
    folder.mkdir(exist_ok=True)
    config = {**CONFIG, "time_step_limit": [0.0, 9.0]}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(STATE, folder / "model.safetensors")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path)


def test_whole(folder: Path) -> None:
    model = load_pretrained(str(folder))
    assert_all_close(model.state_dict(), convert(CONFIG, STATE).state_dict(), 0.0)
    (mixer,) = set(load_pretrained(folder, allow_neg_eigval=True).config.mixers)
    assert mixer.title == "Mamba2 [-1,1]"


def test_shards(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    shards = {name: f"model-{i % 3}.safetensors" for i, name in enumerate(STATE)}
    for file in set(shards.values()):
        save_file({n: t for n, t in STATE.items() if shards[n] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert_all_close(load_pretrained(folder).state_dict(), convert(CONFIG, STATE).state_dict(), 0.0)
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(UserError, match=r"model-1\.safetensors does not exist"):
        load_pretrained(folder)


def test_double_precision_stays() -> None:
    model = convert(CONFIG, {name: t.double() for name, t in STATE.items()})
    assert {p.dtype for p in model.parameters()} == {torch.float64}


def test_a_file_that_is_cut_short(folder: Path) -> None:
    file = folder / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match=r"cannot read .*model\.safetensors"):
        load_pretrained(folder)


def test_pickles_are_not_read(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"no model\.safetensors \(pickled weights are not read\)"):
        load_pretrained(folder)


@pytest.mark.parametrize("name", ["../model.safetensors", "sub/../../model.safetensors", ".."])
def test_an_index_that_leads_out_of_the_folder(folder: Path, name: str) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (folder / "config.json").rename(inner / "config.json")
    for given in (name, str(folder / "model.safetensors")):
        index = {"weight_map": dict.fromkeys(STATE, given)}
        (inner / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(UserError, match="must name files in its own folder"):
            load_pretrained(inner)


def test_links_to_files_elsewhere_are_followed(folder: Path, tmp_path: Path) -> None:
    """As in the cache of Hugging Face's hub."""
    (folder / "model.safetensors").rename(folder / "blob")
    (folder / "model.safetensors").symlink_to(folder / "blob")
    load_pretrained(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_pipes_are_not_read(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    shard = {"weight_map": dict.fromkeys(STATE, "model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(shard))
    with pytest.raises(UserError, match=rf"cannot read .*{name}: .*not a regular file"):
        load_pretrained(folder)


def test_an_index_with_a_name_that_no_file_has(folder: Path) -> None:
    index = {"weight_map": dict.fromkeys(STATE, "model\0.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"cannot read .*null"):
        load_pretrained(folder)


@pytest.mark.parametrize("index", [[], {"weight_map": [1]}, {"weight_map": {"a": 1}}])
def test_an_index_that_says_nothing(folder: Path, index: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match="must say under weight_map"):
        load_pretrained(folder)


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "cannot read"), ("[]", "must hold an object"), ("{}", "unknown model_type None")],
)
def test_configurations_that_are_none(folder: Path, text: str, said: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(UserError, match=said):
        load_pretrained(folder)
