"""Peak memory and time of back-propagation over chunks beside the plain backward pass."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.processes import ALLOCATORS, machine, measured
from benchmarks.timing import Progress, peak_memory
from benchmarks.worker import Job, serve
from statetrack.config import at_least
from statetrack.errors import UserError
from statetrack.files import check_output, write_atomic
from statetrack.layers import MIXERS
from statetrack.models import ModelConfig, SequenceModel, chunk_cross_entropy, chunked_backward
from statetrack.report.document import Table
from statetrack.report.text import markdown_table
from statetrack.terminal import check_json, make_console, print_table, write_result

WIDTH, LAYERS, VOCABULARY = 128, 2, 256
WARM_UP = 64  # tokens
TOLERANCE = 1e-3  # of loss and gradient norm in float32, relative
COLUMNS = [
    "mixer",
    "tokens",
    "plain MB",
    "chunked MB",
    "ratio",
    "plain CPU s",
    "chunked CPU s",
    "ratio",
]


def main(
    *,
    mixers: tuple[Literal["delta_net", "mamba"], ...] = ("delta_net", "mamba"),
    lengths: tuple[int, ...] = (4096, 16384, 65536),
    chunk: int = 1024,
    threads: int = 1,
    allocator: Literal["plain", "tuned"] = "tuned",
    out: Path | None = None,
    json: str | None = None,
) -> None:
    """Measure one forward and backward pass over a sequence, at once and in chunks.

    Models of two layers of 128 channels in float32, one sequence of random tokens; every
    measurement in a process of its own. Memory is the process's peak less what it had before.

    Args:
        mixers: layers of the models.
        lengths: tokens of the sequence.
        chunk: tokens of a chunk.
        threads: of each process.
        allocator: glibc's own settings, or those of the commands (`tune_allocator`).
        out: a markdown file for the table.
    """
    check_json(json)
    for name, values in (("lengths", lengths), ("chunk", [chunk]), ("threads", [threads])):
        for value in values:
            at_least(name, value, 1)
    if allocator not in ALLOCATORS:
        raise UserError("the allocator can be tuned with glibc only: give --allocator plain")
    if out is not None:
        check_output(out)
    console = make_console(json)
    jobs = [
        {"mixer": mixer, "length": length, "chunk": at_once, "threads": threads,
         "environment": None, "allocator": allocator}
        for mixer in mixers
        for length in lengths
        for at_once in (length, chunk)
    ]  # fmt: skip
    found = measured("benchmarks.chunked_backward", jobs, _label, console)
    rows = [_row(*found[i : i + 2]) for i in range(0, len(found), 2)]
    title = f"Back-propagation in chunks of {chunk:,} tokens beside the plain backward pass"
    print_table(console, title, COLUMNS, rows)
    if out is not None:
        write_atomic(out, _page(title, rows, chunk, lengths, found[0]))
    write_result(json, {"machine": machine(), "results": found})


def _label(job: Job) -> str:
    return f"{job['mixer']}, {job['length']:,} tokens in chunks of {job['chunk']:,}"


def _row(plain: dict[str, Any], chunked: dict[str, Any]) -> list[str]:
    for what in ("loss", "gradient_norm"):
        if not math.isclose(plain[what], chunked[what], rel_tol=TOLERANCE):
            raise UserError(f"{_label(chunked)}: the {what} is {chunked[what]}, not {plain[what]}")
    memory = [result["peak"] - result["before"] for result in (plain, chunked)]
    cpu = [result["cpu_seconds"] for result in (plain, chunked)]
    return [
        plain["mixer"],
        f"{plain['length']:,}",
        *(f"{part / 1e6:,.0f}" for part in memory),
        f"{memory[1] / memory[0]:.3f}",
        *(f"{part:.2f}" for part in cpu),
        f"{cpu[1] / cpu[0]:.2f}",
    ]


def _page(
    title: str,
    rows: list[list[str]],
    chunk: int,
    lengths: tuple[int, ...],
    result: dict[str, Any],
) -> str:
    flags = f"--lengths {','.join(map(str, lengths))} --chunk {chunk}"
    flags += f" --threads {result['threads']} --allocator {result['allocator']}"
    about = (
        f"`python -m benchmarks chunked-backward {flags}` on {machine()['processor']}, torch "
        f"{result['versions']['torch']}, native kernels: {result['native']}. One forward and "
        f"backward pass over one sequence of random tokens: {LAYERS} layers, {WIDTH} channels, "
        f"{VOCABULARY} tokens in the vocabulary, float32. MB are the peak of the process less what "
        "it had after a pass over 64 tokens. Loss and gradient norm agree to "
        f"{TOLERANCE:g} in every row; `tests/models/test_chunked.py` has the exact comparison. "
        "Each figure is one measurement."
    )
    return f"# {title}\n\n{about}\n\n{markdown_table(Table(title, COLUMNS, rows))}\n"


def run(job: Job, say: Progress) -> dict[str, Any]:
    """Measure one pass; `before` is the peak before it."""
    torch.manual_seed(0)
    mixer = MIXERS[job["mixer"]](allow_neg_eigval=True)
    model = SequenceModel(ModelConfig(VOCABULARY, WIDTH, LAYERS, mixer))
    tokens = torch.randint(VOCABULARY, (1, job["length"] + 1))
    loss = 0.0

    def step(length: int) -> None:
        nonlocal loss
        goal = chunk_cross_entropy(tokens[:, 1 : length + 1])
        model.zero_grad(set_to_none=False)
        loss = float(chunked_backward(model, tokens[:, :length], goal, job["chunk"])[0])

    step(WARM_UP)
    before = peak_memory()
    began = time.process_time()
    step(job["length"])
    cpu = time.process_time() - began  # other processes do not change it much
    squares = [float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None]
    norm = math.sqrt(math.fsum(squares))
    return {
        "before": before,
        "peak": peak_memory(),
        "cpu_seconds": cpu,
        "loss": loss,
        "gradient_norm": norm,
    }


if __name__ == "__main__":
    serve(run)
