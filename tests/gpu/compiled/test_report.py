"""`python -m benchmarks gpu-kernels`: estimates, tables, and failures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.gpu_kernels import compiled, peers
from benchmarks.gpu_kernels.compiled import KIB, Resources
from benchmarks.gpu_kernels.roofline import GPUS, estimate, resident_blocks
from tests.gpu.compiled.kernels import LARGE, SUM


@pytest.mark.parametrize(
    ("gpu", "registers", "shared", "warps", "blocks", "limit"),
    [
        ("A100", 32, 0, 4, 16, "none"),  # 64 warps
        ("A100", 64, 0, 4, 8, "registers"),  # 65,536 registers / (64 x 128)
        ("A100", 33, 0, 4, 12, "registers"),  # 40 registers a thread: 12 warps of each scheduler
        ("A100", 255, 0, 8, 1, "registers"),
        ("A100", 16, 80 * KIB, 4, 2, "shared memory"),  # 164 / (80 + 1)
        ("H100", 16, 100 * KIB, 4, 2, "shared memory"),
        ("H100", 16, 0, 1, 32, "blocks"),
        ("MI300X", 64, 0, 4, 8, "none"),  # 512 / 64 = 8 waves of each SIMD
        ("MI300X", 65, 0, 4, 7, "registers"),  # 72 registers a lane
        ("MI300X", 32, 33 * KIB, 4, 1, "shared memory"),
    ],
)
def test_resident_blocks(
    gpu: str, registers: int, shared: int, warps: int, blocks: int, limit: str
) -> None:
    found = Resources(registers, shared, spilled=0)
    assert resident_blocks(found, warps, GPUS[gpu]) == (blocks, limit)


def test_estimates() -> None:
    found = Resources(64, 0, spilled=0)
    memory = estimate(SUM, found, GPUS["A100"])
    assert memory.bound == "memory"
    assert memory.seconds == pytest.approx(SUM.bytes / 2.039e12)
    assert memory.occupancy == 0.5
    assert memory.rounds == pytest.approx(256 / (8 * 108))
    arithmetic = estimate(replace(SUM, flops=1e12), found, GPUS["H100"])
    assert arithmetic.bound == "arithmetic"
    assert arithmetic.seconds == pytest.approx(1 / 67)


def test_tables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiled, "examples", lambda: [SUM])
    monkeypatch.setattr(peers, "WORKS", peers.WORKS[-1:])
    page = tmp_path / "page.md"
    assert main(["gpu-kernels", "--out", str(page), "--json", "-"]) == 0
    out, _ = capsys.readouterr()
    result = json.loads(out)
    (ours,) = result["kernels"]
    assert list(ours["targets"]) == ["sm80", "sm90", "sm100", "gfx942"]
    assert list(ours["estimates"]) == ["A100", "H100", "MI300X"]
    assert [(k["work"], k["name"]) for k in result["fla"]] == [
        ("convolution forward", "causal_conv1d_fwd_kernel"),
        ("convolution backward", "causal_conv1d_fwd_kernel"),  # before SiLU, again
        ("convolution backward", "causal_conv1d_bwd_kernel"),
    ]
    text = page.read_text()
    taken = ours["targets"]["sm80"]
    assert f"{taken['registers']} / 0 / 0 / {taken['instructions']}" in text
    assert "263 µs memory" in text  # 8 x 256 x 2048 x 128 bytes at 2.039 TB/s


def test_fla_has_a_counterpart_of_every_recurrence() -> None:
    found = peers.recorded_peers()
    works = {f"{work.name} {way}" for work in peers.WORKS for way in ("forward", "backward")}
    assert {peer.work for peer in found} == works
    names = {peer.name for peer in found}
    assert {"fused_recurrent_delta_rule_fwd_kernel", "chunk_gla_bwd_kernel_inter"} < names
    gated = [p for p in found if p.name == "chunk_gated_delta_rule_fwd_kernel_h_blockdim64"]
    assert {p.example.arguments["USE_G"] for p in gated} == {False, True}


def test_too_much_shared_memory_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiled, "examples", lambda: [LARGE])
    assert main(["gpu-kernels", "--no-peers"]) == 1
    out, _ = capsys.readouterr()
    assert "exchanged takes" in out
    assert "gfx942 has 65,536" in out


def test_the_interpreter_cannot_compile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert main(["gpu-kernels"]) == 2
    _, err = capsys.readouterr()
    assert "unset TRITON_INTERPRET" in err
