"""Tables and the plot of what was measured."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.ops.candidates import Row
from statetrack.files import write_atomic, write_json
from statetrack.terminal import PlainConsole, print_table

COLUMNS = ["row", "allocator", "ours ms", "of sgemm", "peer", "chunk", "ratio"]


# of the sgemm rate, without the tuned allocator
PLAIN_SHARE = 0.60


def comparisons(
    results: Sequence[dict[str, Any]], rows: Mapping[str, Row], missing: Sequence[str]
) -> list[dict[str, Any]]:
    """Ours against every other candidate, of one process each, and who was missing."""
    found: list[dict[str, Any]] = []
    for result in results:
        if "candidates" not in result:
            continue
        row = rows[result["row"]]
        ours, *others = result["candidates"]
        shared = {
            "row": row.name,
            "title": row.title,
            "allocator": result["allocator"],
            "our seconds": ours["seconds"],
            "share of sgemm": row.flops / ours["seconds"] / result["sgemm"],
            "share expected": row.share and min(row.share, PLAIN_SHARE)
            if result["allocator"] == "plain"
            else row.share,
        }
        # what needs no environment ran in each: once is enough
        known = {(c["row"], c["allocator"], c["peer"]) for c in found}
        others = [o for o in others if (row.name, result["allocator"], o["name"]) not in known]
        absent = [c for c in row.candidates if c.environment in missing]
        for other in others:
            found.append(
                {
                    **shared,
                    "peer": other["name"],
                    "chunk": other["chunk"],
                    "peer seconds": other["seconds"],
                    "ratio": other["seconds"] / ours["seconds"],
                    "ratio expected": row.ratios.get(other["name"]),
                }
            )
        found += [{**shared, "peer": c.name, "missing": c.environment} for c in absent]
    return found


def findings(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is compared with ours alone: value, what is expected, and whether that is met."""
    found = []
    for result in results:
        name, allocator = result["row"], result["allocator"]
        if name == "ranges":
            what = "selective scan [-1,1] / [0,1]"
            found.append(_finding(what, allocator, result["ratio"], at_most=1.05))
        elif name == "threads":
            for row, value in result["speedup"].items():
                least = None if row == "sgemm" else 1.8
                what = f"{row}, 1 / 2 threads"
                found.append(_finding(what, allocator, value, at_least=least))
        elif name == "long":
            what = "time per token, T 131,072 / 2,048"
            found.append(_finding(what, allocator, result["ratio"], at_most=1.3))
        elif name == "lengths" and not any("peak memory" in f["what"] for f in found):
            ours = [p for p in result["points"] if p["name"] == "statetrack"]
            used = [p["peak bytes"] / p["limit bytes"] for p in ours if p["peak bytes"] is not None]
            if used:
                what = "peak memory / what it may be"
                value = used[-1]  # at the greatest length, where nothing else counts
                found.append(_finding(what, allocator, value, at_most=1.0))
    return found


def _finding(
    what: str, allocator: str, value: float, at_most: float | None = None,
    at_least: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    met = (at_most is None or value <= at_most) and (at_least is None or value >= at_least)
    return {
        "what": what, "allocator": allocator, "value": value, "at most": at_most,
        "at least": at_least, "met": met,
    }  # fmt: skip


def comparison_rows(found: Sequence[dict[str, Any]], expected: bool = True) -> list[list[str]]:
    """The comparisons as texts; * where what is expected, shown in brackets, is not met."""
    return [
        [
            c["title"],
            c["allocator"],
            f"{1e3 * c['our seconds']:.2f}",
            _against(c["share of sgemm"], c["share expected"], expected, "%"),
            c["peer"],
            str(c.get("chunk") or ""),
            "missing: make peers" if "missing" in c else
            _against(c["ratio"], c["ratio expected"], expected, "x"),
        ]
        for c in found
    ]  # fmt: skip


def finding_rows(found: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The findings as texts."""
    rows = []
    for f in found:
        limit = f"at most {f['at most']:g}" if f["at most"] else ""
        limit = limit or (f"at least {f['at least']:g}" if f["at least"] else "")
        rows.append([f["what"], f["allocator"], f"{f['value']:.2f}" + "*" * (not f["met"]), limit])
    return rows


def _against(value: float, least: float | None, show: bool, unit: str) -> str:
    def text(x: float) -> str:
        return f"{100 * x:.0f} %" if unit == "%" else f"{x:.3g}x"

    if least is None:
        return text(value)
    return f"{text(value)}{'*' * (value < least)}" + (f" ({text(least)})" if show else "")


def print_report(console: PlainConsole, summary: dict[str, Any]) -> None:
    """The tables, on the terminal."""
    of_row: dict[str, list[dict[str, Any]]] = {}
    for c in summary["comparisons"]:
        of_row.setdefault(c["title"], []).append(c)
    for title, found in of_row.items():  # one table each: together they are too wide
        rows = [row[1:] for row in comparison_rows(found, expected=False)]
        print_table(console, title, COLUMNS[1:], rows)
    if summary["findings"]:
        columns = ["what", "allocator", "value", "expected"]
        print_table(console, "Ours alone", columns, finding_rows(summary["findings"]))
    console.print("* marks what is not as expected; the files of --out say what is.", style="dim")


def write_report(folder: Path, summary: dict[str, Any]) -> None:
    """bench-cpu.md, bench-cpu.json and, where lengths were measured, bench-cpu.png."""
    write_json(folder / "bench-cpu.json", summary)
    points = [r for r in summary["results"] if "points" in r]
    if points:
        write_atomic(folder / "bench-cpu.png", plot(points))
    write_atomic(folder / "bench-cpu.md", markdown(summary, plotted=bool(points)))


def markdown(summary: dict[str, Any], plotted: bool) -> str:
    """The tables as a page."""
    machine = summary["machine"]
    versions: dict[str, str] = {}
    for result in summary["results"]:
        versions |= result["versions"]
    native = sorted({result["native"] for result in summary["results"]})
    lines = [
        f"# CPU benchmark, measured by `{summary['command']}`",
        "",
        f"{machine['processor']}, {machine['cores']} cores; native kernels: {', '.join(native)}; "
        + ", ".join(f"{name} {text}" for name, text in sorted(versions.items())) + ".",
        "",
        "Forward and backward unless said otherwise. Candidates were checked (values and all "
        "gradients, against the definition in float64 and against ours at full size), then took "
        "turns in one process; the least time over the rounds counts, each at its best chunk size. "
        "A ratio is the peer's time over ours in the same process; the share of sgemm is our "
        "algorithmic rate over that of a product of 1,024 x 1,024 matrices in the same process. "
        "Expected values are in brackets, * marks those that are not met. Allocator: plain, or "
        "tuned by `statetrack.tune_allocator()`, for all candidates alike.",
        "",
    ]  # fmt: skip
    if summary["missing peers"]:
        missing = ", ".join(summary["missing peers"])
        lines += [f"Missing: {missing}; `make peers` installs them.", ""]
    if summary["comparisons"]:
        lines += [*_table(COLUMNS, comparison_rows(summary["comparisons"])), "", "Flops counted:"]
        formulas = {r["title"]: r["formula"] for r in summary["results"] if "formula" in r}
        lines += ["", *(f"- {title}: {formula}" for title, formula in formulas.items()), ""]
    if summary["findings"]:
        columns = ["what", "allocator", "value", "expected"]
        lines += [*_table(columns, finding_rows(summary["findings"])), ""]
        note = "Time per token and memory are the delta rule's, B1 H8 d64; the memory may be "
        lines += [note + "the inputs (for their gradients), the outputs and one residual.", ""]
    if plotted:
        lines += ["![Time per token and peak memory against length](bench-cpu.png)", ""]
    return "\n".join(lines)


def _table(columns: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (columns, ["---"] * len(columns), *rows)]


def plot(results: Sequence[dict[str, Any]]) -> bytes:
    """Time per token and peak memory of the delta rule against length, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    drawn: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        for point in result["points"]:
            if all(p["length"] != point["length"] for p in drawn.get(point["name"], [])):
                drawn.setdefault(point["name"], []).append(point)
    for name, points in drawn.items():
        x = [p["length"] for p in points]
        left.plot(x, [1e6 * p["seconds per token"] for p in points], marker="o", label=name)
        memory = [(p["length"], p["peak bytes"]) for p in points if p["peak bytes"] is not None]
        right.plot(*zip(*[(n, m / 2**20) for n, m in memory], strict=True), marker="o", label=name)
    ours = drawn["statetrack"]
    right.plot([p["length"] for p in ours], [p["limit bytes"] / 2**20 for p in ours],
               color="0.4", ls="--", lw=0.8, label="inputs + outputs + one residual")  # fmt: skip
    left.set(ylabel="microseconds per token", title="delta rule, forward + backward, B1 H8 d64")
    right.set(ylabel="peak memory beyond the inputs, MiB")
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", xlabel="sequence length")
        axes.grid(alpha=0.2)
    right.legend(fontsize=8)
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=150)
    return data.getvalue()
