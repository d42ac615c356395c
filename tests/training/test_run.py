"""What a run leaves in its folder."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from statetrack.errors import UserError
from statetrack.models import SequenceModel
from statetrack.training import (
    Progress,
    Run,
    RunConfig,
    evaluate,
    finite_training_set,
    loop,
    read_config,
    train,
)
from tests.training.small import small_config

VALIDATION = {"eval_samples": 20, "eval_lengths": ("13-20",)}


def test_metrics_rows(tmp_path: Path) -> None:
    config = small_config(steps=7, log_every=3, eval_every=4, **VALIDATION)
    rows = train(config, tmp_path / "run").metrics()
    assert [(row["kind"], row["step"]) for row in rows] == [
        ("train", 3),
        ("validation", 4),
        ("train", 6),
        ("train", 7),
        ("validation", 7),
    ]
    for row in rows:
        numbers = [v for v in row.values() if not isinstance(v, str)]
        assert all(math.isfinite(v) for v in numbers), row
    assert set(rows[0]) == {"step", "kind", "loss", "accuracy", "lr", "seconds", "cpu_seconds"}
    assert 0 <= rows[0]["accuracy"] <= 1


def test_no_validation_unless_asked_for(tmp_path: Path) -> None:
    rows = train(small_config(eval_every=0), tmp_path / "run").metrics()
    assert {row["kind"] for row in rows} == {"train"}


def test_a_validation_row_is_an_evaluation_of_the_model(tmp_path: Path) -> None:
    config = small_config(steps=3, eval_every=3, data_seed=5, **VALIDATION)
    run = train(config, tmp_path / "run")
    again = evaluate(
        run.model(), config.task, (13, 20), samples=20, split="validation", data_seed=5
    )
    assert run.metrics()[-1] == {"step": 3, "kind": "validation", **again.to_json(positions=False)}


def test_validation_does_not_change_training(tmp_path: Path) -> None:
    plain = train(small_config(), tmp_path / "plain")
    watched = train(small_config(eval_every=1, **VALIDATION), tmp_path / "watched")
    assert weights(plain) == weights(watched)


def test_progress_is_told_at_every_step(tmp_path: Path) -> None:
    reported: list[Progress] = []
    run = train(small_config(steps=5), tmp_path / "run", on_progress=reported.append)
    assert [(p.step, p.steps) for p in reported] == [(n, 5) for n in range(1, 6)]
    assert [(p.loss, p.accuracy) for p in reported] == [
        (row["loss"], row["accuracy"]) for row in run.metrics()
    ]
    assert reported[-1].seconds_left == 0


def test_accuracy_is_that_of_the_supervised_positions(tmp_path: Path) -> None:
    """Four answers are asked for at each step: their share is a number of quarters."""
    rows = train(small_config(steps=20), tmp_path / "run").metrics()
    assert {row["accuracy"] for row in rows} <= {0, 0.25, 0.5, 0.75, 1}


def weights(run: Run) -> bytes:
    """Weights and optimiser state at the end."""
    return run.checkpoint_file(run.checkpoint_steps()[-1]).read_bytes()


@pytest.mark.parametrize(
    ("change", "same"),
    [
        pytest.param({}, True, id="the same configuration"),
        pytest.param({"log_every": 3}, True, id="another log_every"),
        pytest.param({"checkpoint_every": 1}, True, id="another checkpoint_every"),
        pytest.param({"seed": 1}, False, id="another seed"),
        pytest.param({"data_seed": 1}, False, id="another data_seed"),
    ],
)
def test_what_decides_the_weights(change: dict[str, Any], same: bool, tmp_path: Path) -> None:
    one = train(small_config(), tmp_path / "one")
    torch.rand(7)  # the state of the global generator does not matter
    two = train(small_config(**change), tmp_path / "two")
    assert (weights(one) == weights(two)) == same


def test_a_finite_data_set_is_learned_by_heart(tmp_path: Path) -> None:
    finite = {"dataset_size": 8, "batch_size": 8, "min_length": 10, "max_length": 10}
    config = small_config(steps=120, lr=3e-2, weight_decay=0.0, **finite)
    rows = train(config, tmp_path / "run").metrics()
    assert rows[-1]["accuracy"] == 1
    assert rows[-1]["loss"] < 0.1 * rows[0]["loss"]


def test_a_finite_data_set_comes_again(tmp_path: Path) -> None:
    """With a batch of the whole set and no learning, every step has the same loss."""
    finite = {"dataset_size": 8, "batch_size": 8, "min_length": 10, "max_length": 10}
    config = small_config(steps=5, lr=0.0, min_lr=0.0, **finite)
    losses = [row["loss"] for row in train(config, tmp_path / "run").metrics()]
    assert losses == pytest.approx([losses[0]] * 5, rel=1e-6)


def test_the_order_of_a_finite_data_set_depends_on_the_seed() -> None:
    finite = {"dataset_size": 8, "batch_size": 8, "min_length": 10, "max_length": 10}
    batches = []
    for seeds in ({"seed": 0}, {"seed": 1}, {"data_seed": 1}):
        data = finite_training_set(small_config(**finite, **seeds))
        assert data is not None
        batches.append(data.batch(0).tokens.tolist())
    assert batches[0] != batches[1]
    assert sorted(batches[0]) == sorted(batches[1])  # the same sequences
    assert sorted(batches[0]) != sorted(batches[2])


def test_the_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    run = train(small_config(steps=10, checkpoint_every=3), tmp_path / "run")
    assert run.checkpoint_steps() == [9, 10]
    assert sorted(p.name for p in run.checkpoints.iterdir()) == [
        "step-00000009.json",
        "step-00000009.safetensors",
        "step-00000010.json",
        "step-00000010.safetensors",
    ]
    assert sorted(p.name for p in run.folder.iterdir()) == [
        "checkpoints",
        "config.json",
        "metrics.jsonl",
    ]


def test_a_checkpoint_says_what_it_is(tmp_path: Path) -> None:
    run = train(small_config(steps=2), tmp_path / "run")
    file = run.checkpoint_file(2)
    about = json.loads(file.with_suffix(".json").read_text())
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    size = file.stat().st_size
    assert about == {
        "schema": 2, "step": 2, "bytes": size, "sha256": digest, "devices": ["cpu"],
    }  # fmt: skip


MODELS = [
    pytest.param(small_config(), id="delta_net"),
    pytest.param(small_config(mixer="mamba", allow_neg_eigval=True), id="mamba"),
    pytest.param(small_config("S3", "delta_net,mamba"), id="hybrid"),
    pytest.param(small_config(model={"tie_embeddings": True}), id="tied"),
    pytest.param(small_config(model={"embedding": "one_hot", "head_bias": True}), id="one-hot"),
    pytest.param(small_config(model={"mlp": "swiglu", "norm": "layer"}), id="mlp"),
]


@pytest.mark.parametrize("config", MODELS)
def test_the_opened_model_is_the_trained_one(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[SequenceModel] = []

    def watched(model_config: Any) -> SequenceModel:
        trained.append(SequenceModel(model_config))
        return trained[-1]

    monkeypatch.setattr(loop, "SequenceModel", watched)
    train(config, tmp_path / "run")
    opened = Run.open(tmp_path / "run").model()
    tokens = torch.randint(0, len(config.task.vocab), (3, 9))
    with torch.no_grad():
        assert torch.equal(opened(tokens)[0], trained[0](tokens)[0])
    assert not opened.training


def test_an_earlier_checkpoint_can_be_opened(tmp_path: Path) -> None:
    run = train(small_config(steps=4, checkpoint_every=2), tmp_path / "run")
    shorter = train(small_config(steps=4, checkpoint_every=2), tmp_path / "again").model(2)
    assert all(
        torch.equal(a, b)
        for a, b in zip(run.model(2).parameters(), shorter.parameters(), strict=True)
    )
    assert any(
        not torch.equal(a, b)
        for a, b in zip(run.model(2).parameters(), run.model().parameters(), strict=True)
    )
    with pytest.raises(UserError, match=r"no checkpoint of step 3; it has \[2, 4\]"):
        run.model(3)


@pytest.mark.parametrize(
    "config", [*MODELS, small_config(clip=1.5, eval_every=2, betas=(0.5, 0.7))]
)
def test_the_configuration_comes_back(config: RunConfig, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", config)
    written = json.loads((run.folder / "config.json").read_text())
    assert written == json.loads(json.dumps(config.to_json()))
    assert written["schema"] == 2
    assert set(written) == {"schema", "task", "model", "training", "stages"}
    assert read_config(run.folder / "config.json") == config
    assert Run.open(run.folder).config == config


def test_options_that_a_file_leaves_out_have_their_defaults(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(
        '{"schema": 2, "task": {"name": "S3"}, "model": {"vocab_size": 13}, "training": {}}'
    )
    config = read_config(file)
    assert config.training.steps == 1000
    assert config.task.supervision == "dense"


def test_the_folder_must_be_new(tmp_path: Path) -> None:
    config = small_config()
    train(config, tmp_path)  # an empty folder will do
    before = weights(Run.open(tmp_path))
    with pytest.raises(UserError, match="exists and is not empty"):
        train(config, tmp_path)
    assert weights(Run.open(tmp_path)) == before


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    run = train(small_config(), tmp_path / "run")
    lines = run.metrics_file.read_text().splitlines()
    run.metrics_file.write_text("\n".join([lines[0], "oops", *lines[2:]]))
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2 is not a JSON object"):
        run.metrics()
