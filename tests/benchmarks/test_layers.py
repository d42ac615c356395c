"""`python -m benchmarks layers`: what is timed is right, and what is said is what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from benchmarks.layers import driver, measure, peers, report
from benchmarks.layers.shapes import SHAPES, SMALL_ONLY, Shape, build, ranges, shapes
from benchmarks.timing import WrongResultError
from statetrack.layers import MIXERS, DeltaNet
from statetrack.layers.decoder import Decoder
from tests.conftest import Command

TRAINING = Shape("training", 2, 7, 64)
DECODING = Shape("decoding", 2, 3, 64)


def quiet(text: str) -> None:
    """Nobody wants to hear of the progress."""


# -- what is measured ---------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [TRAINING, DECODING], ids=["training", "decoding"])
@pytest.mark.parametrize("layer", MIXERS)
def test_every_layer_in_its_ranges(layer: str, shape: Shape) -> None:
    found = measure.measure(layer, shape, None, 1, quiet)
    names = [c["name"] for c in found["candidates"]]
    switch = ["statetrack [0,1]", "statetrack [-1,1]"]
    assert [n for n in names if n.startswith("statetrack")] == (
        ["statetrack"] if MIXERS[layer].no_switch else switch
    )
    assert ("torch MultiheadAttention" in names) == (layer == "attention" and shape is TRAINING)
    for candidate in found["candidates"]:
        assert candidate["turns"] == (1 if shape is TRAINING else measure.DECODE_ROUNDS)
        tokens = candidate["seconds"] * candidate["tokens per second"]
        assert tokens == pytest.approx(shape.batch * shape.length)


def test_shapes() -> None:
    assert [s.title for s in SHAPES] == [
        "training, B256 T40, width 128", "training, B1 T2048, width 1024",
        "decoding, B1, width 128", "decoding, B1, width 1024", "decoding, B256, width 128",
    ]  # fmt: skip
    assert shapes("mamba") == list(SHAPES)
    assert set(SMALL_ONLY) <= set(MIXERS)
    assert {s.width for s in shapes("full_matrix")} == {128}
    assert build("delta_net", SHAPES[1]).config.num_heads == 8  # type: ignore[attr-defined]
    assert build("delta_net", SHAPES[0]).config.num_heads == 4  # type: ignore[attr-defined]
    assert list(ranges("attention")) == ["statetrack"]


def test_peers_are_of_known_layers() -> None:
    assert {p.environment for p in peers.PEERS} <= {None, "hf"}
    assert len({p.name for p in peers.PEERS}) == len(peers.PEERS)


# -- the gate -------------------------------------------------------------------------------------


class Nearly(peers.Decoder):
    """DiagonalRNN, a little off."""

    name = "nearly"
    layer = "diagonal_rnn"
    environment = None
    factor: ClassVar[float] = 1.001

    def build(self, shape: Shape) -> nn.Module:
        return build("diagonal_rnn", shape)

    def weights(self) -> dict[str, Tensor]:
        return self.module.state_dict()

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * self.module(x)[0]

    def begin(self, prompt: Tensor) -> peers.Step:
        _, state = self.module(prompt)

        def step(x: Tensor) -> Tensor:
            nonlocal state
            y, state = self.module.step(x, state)  # type: ignore[operator]
            return self.factor * y

        return step


@pytest.mark.parametrize("shape", [TRAINING, DECODING], ids=["training", "decoding"])
def test_the_gate_refuses_a_wrong_peer(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "PEERS", (Nearly,))
    with monkeypatch.context() as patch:
        patch.setattr(measure, "seconds", lambda call: pytest.fail("timed before it was checked"))
        with pytest.raises(WrongResultError, match=r"nearly: y is off by 1\.0e-03"):
            measure.measure("diagonal_rnn", shape, None, 1, quiet)
    monkeypatch.setattr(Nearly, "factor", 1.0)
    found = measure.measure("diagonal_rnn", shape, None, 1, quiet)
    assert [c["name"] for c in found["candidates"]][2:] == ["nearly"]


@pytest.mark.parametrize("shape", [TRAINING, DECODING], ids=["training", "decoding"])
def test_the_gate_refuses_wrong_layers(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    mixer = build("delta_net", shape)
    measure.check_definition("it", mixer, shape)
    owner, timed = (DeltaNet, "mix") if shape is TRAINING else (Decoder, "step")
    right = getattr(owner, timed)

    def wrong(self: Any, x: Tensor, *others: Any) -> Any:
        y, state = right(self, x, *others)
        return (1.001 * y if x.dtype is torch.float32 else y), state

    monkeypatch.setattr(owner, timed, wrong)
    with pytest.raises(WrongResultError, match=r"it: y is off by 1\.0e-03"):
        measure.check_definition("it", mixer, shape)


def test_slow_candidates_take_fewer_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "seconds", lambda call: 3.0)
    found = measure.measure("diagonal_rnn", TRAINING, None, 9, quiet)
    assert [c["turns"] for c in found["candidates"]] == [2, 2]


# -- the report -----------------------------------------------------------------------------------


def shape_result(shape: Shape, **seconds: float) -> dict[str, Any]:
    candidates = [{"name": name, "seconds": t} for name, t in seconds.items()]
    return {
        "title": shape.title, "kind": shape.kind, "batch": shape.batch, "length": shape.length,
        "weight bytes": 10**4 * shape.width, "memory bytes per second": 2e10,
        "candidates": candidates,
    }  # fmt: skip


def results() -> list[dict[str, Any]]:
    training = {
        "statetrack [0,1]": 0.1, "statetrack [-1,1]": 0.106, "transformers MambaMixer": 0.25,
        "mambapy MambaBlock": 0.3,
    }  # fmt: skip
    decoding = {
        "statetrack [0,1]": 0.064, "statetrack [-1,1]": 0.064, "transformers MambaMixer": 0.18,
    }  # fmt: skip
    shared = {"allocator": "tuned", "native": "avx2", "versions": {"torch": "2.13.0"}}
    mamba = [shape_result(SHAPES[0], **training), shape_result(SHAPES[2], **decoding)]
    attention = [
        shape_result(SHAPES[2], statetrack=0.128),
        shape_result(SHAPES[3], statetrack=0.032),
    ]
    return [
        {"layer": "mamba", "shapes": mamba, **shared},
        {"layer": "attention", "shapes": attention, **shared},
    ]


def test_tables() -> None:
    found = report.tables(report.rows(results()))
    assert found == {
        "training, B256 T40, width 128": [
            ["Mamba", "102,400", "96,604", "1.06*", "transformers MambaMixer", "40,960", "2.5x"],
            ["Mamba", "102,400", "96,604", "1.06*", "mambapy MambaBlock", "34,133", "3x"],
        ],
        "decoding, B1, width 128": [
            ["Mamba", "1,000", "1,000", "1.00", "transformers MambaMixer", "356", "2.81x*"],
            ["Attention", "500", "-", "-", "", "", ""],
        ],
        "decoding, B1, width 1024": [["Attention", "1,000", "-", "-", "", "", ""]],
    }


def test_page(tmp_path: Path) -> None:
    summary = {
        "command": "python -m benchmarks layers",
        "machine": {"processor": "a CPU", "cores": 2},
        "missing peers": ["some package"],
        "rows": report.rows(results()),
        "results": results(),
    }
    report.write_report(tmp_path, summary)
    page = (tmp_path / "bench-layers.md").read_text()
    assert page.startswith(
        "# Layers on a CPU, measured by `python -m benchmarks layers`\n\na CPU, 2 c"
    )
    assert "## Decoding, B1, width 128\n\n| layer | tokens/s [0,1] |" in page
    assert "| Attention | 500 | - | - |  |  |  |" in page
    assert "A step reads every weight once, in GB/s: Attention 10.2. One thread sums" in page
    assert page.count("larger than the caches at 20.0 GB/s") == 1
    assert "Missing: some package; `make peers` installs them." in page
    assert json.loads((tmp_path / "bench-layers.json").read_text()) == summary


# -- the command ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_peers")
def test_it_runs_without_peers(benchmark: Command, tmp_path: Path) -> None:
    flags = ["--layers", "diagonal_rnn", "--rounds=1", "--out", tmp_path / "new", "--json", "-"]
    code, out, err = benchmark("layers", *flags)
    assert code == 0, err
    assert "Without" not in err  # this layer has no peers anyway
    found = json.loads(out)
    assert found["command"].startswith(
        "python -m benchmarks layers --layers diagonal_rnn --rounds 1"
    )
    assert [row["shape"] for row in found["rows"]] == [s.title for s in shapes("diagonal_rnn")]
    assert all(row["switch"] > 0 and row["peer"] is None for row in found["rows"])
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [
        "bench-layers.json", "bench-layers.md",
    ]  # fmt: skip


def test_jobs() -> None:
    assert driver.job("mamba", [])["environment"] == "hf"
    assert driver.job("mamba", ["hf"])["environment"] is None
    assert driver.job("attention", [])["environment"] is None
    assert driver.job("gla", [])["environment"] is None


def test_mistakes(benchmark: Command) -> None:
    for flags, says in [
        (["--layers", "mambo"], "a layer must be one of attention, "),
        (["--rounds=0"], "rounds must be at least 1; got 0"),
    ]:
        code, out, err = benchmark("layers", *flags)
        assert (code, out) == (2, "")
        assert says in err
