"""`statetrack reproduce`."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from statetrack import cli
from statetrack.recipes import recipe
from statetrack.recipes.recipe import Results, Settings, facts
from tests.training.refusal import Refused


def test_the_plan_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = ["reproduce", "fig1", "--plan", "--seeds=2", f"--out={out}", "--jobs=2", "--json=-"]
    assert cli.main(command) == 0
    plan = json.loads(capsys.readouterr().out)
    (row,) = plan["recipes"]
    assert (row["name"], row["runs"], row["done"]) == ("diagonal-parity", 4, 0)
    assert plan["wall_seconds"] == pytest.approx(plan["total"]["seconds"] / 2)
    assert not out.exists()


def test_the_command_of_a_report_repeats_every_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other: dict[str, Any] = {
        "scale": "smoke", "early": True, "seeds": 2, "mamba_conv": 1, "xlstm_layers": 2,
        "transformer_heads": 8, "transformer_rope": False, "texts": ("a.txt", "b.txt"),
        "harness": ("pack", "sets"), "lm_precision": "fp32",
    }  # fmt: skip
    assert other.keys() == asdict(Settings()).keys()
    for settings in (Settings(), Settings(**other)):
        arguments = facts("fig1", settings, [], Results())["command"].split()[1:]
        assert cli.main([*arguments, "--plan", f"--out={tmp_path / 'out'}", "--json=-"]) == 0
        assert json.loads(capsys.readouterr().out)["settings"] == {
            **asdict(settings),
            "texts": list(settings.texts),
            "harness": list(settings.harness),
        }


def test_a_text_or_a_folder_that_does_not_exist_leaves_no_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}')
    (tmp_path / "folder").mkdir()
    no_text = "is neither a text file nor a data folder"
    for option, name, says in (
        ("texts", "none", no_text),
        ("texts", "folder", no_text),
        ("texts", "rows.jsonl", "has rows"),
        ("harness", "none", "has no index.json"),
    ):
        given, out = tmp_path / name, tmp_path / option
        assert cli.main(["reproduce", "fig1", f"--{option}", f"{given}", f"--out={out}"]) == 2
        assert f"{given} {says}" in " ".join(capsys.readouterr().err.split())
        assert not out.exists()


def test_a_text_that_is_named_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("a")
    texts, out = [f"{tmp_path}/a.txt", f"{tmp_path}/./a.txt"], tmp_path / "out"
    assert cli.main(["reproduce", "fig1", "--texts", *texts, f"--out={out}"]) == 2
    assert "--texts names a file or folder twice" in capsys.readouterr().err
    assert not out.exists()


def test_a_data_folder_is_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statetrack.cli.reproduce.run_recipes", lambda *args, **options: 0)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "data.json").write_text("{}")
    command = ["reproduce", "fig1", f"--texts={tmp_path / 'data'}", f"--out={tmp_path / 'out'}"]
    assert cli.main(command) == 0


def test_names_in_any_case(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = [recipe.find_recipe(name) for name in ("fig1", "fig2")]
    monkeypatch.setattr(recipe, "all_recipes", lambda: few)
    for name, recipes in (("Fig1", ["diagonal-parity"]), ("ALL", ["diagonal-parity", "states"])):
        assert cli.main(["reproduce", name, "--plan", f"--out={tmp_path}", "--json=-"]) == 0
        plan = json.loads(capsys.readouterr().out)
        assert [row["name"] for row in plan["recipes"]] == recipes


def test_a_recipe_whose_packages_are_missing(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    refused: Refused,
) -> None:
    missing = replace(recipe.find_recipe("fig5"), unusable=lambda: ["transformers is missing"])
    few = [recipe.find_recipe("fig2"), missing]
    monkeypatch.setattr(recipe, "all_recipes", lambda: few)
    assert cli.main(["reproduce", "all", "--plan", f"--out={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert "Left out: language-models, which needs the extra lm: transformers is missing" in out
    says = [
        "language-models needs the extra lm: transformers is missing",
        'pip install "statetrack[lm]"',
    ]
    refused("reproduce", "fig5", f"--out={tmp_path}", says=says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["table9"], "unknown recipe 'table9'"),
        (["fig1", "--scale=huge"], "--scale must be one of smoke, laptop, paper"),
        (["fig1", "--seeds=0"], "seeds must lie in 1..100"),
        (["fig1", "--mamba-conv=0"], "mamba_conv must lie in 1..64"),
    ],
)
def test_mistakes(arguments: list[str], says: str, refused: Refused, tmp_path: Path) -> None:
    refused("reproduce", *arguments, f"--out={tmp_path / 'out'}", says=[says])


def test_smoke_makes_the_report_and_is_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "diagonal-parity", "--scale=smoke", "--jobs=1", f"--out={tmp_path}"]
    assert cli.main(command) == 0
    assert "2/2" in capsys.readouterr().out
    for name in ("index.html", "report.md", "last.csv", "figure1.svg", "document.json"):
        assert (tmp_path / "diagonal-parity" / name).is_file()
    about = json.loads((tmp_path / "sweep.json").read_text())
    assert about["recipes"] == ["diagonal-parity"]
    events = (tmp_path / "events.jsonl").read_text()
    assert cli.main(command) == 0
    assert (tmp_path / "events.jsonl").read_text() == events
