"""Random numerical cases: the native kernels in float32 against the definitions in float64.

    python -m benchmarks numerics --cases 2000 --out results/numerics.md

Compares the outputs and the gradients of all inputs, each row relative to its own norm (a row is
what belongs to one sequence and head, or to one channel: see `cases.py`), and beside it the naive
loop in float32. Rows of gates' gradients are compared however small they are; of other tensors, a
row counts as at least a millionth of the largest. A row is wrong if its error is above 1e-3, that
of the naive loop is not, and it is 10 times that of the naive loop: otherwise float32 has too few
digits for that row. Exits with code 1 if a row is wrong.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor

from benchmarks.processes import machine
from benchmarks.reliability.cases import Case, draw_case
from statetrack.files import write_atomic
from statetrack.kernels import library
from statetrack.terminal import check_json, make_console, write_result
from statetrack.testing.inputs import Tensors, draw

LIMIT = 1e-3
SAME_SIZE = 10
GATES = ("dg", "ddecay")
LEAST = 1e-6  # of the largest row: the least norm of a row, but of gates
SMALLEST = 1e-30  # norms below are left out: float32 has few digits there


@dataclass
class Worst:
    """The row of one tensor with the largest error in native kernels."""

    op: str
    tensor: str
    native: float
    naive: float  # the error of the naive loop in float32, in the same row
    rows: int  # compared
    wrong: int  # rows above the limit that are right in the naive loop
    seed: int
    case: str


def main(
    *,
    cases: int = 2000,
    seed: int = 0,
    out: Path | None = None,
    json: str | None = None,
) -> None:
    """Draw, compute, compare.

    Args:
        cases: how many to draw.
        seed: of the first case; the others follow.
        out: a file for the table.
    """
    check_json(json)
    torch.set_num_threads(1)
    console = make_console(json)
    worst = search(track(range(seed, seed + cases), "cases", console=console))
    text = report(worst, cases)
    console.print(text, soft_wrap=True)
    if out is not None:
        write_atomic(out, text.encode())
    write_result(json, {"cases": cases, "seed": seed, "worst": [asdict(w) for w in worst]})
    if any(w.wrong for w in worst):
        raise SystemExit(1)


def search(seeds: Sequence[int] | Any) -> list[Worst]:
    """The worst row of every op and tensor over the cases of these seeds."""
    found: dict[tuple[str, str], Worst] = {}
    for seed in seeds:
        for new in compare(draw_case(seed), seed):
            old = found.setdefault((new.op, new.tensor), new)
            if old is not new:
                first = new if _rank(new) > _rank(old) else old
                first.rows, first.wrong = old.rows + new.rows, old.wrong + new.wrong
                found[new.op, new.tensor] = first
    return sorted(found.values(), key=lambda w: (w.op, w.tensor))


def _rank(w: Worst) -> tuple[bool, float]:
    """Wrong rows come before those that the naive loop has wrong too."""
    return _is_wrong(w.native, w.naive), w.native


def _is_wrong(native: float, naive: float) -> bool:
    return native > LIMIT >= naive and native > SAME_SIZE * naive


def compare(case: Case, seed: int) -> Iterator[Worst]:
    """The worst row of every output and gradient of one case."""
    levels, text = library.LEVELS, str(case)
    expected = run(case, torch.float64, "naive", seed)
    naive = run(case, torch.float32, "naive", seed)
    with library.forced(levels[seed % len(levels)]):
        actual = run(case, torch.float32, "native", seed)
    for name in expected:
        keep = case.rows[name.removeprefix("d")]
        least = 0.0 if name in GATES else LEAST
        bounds = case.bounds if 2 in keep else None  # not of a state or a weight
        parts = zip(*(_sequences(x[name], bounds) for x in (actual, naive, expected)), strict=True)
        by_row = [
            pair
            for a, n, want in parts
            for pair in zip(*(_errors(x, want, keep, least) for x in (a, n)), strict=True)
        ]
        rows = [Worst(case.name, name, *pair, 1, _is_wrong(*pair), seed, text) for pair in by_row]
        first = max(rows, key=_rank)
        first.rows, first.wrong = len(rows), sum(row.wrong for row in rows)
        yield first


def _sequences(x: Tensor, bounds: list[int] | None) -> list[Tensor]:
    """A tensor, or its part for each of some packed sequences of (T n) tokens."""
    if bounds is None:
        return [x]
    n = x.shape[1] // bounds[-1]
    return [x[:, n * start : n * end] for start, end in pairwise(bounds)]


def _errors(actual: Tensor, expected: Tensor, keep: tuple[int, ...], least: float) -> list[float]:
    """The distance of every row in the 2-norm, relative to the expected row.

    That counts as at least `least` of the largest.
    """
    rest = [i for i in range(expected.dim()) if i not in keep]
    distance, size = (
        x.permute([*keep, *rest]).flatten(len(keep) if rest else -1).norm(dim=-1).flatten()
        for x in (actual.double() - expected, expected)
    )
    distance = distance.nan_to_num(torch.inf)
    size = size.clamp(min=max(SMALLEST, least * float(size.max())))
    return torch.where(distance <= SMALLEST, 0.0, distance / size).tolist()


def run(case: Case, dtype: torch.dtype, backend: str, seed: int) -> Tensors:
    """The outputs of a case and the gradients of all inputs, for a loss of fixed weights."""
    leaves = {name: x.to(dtype, copy=True) for name, x in case.inputs.items()}
    if not case.differentiable:
        outputs = _flat(case.op(**_views(leaves, seed), backend=backend))
        return {f"output {i}": y for i, y in enumerate(outputs)}
    for x in leaves.values():
        x.requires_grad_()
    outputs = _flat(case.op(**_views(leaves, seed), backend=backend))
    loss = sum(
        (w * y.double()).sum() for w, y in zip(_weights(outputs, seed), outputs, strict=True)
    )
    gradients = torch.autograd.grad(loss, list(leaves.values()))  # type: ignore[arg-type]
    return {
        **{f"output {i}": y.detach() for i, y in enumerate(outputs)},
        **{f"d{name}": g for name, g in zip(leaves, gradients, strict=True)},
    }


def _weights(outputs: list[Tensor], seed: int) -> Iterator[Tensor]:
    """Weights of the loss: on all outputs, on the first alone, or on some of its tokens."""
    normal = draw(seed + 1)
    kind = seed // 7 % 4
    for i, y in enumerate(outputs):
        w = normal(1, *y.shape)[0]
        if kind == 1 and i > 0:
            w = 0 * w
        if kind == 2 and i == 0 and y.dim() > 2:
            w = w * (normal(1, y.shape[1])[0] > 0.5).double().view(-1, *[1] * (y.dim() - 2))
        yield w


def _views(leaves: Tensors, seed: int) -> Tensors:
    """The same numbers, in two of three cases not contiguous."""
    return {name: (lambda x: x, _sliced, _transposed)[seed % 3](x) for name, x in leaves.items()}


def _sliced(x: Tensor) -> Tensor:
    """A slice of something wider in the last dimension."""
    wide = torch.cat([torch.full_like(x[..., :1], torch.nan), x, torch.ones_like(x)], -1)
    return wide[..., 1 : 1 + x.shape[-1]]


def _transposed(x: Tensor) -> Tensor:
    """The first two dimensions lie the other way round in memory."""
    return x.transpose(0, 1).contiguous().transpose(0, 1) if x.dim() > 1 else x


def _flat(outputs: Any) -> list[Tensor]:
    if isinstance(outputs, Tensor):
        return [outputs]
    return [y for part in outputs for y in _flat(part)]


def report(worst: Sequence[Worst], cases: int) -> str:
    """A table of the worst errors, and every one that is wrong with its case."""
    about = machine()
    lines = [
        "# Numerical cases\n",
        f"`python -m benchmarks {shlex.join(sys.argv[1:])}`\n",
        f"{cases:,} random cases, native float32 kernels ({', '.join(library.LEVELS)}) against the "
        f"definitions in float64; {about['processor']}, torch {torch.__version__}. Errors are "
        "relative to the own row; naive: the same row in the naive loop in float32. Wrong: rows "
        f"above {LIMIT:g} that are below it in the naive loop, and {SAME_SIZE} times its error.\n",
        "| op | tensor | native | naive | rows | wrong |",
        "|---|---|---|---|---|---|",
        *(
            f"| {w.op} | {w.tensor} | {w.native:.1e} | {w.naive:.1e} | {w.rows:,} | {w.wrong} |"
            for w in worst
        ),
        "",
        *(f"- seed {w.seed}, {w.tensor} of {w.case}" for w in worst if w.wrong),
    ]
    return "\n".join(lines) + "\n"
