"""Peak memory of perplexity against position at a short and a long length, in fresh processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from benchmarks.processes import ALLOCATORS, machine, measured
from benchmarks.timing import Progress, peak_memory
from benchmarks.worker import Job, serve
from statetrack.config import at_least
from statetrack.files import check_output, write_atomic
from statetrack.layers import MIXERS
from statetrack.lm.extra import require_lm
from statetrack.models import ModelConfig
from statetrack.report.document import Table
from statetrack.report.text import markdown_table
from statetrack.terminal import check_json, make_console, print_table, write_result

WIDTH, LAYERS, VOCABULARY = 256, 6, 4096
LIMIT = 1.1  # the peak at the long length / that at the short one
BEFORE = "Before: the peak before the first token is read, mostly the loaded libraries."
COLUMNS = ["mixer", "short MB", "long MB", "ratio", "before MB", "limit", "met"]


def main(
    *,
    mixers: tuple[Literal["delta_net", "mamba"], ...] = ("delta_net", "mamba"),
    short: int = 4096,
    long: int = 131072,
    threads: int = 1,
    out: Path | None = None,
    json: str | None = None,
) -> None:
    """Measure the peak memory of a process that computes perplexity to a short and a long length.

    Models of 7M parameters, one chunk of random tokens. The processes differ in the length alone.

    Args:
        mixers: layers of the models.
        short: the length to compare with.
        long: the length whose peak should be within 10 % of that.
        threads: of each process.
        out: a markdown file for the table.
    """
    require_lm()
    check_json(json)
    for name, value in (("short", short), ("long", long), ("threads", threads)):
        at_least(name, value, 2 if name != "threads" else 1)
    if out is not None:
        check_output(out)
    console = make_console(json)
    jobs = [
        {"mixer": mixer, "length": length, "environment": None, "threads": threads,
         "allocator": ALLOCATORS[0]}
        for mixer in mixers
        for length in (short, long)
    ]  # fmt: skip
    found = measured("benchmarks.lm_memory", jobs, _label, console)
    rows = [_row(*found[i : i + 2]) for i in range(0, len(found), 2)]
    title = f"Peak memory of perplexity at {short:,} and {long:,} tokens"
    print_table(console, title, COLUMNS, rows)
    if out is not None:
        command = f"python -m benchmarks lm-memory --short {short} --long {long}"
        about = f"`{command}` on {machine()['processor']}, threads: {threads}."
        table = markdown_table(Table(title, COLUMNS, rows))
        write_atomic(out, f"# {title}\n\n{about}\n\n{table}\n\n{BEFORE}\n")
    write_result(json, {"machine": machine(), "limit": LIMIT, "results": found})


def _label(job: Job) -> str:
    return f"{job['mixer']} at {job['length']:,} tokens"


def _row(short: dict[str, Any], long: dict[str, Any]) -> list[str]:
    ratio = long["peak"] / short["peak"]
    sizes = [f"{result['peak'] / 1e6:.0f}" for result in (short, long)]
    before = f"{short['before'] / 1e6:.0f}"
    met = "yes" if ratio <= LIMIT else "no"
    return [short["mixer"], *sizes, f"{ratio:.3f}", before, f"{LIMIT}", met]


def run(job: Job, say: Progress) -> dict[str, Any]:
    """Measure one length; `before` is the peak before the first token is read."""
    from statetrack.lm import StateTrackConfig, StateTrackForCausalLM
    from statetrack.lm.evaluation_data import EvaluationData
    from statetrack.lm.load import LanguageModel
    from statetrack.lm.perplexity import measure_perplexity

    torch.manual_seed(0)
    mixer = MIXERS[job["mixer"]](allow_neg_eigval=True)
    config = ModelConfig(VOCABULARY, WIDTH, LAYERS, mixer, tie_embeddings=True)
    model = StateTrackForCausalLM(StateTrackConfig(config)).eval()
    language = LanguageModel(model, None, job["mixer"], None)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, job["length"] + 1)
    data = EvaluationData("random tokens", len(tokens), lambda a, b: tokens[a:b], "")
    before = peak_memory()
    curve = measure_perplexity(language, data, max_length=job["length"], on_progress=say)
    return {"before": before, "peak": peak_memory(), "seconds": curve.seconds}


if __name__ == "__main__":
    serve(run)
