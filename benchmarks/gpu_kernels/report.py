"""The tables of `python -m benchmarks gpu-kernels`."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu_kernels.roofline import GPUS
from statetrack.report.document import Table
from statetrack.report.text import markdown_table
from statetrack.terminal import PlainConsole, print_table

COMMAND = (
    ".venv-peers-fla/bin/python -m benchmarks gpu-kernels"
    " --out results/gpu-kernels.md --json results/gpu-kernels.json"
)


def show(result: dict[str, Any], console: PlainConsole) -> None:
    """Print the tables."""
    for table in tables(result):
        rows = [[str(cell) for cell in row] for row in table.rows]
        print_table(console, table.title, list(table.columns), rows)
        if table.note:
            console.print(table.note)


def tables(result: dict[str, Any]) -> list[Table]:
    """Return what the kernels take, what to expect of them, and what fla's take."""
    targets = list(result["shared"])
    cards = list(GPUS)
    ours = [
        [k["name"], k["size"], str(k["num_warps"]), *(_taken(k["targets"][t]) for t in targets)]
        for k in result["kernels"]
    ]
    estimates = [
        [k["name"], k["size"], _scaled(k["flops"]), _scaled(k["bytes"]), f"{k['programs']:,}",
         *(_expected(k["estimates"][card]) for card in cards)]
        for k in result["kernels"]
    ]  # fmt: skip
    found = [
        Table("What the kernels take", ["kernel", "size", "warps", *targets], ours),
        Table(
            "Estimates, not measurements",
            ["kernel", "size", "flops", "bytes", "programs", *cards],
            estimates,
        ),
    ]
    if result["fla"]:
        theirs = [
            [k["work"], k["name"], k["size"], str(k["num_warps"]),
             *(_taken(k["targets"][t]) for t in targets)]
            for k in result["fla"]
        ]  # fmt: skip
        columns = ["work", "kernel", "size", "warps", *targets]
        found.append(Table("flash-linear-attention's kernels of the same work", columns, theirs))
    return found


def markdown(result: dict[str, Any]) -> str:
    """Return the page."""
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    limits = ", ".join(f"{t} {n // 1024} KiB" for t, n in result["shared"].items())
    ours, estimates, *theirs = tables(result)
    peaks = "; ".join(
        f"{card.name} {card.peak / 1e12:.1f} Tflops, {card.bandwidth / 1e12:.2f} TB/s"
        for card in GPUS.values()
    )
    failures = [f"- {line}" for line in result["failures"]] or ["None."]
    lines = [
        "# The Triton kernels, compiled without a GPU",
        "",
        f"`{COMMAND}` with {versions}. Nothing here was run on a GPU: the kernels were compiled "
        "ahead of time, and times are estimates. That their numbers are right is tested in "
        "Triton's interpreter (`make test-gpu`).",
        "",
        f"## {ours.title}",
        "",
        "Each cell: registers of a thread / bytes of shared memory of a block / bytes of a thread "
        "that are spilled to memory / machine instructions. On gfx942 registers are vector "
        "registers and shared memory is LDS. Instructions are counted in the program, loops once "
        "or as often as the compiler unrolled them. Pointers are aligned to 16 bytes. Rows with "
        "`ROCm` have the block sizes that are launched on AMD's GPUs, gfx942 here; those without, "
        "where there are both, are launched on NVIDIA's.",
        "",
        markdown_table(ours),
        "",
        f"A block may have: {limits}. Kernels that take more:",
        "",
        *failures,
        "",
        f"## {estimates.title}",
        "",
        "Each cell: the roofline, max(flops / peak, bytes / bandwidth), and which of the two it "
        "is / occupancy, with what limits it / rounds, the programs of the launch over those that "
        f"the GPU holds at once. Peaks (float32, vector units) and bandwidths: {peaks}. A kernel "
        "takes at least as long as its roofline, and longer where latency counts, as in a "
        "recurrence over tokens with less than one round. Flops are those of the kernel's own "
        "algorithm, an exponential counted as one.",
        "",
        markdown_table(estimates),
        "",
    ]
    for table in theirs:
        lines += [
            f"## {table.title}",
            "",
            "Compiled the same way, with the arguments that the backend fla gives them; cells as "
            "in the first table. q, k and v are bfloat16. A chunkwise op, of 64 tokens a chunk, is "
            "several kernels in a row, with products on matrix units; `fused_recurrent` kernels, "
            "for 64 tokens and fewer, are loops over tokens. `scalar gate` is gated linear "
            "attention as Mamba-2 and mLSTM use it. Where the package tunes on the GPU, the "
            "choice nearest to 4 warps and 3 stages was taken; it keeps blocks small where it "
            "finds no GPU with "
            "100 KiB of shared memory, as on gfx942. It has no selective scan.",
            "",
            markdown_table(table),
            "",
        ]
    return "\n".join(lines)


def _taken(found: dict[str, int]) -> str:
    order = ("registers", "shared", "spilled", "instructions")
    return " / ".join(f"{found[key]:,}" for key in order)


def _expected(found: dict[str, Any]) -> str:
    limit = "" if found["limit"] == "none" else f" ({found['limit']})"
    microseconds = 1e6 * found["seconds"]
    time = f"{microseconds:.3g} µs" if microseconds < 999 else f"{microseconds / 1e3:.3g} ms"
    occupancy = f"{found['occupancy']:.0%}{limit}"
    return f"{time} {found['bound']} / {occupancy} / {found['rounds']:.2g}"


def _scaled(number: float) -> str:
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"
