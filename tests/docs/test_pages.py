"""Every page: its code runs in order, its links lead somewhere, its facts are right."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

import statetrack.testing
from statetrack.automata.groups import MAX_GROUP_ORDER
from statetrack.cli.main import COMMANDS
from statetrack.compiler import compile
from statetrack.diagnosis.spectrum import MAX_PAIRS
from statetrack.layers import DeltaNetConfig, MambaConfig
from statetrack.models import ModelConfig, SequenceModel
from statetrack.tasks import make_task
from statetrack.testing import CHECKS
from statetrack.training import RunConfig, TrainingConfig, train
from tests.conftest import ROOT
from tests.docs.pages import ELSEWHERE, PAGES, blocks, command_lines, commands, run, text
from tests.hardening.test_harden import noisy_parity
from tests.models.convert.test_folders import CONFIG, STATE, write_checkpoint


class Ran(NamedTuple):
    """What the code of a page has left behind."""

    history: list[dict[str, Any]]  # the names that are defined after each block
    printed: str
    folder: Path

    @property
    def names(self) -> dict[str, Any]:
        return self.history[-1]


def parity_run() -> None:
    """The run that the README trains, as far as four steps go."""
    task = make_task("parity", supervision="dense")
    mixer = DeltaNetConfig(num_heads=2, conv_size=0, allow_neg_eigval=True)
    model = ModelConfig(vocab_size=len(task.vocab), hidden_size=8, num_layers=1, mixer=mixer)
    train(RunConfig(task, model, TrainingConfig(steps=4, batch_size=4)), Path("runs/parity"))


# -- what the code of a page needs beforehand: names, and files in the current folder -------------


def given_conformance() -> dict[str, Any]:
    return {"pytest": pytest, "statetrack": statetrack}


def given_diagnostics() -> dict[str, Any]:
    parity_run()
    mixer = MambaConfig(allow_neg_eigval=True)
    return {"model": SequenceModel(ModelConfig(hidden_size=8, mixer=mixer))}


def given_hardening() -> dict[str, Any]:
    parity_run()
    return {"model": noisy_parity()}


def given_other_packages() -> dict[str, Any]:
    write_checkpoint(Path("folder"))
    config = SimpleNamespace(to_dict=lambda: CONFIG)
    return {"other": SimpleNamespace(config=config, state_dict=lambda: STATE)}


# -- what must hold afterwards --------------------------------------------------------------------


def after_readme(ran: Ran) -> None:
    assert (ran.folder / "runs" / "demo-smoke" / "seed0" / "index.html").is_file()
    assert (ran.folder / "runs" / "parity.png").read_bytes().startswith(b"\x89PNG")


def after_conformance(ran: Ran) -> None:
    of_the_layer, of_the_op = ran.history[0]["report"], ran.names["report"]
    assert [result.check for result in of_the_layer.results] == list(CHECKS)
    unsupported = [r.check for r in of_the_layer.results if r.status == "unsupported"]
    assert unsupported == ["decoder", "packed"]
    assert not of_the_layer.failures
    assert not of_the_op.failures


def after_diagnostics(ran: Ran) -> None:
    assert "unless m divides 4" in ran.printed  # two layers of a real diagonal
    assert (ran.folder / "eigenvalues.png").is_file()


def after_hardening(ran: Ran) -> None:
    assert "Hardened: the model is as good at its training lengths as before" in ran.printed
    assert ran.printed.endswith("DeltaNet [-1,1]\n")


def after_report(ran: Ran) -> None:
    assert (ran.folder / "runs" / "parity-report" / "length.png").is_file()
    assert "<figure" in (ran.folder / "mine" / "index.html").read_text()


def after_reproduction(ran: Ran) -> None:
    assert "CPU time left" in ran.printed
    page = ran.folder / "runs" / "reproduce-smoke" / "diagonal-parity" / "index.html"
    assert "Diagonal RNN [-1,1]" in page.read_text()


def after_sweeps(ran: Ran) -> None:
    assert "4 runs, 4 to do: runs/grid" in ran.printed
    assert "4 done, 0 waiting, 0 failed, 0 running" in ran.printed
    for seed in (0, 1):
        assert f"DeltaNet [-1,1] {seed} " in ran.printed


def after_theory(ran: Ran) -> None:
    assert ran.names["accuracy"] == 1
    assert 12_500 < ran.names["first_error"](0.5**0.5, 2.0) < 13_500
    assert ran.names["first_error"](1.0, 1.0) is None
    assert not list(ran.names["Tracked"](compile("S3")).tracker.parameters())
    assert ran.names["model"].keys.grad.abs().max() > 0
    assert "permute 1 0" in ran.printed
    assert "all 14,400 steps from 120 states" in ran.printed
    assert "Computes A5 exactly at any length" in ran.printed
    assert "Proved for words of any length: one layer computes S3 (6 states)" in ran.printed


GIVEN: dict[str, Callable[[], dict[str, Any]]] = {
    "docs/conformance.md": given_conformance,
    "docs/diagnostics.md": given_diagnostics,
    "docs/hardening.md": given_hardening,
    "docs/other-packages.md": given_other_packages,
}
AFTER: dict[str, Callable[[Ran], None]] = {
    "README.md": after_readme,
    "docs/conformance.md": after_conformance,
    "docs/diagnostics.md": after_diagnostics,
    "docs/hardening.md": after_hardening,
    "docs/report.md": after_report,
    "docs/reproduction.md": after_reproduction,
    "docs/sweeps.md": after_sweeps,
    "docs/theory.md": after_theory,
}


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_code_runs_in_order(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = GIVEN[page]() if page in GIVEN else {}
    # in 20 steps nothing is learned, and `harden` says so
    history = run(page, names, lambda name: 1 if name == "harden" else 0)
    if page in AFTER:
        AFTER[page](Ran(history, capsys.readouterr().out, tmp_path))


def test_what_is_run_elsewhere_is() -> None:
    for (page, code), test in ELSEWHERE.items():
        assert sum(code in block.code for block in blocks(page)) == 1
        assert page in text(test)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", text(page))
    local = [(ROOT / page).parent / link for link in links if "://" not in link]
    assert [str(path) for path in local if not path.exists()] == []


def test_every_page_is_in_the_contents() -> None:
    contents = re.findall(r"^```\{toctree\}\n(.*?)^```", text("docs/index.md"), re.S | re.M)
    lines = [line for block in contents for line in block.splitlines()]
    listed = {line.removesuffix(">").split("<")[-1] for line in lines}
    pages = [Path(page).stem for page in PAGES if page.startswith("docs/")]
    assert [page for page in pages if page != "index" and page not in listed] == []
    notebooks = [f"notebooks/{file.stem}" for file in (ROOT / "docs/notebooks").glob("*.ipynb")]
    assert [page for page in notebooks if page not in listed] == []


def test_every_command_is_shown_on_some_page() -> None:
    shown = {words[0] for page in PAGES for words in commands(page)}
    assert shown == set(COMMANDS)


def test_the_readme_is_short() -> None:
    assert len(text("README.md").splitlines()) <= 90


def test_the_commands_are_on_the_path() -> None:
    """`make` installs into .venv only: what comes first is to activate it."""
    lines = command_lines("README.md")
    (first, *_) = [n for n, line in enumerate(lines) if line.startswith("statetrack ")]
    assert ". .venv/bin/activate" in lines[:first]


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_exist(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make ([\w-]+)", "\n".join(command_lines(page)), flags=re.M):
        assert f"\n{target}:" in makefile


@pytest.mark.parametrize("page", ["README.md", "docs/tasks.md", "CHANGELOG.md"])
def test_the_greatest_group(page: str) -> None:
    assert f"{MAX_GROUP_ORDER:,} elements" in text(page)


def test_the_most_pairs_of_tokens_and_heads() -> None:
    assert f"up to {MAX_PAIRS:,} pairs" in text("docs/diagnostics.md")


def test_no_file_of_results_has_a_gap_to_fill() -> None:
    """Numbers that are still to be measured are written as @@ in drafts."""
    for path in (ROOT / "results").rglob("*"):
        if not path.is_file() or path.suffix == ".png":
            continue
        data = path.read_bytes()
        assert b"@@" not in (gzip.decompress(data) if path.suffix == ".gz" else data), path


def test_files_of_results_are_below_one_megabyte() -> None:
    files = [path for path in (ROOT / "results").rglob("*") if path.is_file()]
    assert len(files) > 100
    assert [path for path in files if path.stat().st_size > 1_000_000] == []
