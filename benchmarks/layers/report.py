"""Tables of what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from statetrack.files import write_atomic, write_json
from statetrack.layers import MIXERS
from statetrack.terminal import PlainConsole, print_table

COLUMNS = [
    "layer", "tokens/s [0,1]", "tokens/s [-1,1]", "switch", "peer", "peer tokens/s",
    "ratio",
]  # fmt: skip

SWITCH = 1.05  # the time with the switch over that without it, at most
LARGE = 2**23  # bytes of weights that do not stay in a core's cache
DECODE = 3.0  # transformers' time over ours for one sequence, token by token, at least


def rows(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each layer, shape and peer; for layers without peers, one for each shape."""
    found = []
    for result in results:
        for shape in result["shapes"]:
            times = {c["name"]: c["seconds"] for c in shape["candidates"]}
            ours = {name: times.pop(name) for name in list(times) if name.startswith("statetrack")}
            tokens = shape["batch"] * shape["length"]
            without, *with_switch = ours.values()
            row = {
                "layer": result["layer"],
                "shape": shape["title"],
                "tokens per second": tokens / without,
                "tokens per second [-1,1]": tokens / with_switch[0] if with_switch else None,
                "switch": with_switch[0] / without if with_switch else None,
                "switch at most": SWITCH if with_switch else None,
                "weight bytes": shape["weight bytes"],
                "memory bytes per second": shape["memory bytes per second"],
            }
            for peer, seconds in times.items() or [(None, None)]:
                single = shape["kind"] == "decoding" and shape["batch"] == 1
                least = DECODE if peer and single and peer.startswith("transformers") else None
                found.append(
                    {
                        **row,
                        "peer": peer,
                        "peer tokens per second": seconds and tokens / seconds,
                        "ratio": seconds and seconds / without,
                        "ratio at least": least,
                    }
                )
    return found


def tables(found: Sequence[dict[str, Any]]) -> dict[str, list[list[str]]]:
    """The rows of each shape as texts; * where what is expected is not met."""
    by_shape: dict[str, list[list[str]]] = {}
    for row in found:
        switch, ratio = row["switch"], row["ratio"]
        met = ratio is None or row["ratio at least"] is None or ratio >= row["ratio at least"]
        by_shape.setdefault(row["shape"], []).append(
            [
                MIXERS[row["layer"]].label,
                f"{row['tokens per second']:,.0f}",
                _or_dash(row["tokens per second [-1,1]"], ",.0f"),
                _or_dash(switch, ".2f") + "*" * (switch is not None and switch > SWITCH),
                row["peer"] or "",
                _or_dash(row["peer tokens per second"], ",.0f") if row["peer"] else "",
                f"{ratio:.3g}x" + "*" * (not met) if row["peer"] else "",
            ]
        )
    return by_shape


def weights_read(found: Sequence[dict[str, Any]]) -> dict[str, str]:
    """For decoding single sequences of large layers: how fast the weights pass, as a sentence."""
    passed: dict[str, dict[str, float]] = {}
    memory: dict[str, float] = {}
    for row in found:
        shape = row["shape"]
        if not shape.startswith("decoding, B1,") or row["weight bytes"] < LARGE:
            continue
        rate = row["weight bytes"] * row["tokens per second"] / 1e9
        passed.setdefault(shape, {})[MIXERS[row["layer"]].label] = rate
        memory[shape] = max(memory.get(shape, 0.0), row["memory bytes per second"] / 1e9)
    return {
        shape: "A step reads every weight once, in GB/s: "
        + ", ".join(f"{label} {rate:.1f}" for label, rate in rates.items())
        + f". One thread sums a tensor larger than the caches at {memory[shape]:.1f} GB/s; weights "
        + "that stay in the last one pass faster."
        for shape, rates in passed.items()
    }


def _or_dash(value: float | None, style: str) -> str:
    return "-" if value is None else format(value, style)


def print_report(console: PlainConsole, summary: dict[str, Any]) -> None:
    """The tables, on the terminal."""
    read = weights_read(summary["rows"])
    for title, body in tables(summary["rows"]).items():
        print_table(console, title, COLUMNS, body)
        if title in read:
            console.print(read[title], style="dim")
    note = f"* marks a switch that costs more than {SWITCH:g}, and decoding of one sequence less "
    console.print(note + f"than {DECODE:g} times as fast as transformers.", style="dim")


def write_report(folder: Path, summary: dict[str, Any]) -> None:
    """bench-layers.md and bench-layers.json."""
    write_json(folder / "bench-layers.json", summary)
    write_atomic(folder / "bench-layers.md", markdown(summary))


def markdown(summary: dict[str, Any]) -> str:
    """The tables as a page."""
    machine = summary["machine"]
    versions: dict[str, str] = {}
    for result in summary["results"]:
        versions |= result["versions"]
    native = sorted({result["native"] for result in summary["results"]})
    allocators = sorted({result["allocator"] for result in summary["results"]})
    lines = [
        f"# Layers on a CPU, measured by `{summary['command']}`",
        "",
        f"{machine['processor']}, {machine['cores']} cores, of which one thread uses one; native "
        f"kernels: {', '.join(native)}; allocator: {', '.join(allocators)}, for all alike; "
        + ", ".join(f"{name} {text}" for name, text in sorted(versions.items())) + ".",
        "",
        "Tokens per second in float32. Training is forward and backward of one layer: the "
        "gradients of its input and of all parameters. Decoding is a step of the layer's "
        "decoder, without gradients, the state carried along. Layers have their default options, 4 "
        "heads at width 128 and 8 at width 1024. Before anything was timed, ours were compared "
        "with their defining loops in float64 (values and all gradients, or the last of several "
        "steps), and each peer, given the same weights, with ours in [0,1] (output and gradient "
        "of the input at full size, or the last of all steps), to 2e-4. Then all took turns in one "
        "process, and the least time over the rounds counts; whoever has had two turns and 5 "
        "seconds takes no more. A ratio is the peer's time over ours in [0,1], the switch's cost "
        "our time in [-1,1] over "
        f"that in [0,1]. * marks a switch above {SWITCH:g}, and decoding of one sequence below "
        f"{DECODE:g} times the speed of transformers.",
        "",
        "Attention decodes from an almost empty cache; torch's has no rotary positions (compared "
        "with ours without them) and no cache. Mamba of mambapy and transformers (`use_mambapy`) "
        "runs mambapy's parallel scan in training, Mamba2 chunks of 64, xlstm its mLSTM in the "
        "quadratic and its sLSTM in the vanilla form. The layers of flash-linear-attention "
        "need a GPU; its recurrences on a CPU are in [bench-cpu.md](bench-cpu.md).",
        "",
    ]  # fmt: skip
    if summary["missing peers"]:
        missing = ", ".join(summary["missing peers"])
        lines += [f"Missing: {missing}; `make peers` installs them.", ""]
    read = weights_read(summary["rows"])
    for title, body in tables(summary["rows"]).items():
        lines += [f"## {title[0].upper()}{title[1:]}", ""]
        lines += [f"| {' | '.join(COLUMNS)} |", f"|{' --- |' * len(COLUMNS)}"]
        lines += [f"| {' | '.join(cells)} |" for cells in body] + [""]
        if title in read:
            lines += [read[title], ""]
    return "\n".join(lines)
