"""`statetrack lm tasks`."""

from __future__ import annotations

from pathlib import Path

from statetrack.lm.extra import require_lm
from statetrack.terminal import make_console, print_table, write_result

HARNESS = "python -m statetrack.lm.harness"


def lm_tasks(
    *,
    out: Path,
    task: tuple[str, ...] = (),
    lengths: tuple[int, ...] = (4, 8, 16, 32),
    samples: int = 200,
    shots: int = 0,
    seed: int = 0,
    json: str | None = None,
) -> None:
    """Write state-tracking tasks for lm-evaluation-harness, as text.

    `statetrack lm eval CHECKPOINT --tasks pack --data DIR` scores models on them, and so does
    lm-eval itself: lm_eval run --include_path DIR --tasks statetrack ... For folders of `lm train`
    and `lm export` start it as python -m statetrack.lm.harness run ...

    Args:
        out: a new folder.
        task: tasks, see `statetrack tasks`; by default parity, cycle_navigation, S5_only_swaps,
            boxes, board, programs, Z5 and A5.
        lengths: steps of a question: symbols, numbers, moves, swaps, elements or, on average,
            statements.
        samples: questions of each task and length; fewer where there are not as many.
        shots: solved examples before each question.
        seed: seed of the questions.
    """
    require_lm()
    from statetrack.config import to_dict
    from statetrack.lm.harness.folder import GROUP
    from statetrack.lm.harness.pack import PACK_TASKS, write_pack

    console = make_console(json)
    with console.status("writing tasks") as status:
        index = write_pack(
            out, task or PACK_TASKS, lengths=lengths, samples=samples, shots=shots, seed=seed,
            progress=status.update,
        )  # fmt: skip
    rows = [[t.name, str(t.questions), f"{t.chance:.3f}"] for t in index.tasks]
    print_table(console, f"Tasks in {out}", ["task", "questions", "chance"], rows)
    console.print(f"Score a model on all: statetrack lm eval CHECKPOINT --tasks pack --data {out}")
    options = f"--include_path {out} --tasks {GROUP}"
    for package, program in (("other packages", "lm_eval"), ("this package", HARNESS)):
        console.print(f"With lm-eval, models of {package}: {program} run {options} ...")
    write_result(json, {"folder": str(out), "group": GROUP, "tasks": to_dict(index)["tasks"]})
