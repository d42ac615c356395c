"""`python -m benchmarks ops`: what is timed is right, and what is said is what was measured."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import processes, timing
from benchmarks.ops import driver, extras, measure, report, training_step
from benchmarks.ops.candidates import Candidate, Row, differentiated
from benchmarks.ops.rows import (
    ROWS,
    delta_rule_flops,
    linear_attention_flops,
    selective_scan_flops,
)
from statetrack.errors import UserError
from statetrack.ops import delta_rule
from tests.conftest import ROOT, Command


def quiet(text: str) -> None:
    """Nobody wants to hear of the progress."""


# -- the rows -------------------------------------------------------------------------------------


def test_flops() -> None:
    assert delta_rule_flops(1, 1, 1, 1) == 6 + 14
    assert delta_rule_flops(10, 4, 32, 64, factors=3) == 10 * 4 * 32 * 64 * (14 + 34)
    assert linear_attention_flops(2, 3, 4, 5) == 2 * 3 * 4 * 5 * 14
    assert selective_scan_flops(2, 3, 4) == 2 * 3 * 4 * 24
    layer = 128 * (3 * 128 + 4 + 128 + 2 * 512) + 512 * 128  # q, k, v, beta, o, gate, up; down
    weights = 2 * layer + 8 * 128
    per_layer = 20 * 4 * 32 * 32 + 6 * 4 * 384
    assert training_step.flops(3, 5) == 15 * (6 * weights + 2 * per_layer)


@pytest.mark.parametrize("name", ROWS)
def test_ours_are_right_on_every_row(name: str) -> None:
    row = ROWS[name]
    here = [c for c in row.candidates if c.environment is None]
    assert here[0].name == "statetrack"
    measure.check_small(row, here)


def test_the_plain_model_is_ours() -> None:
    row = ROWS["training-step"]
    plain = Candidate("plain", training_step.plain(training_step.definition))
    measure.check_small(row, [plain])


def test_expectations_are_of_candidates() -> None:
    for row in ROWS.values():
        assert set(row.ratios) <= {c.name for c in row.candidates[1:]}
        assert set(row.environments) <= set(processes.ENVIRONMENTS)


def test_peers_are_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ours = {re.split("[<>=]", wanted)[0] for wanted in project["dependencies"]}
    for name in processes.ENVIRONMENTS:
        lines = (ROOT / "requirements" / f"peers-{name}.txt").read_text().splitlines()
        wanted = [line for line in lines if line and not line.startswith("#")]
        assert "torch==2.13.0" in wanted
        assert all(line.count("==") == 1 for line in wanted)
        assert ours <= {line.split("==")[0] for line in wanted}


# -- the gate -------------------------------------------------------------------------------------


@pytest.fixture
def tiny() -> Row:
    row = ROWS["delta-rule-short"]
    return replace(row, inputs=lambda small: ROWS["delta-rule-short"].inputs(True))


def off(factor: float) -> Callable[..., Any]:
    return differentiated(lambda **inputs: factor * delta_rule(**inputs)[0])


def test_the_gate_refuses_a_wrong_candidate(tiny: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "seconds", lambda call: pytest.fail("timed before it was checked"))
    wrong = Candidate("nearly", off(1.001))
    with pytest.raises(timing.WrongResultError, match=r"nearly: o is off by 1\.0e-03"):
        measure.measure(tiny, [tiny.candidates[0], wrong], 1, quiet)


def test_the_gate_looks_at_gradients(tiny: Row) -> None:
    def lossy(**inputs: torch.Tensor) -> torch.Tensor:
        return delta_rule(**{**inputs, "k": inputs["k"].detach() + 0 * inputs["k"]})[0]

    with pytest.raises(timing.WrongResultError, match=r"dk is off by 1\.0e"):
        measure.check_small(tiny, [Candidate("no gradient", differentiated(lossy))])


def test_the_gate_refuses_what_is_no_number() -> None:
    nan = {"o": torch.full((2,), torch.nan)}
    with pytest.raises(timing.WrongResultError, match="off by nan"):
        timing.compare("it", nan, {"o": torch.ones(2)})
    with pytest.raises(timing.WrongResultError, match="shape"):
        timing.compare("it", {"o": torch.ones(3)}, {"o": torch.ones(2)})
    with pytest.raises(timing.WrongResultError, match="gives"):
        timing.compare("it", {}, {"o": torch.ones(2)})


def test_full_size_is_checked_against_ours(tiny: Row) -> None:
    def sized(**inputs: torch.Tensor) -> torch.Tensor:
        o = delta_rule(**inputs)[0]
        return o if len(o) == 2 else 2 * o  # right where it is small

    big = replace(tiny, inputs=lambda small: {
        name: x if small else x.repeat(2, *[1] * (x.dim() - 1))
        for name, x in tiny.inputs(True).items()
    })  # fmt: skip
    with pytest.raises(timing.WrongResultError, match="sized: o is off"):
        measure.measure(
            big, [tiny.candidates[0], Candidate("sized", differentiated(sized))], 1, quiet
        )


def test_the_best_chunk_size_is_taken(tiny: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    def chunked(chunk_size: int, **inputs: torch.Tensor) -> torch.Tensor:
        chunked.last = chunk_size  # type: ignore[attr-defined]
        return delta_rule(**inputs)[0]

    def clock(call: Callable[[], Any]) -> float:
        chunked.last = 1  # type: ignore[attr-defined]
        call()
        return {1: 0.5, 10: 3.0, 20: 1.0, 40: 2.0}[chunked.last]  # type: ignore[attr-defined]

    monkeypatch.setattr(measure, "seconds", clock)
    peer = Candidate("peer", differentiated(chunked), chunks=(10, 20, 40))
    found = measure.measure(tiny, [tiny.candidates[0], peer], 2, quiet)
    assert [c["chunk"] for c in found["candidates"]] == [None, 20]
    assert [c["seconds"] for c in found["candidates"]] == [0.5, 1.0]
    assert found["candidates"][1]["tried"] == {"10": 3.0, "20": 1.0, "40": 2.0}
    assert found["sgemm"] == 2 * timing.SGEMM**3 / 0.5


# -- memory ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="not Linux")
def test_peak_memory() -> None:
    used = extras.peak_memory(lambda: {"x": torch.ones(64 << 18)})  # 64 MiB
    assert used == pytest.approx(64 << 20, rel=0.1)


def test_memory_limit() -> None:
    inputs, candidates = extras.long_rows(64, None)
    assert [c.name for c in candidates] == ["statetrack", "statetrack, torch"]
    vectors = sum(inputs[name].numel() for name in ("q", "k", "v", "beta"))
    o = inputs["d_o"].numel()
    assert extras.memory_limit(64, 8, 64) == 4 * (vectors + 2 * o + 2 * 8 * 64 * 64)


# -- the report -----------------------------------------------------------------------------------


def result(**changes: Any) -> dict[str, Any]:
    row = ROWS["delta-rule-short"]
    return {
        "row": row.name, "environment": "fla", "allocator": "plain", "threads": 1, "rounds": 2,
        "versions": {"torch": "2.13.0"}, "native": "avx2", "title": row.title, "flops": row.flops,
        "formula": row.formula, "sgemm": row.flops / 0.008,
        "candidates": [
            {"name": "statetrack", "chunk": None, "seconds": 0.01, "tried": {}},
            {"name": "statetrack, torch", "chunk": None, "seconds": 0.07, "tried": {}},
            {"name": "fla delta_rule_chunkwise", "chunk": 20, "seconds": 0.085, "tried": {}},
        ],
        **changes,
    }  # fmt: skip


def test_comparisons() -> None:
    found = report.comparisons([result(), result(environment="hf")], ROWS, missing=["hf"])
    assert [c["peer"] for c in found][:3] == [
        "statetrack, torch", "fla delta_rule_chunkwise", "transformers chunk_gated_delta_rule",
    ]  # fmt: skip
    title = "delta rule, B256 T40 H4 d32"
    first, second, third = report.comparison_rows(found)[:3]
    assert first == [title, "plain", "10.00", "80 % (60 %)", "statetrack, torch", "", "7x"]
    assert second[4:] == ["fla delta_rule_chunkwise", "20", "8.5x* (9x)"]
    assert third[4:] == ["transformers chunk_gated_delta_rule", "", "missing: make peers"]
    assert [c["peer"] for c in found].count("statetrack, torch") == 1


def test_page_and_plot(tmp_path: Path) -> None:
    points = [
        {"name": "statetrack", "length": n, "seconds": 1e-6 * n, "seconds per token": 1e-6,
         "peak bytes": 9 * n, "limit bytes": 10 * n, "share": 0.8}
        for n in (2048, 131072)
    ]  # fmt: skip
    results = [
        result(),
        result(row="lengths", points=points),
        result(row="long", ratio=1.0),
        result(row="ranges", ratio=1.2),
        result(row="threads", speedup={"delta-rule-long": 1.9, "sgemm": 1.1}),
    ]
    for other in results[1:]:
        del other["candidates"], other["formula"]
    findings = report.findings(results)
    assert report.finding_rows(findings) == [
        ["peak memory / what it may be", "plain", "0.90",
         "at most 1"],
        ["time per token, T 131,072 / 2,048", "plain", "1.00", "at most 1.3"],
        ["selective scan [-1,1] / [0,1]", "plain", "1.20*", "at most 1.05"],
        ["delta-rule-long, 1 / 2 threads", "plain", "1.90", "at least 1.8"],
        ["sgemm, 1 / 2 threads", "plain", "1.10", ""],
    ]  # fmt: skip
    summary = {
        "command": "python -m benchmarks ops",
        "machine": {"processor": "a CPU", "cores": 2},
        "missing peers": ["transformers and mambapy"],
        "comparisons": report.comparisons(results, ROWS, ["hf"]),
        "findings": findings,
        "results": results,
    }
    report.write_report(tmp_path, summary)
    page = (tmp_path / "bench-cpu.md").read_text()
    assert page.startswith(
        "# CPU benchmark, measured by `python -m benchmarks ops`\n\na CPU, 2 cores"
    )
    assert "| delta rule, B256 T40 H4 d32 | plain | 10.00 | 80 % (60 %) |" in page
    assert "- delta rule, B256 T40 H4 d32: 6 K V forward, 14 K V backward" in page
    assert "Missing: transformers and mambapy; `make peers` installs them." in page
    assert "(bench-cpu.png)" in page
    assert (tmp_path / "bench-cpu.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "bench-cpu.json").read_text()) == summary


# -- the command ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_peers")
def test_it_runs_without_peers(benchmark: Command, tmp_path: Path) -> None:
    code, out, err = benchmark(
        "ops", "--rows", "decode-1", "--rounds=1", "--out", tmp_path / "new", "--json", "-"
    )
    assert code == 0, err
    assert (
        "Without flash-linear-attention and transformers, mambapy and xlstm: run `make peers`"
        in err
    )
    found = json.loads(out)
    assert found["command"].startswith(
        "python -m benchmarks ops --rows decode-1 --threads 1 --rounds 1"
    )
    compared = [(c["row"], c["allocator"], c["peer"]) for c in found["comparisons"]]
    assert compared == [("decode-1", a, "torch bmm in place") for a in driver.ALLOCATORS]
    assert all(c["ratio"] > 0 and c["share of sgemm"] > 0 for c in found["comparisons"])
    assert {r["environment"] for r in found["results"]} == {None}
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [
        "bench-cpu.json", "bench-cpu.md",
    ]  # fmt: skip


def test_plan() -> None:
    def where(row: str, missing: list[str]) -> list[tuple[str | None, str]]:
        return [(job["environment"], job["allocator"]) for job in driver.plan([row], missing)]

    both = driver.ALLOCATORS
    assert where("delta-rule-long", []) == [(h, a) for h in ("fla", "hf") for a in both]
    assert where("delta-rule-long", ["fla"]) == [("hf", a) for a in both]
    assert where("training-step", ["fla"]) == [(None, a) for a in both]
    assert where("decode-1", []) == [(None, a) for a in both]
    assert where("lengths", []) == [("fla", "plain"), ("hf", "plain")]
    everything = {job["row"] for job in driver.plan([], [])}
    assert everything == {*ROWS, *extras.EXTRAS}


def test_mistakes(benchmark: Command, tmp_path: Path) -> None:
    for flags, says in [
        (["--rows", "delta"], "a row must be one of delta-rule-short, "),
        (["--rounds=0"], "rounds must be at least 1; got 0"),
        (["--threads=0"], "threads must be at least 1; got 0"),
        (["--json", tmp_path / "no" / "x"], "cannot write JSON"),
        (["--nope"], "unknown option '--nope'; known: --help, --json"),
    ]:
        code, out, err = benchmark("ops", *flags)
        assert (code, out) == (2, "")
        assert says in err
        assert err.count("\n") == 1


def test_a_worker_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    job = {"row": "no-such-row", "environment": None, "allocator": "plain", "threads": 1}
    with pytest.raises(UserError, match="measures no-such-row ended with 1: KeyError"):
        list(processes.child("benchmarks.ops.worker", {**job, "rounds": 1}, "no-such-row"))
