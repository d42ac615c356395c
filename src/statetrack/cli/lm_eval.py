"""`statetrack lm eval`."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from statetrack.errors import UserError
from statetrack.lm.extra import require_lm
from statetrack.terminal import make_console, write_result

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}  # read when the packages are imported


def lm_eval(
    checkpoints: tuple[Path, ...],
    *,
    tasks: tuple[str, ...] = ("paper",),
    data: tuple[Path, ...] = (),
    limit: int | None = None,
    batch_size: int = 16,
    max_length: int | None = None,
    online: bool = False,
    out: Path | None = None,
    device: str = "auto",
    json: str | None = None,
) -> None:
    """Evaluate language models with lm-evaluation-harness.

    Prints the table of the paper, with its numbers and the chance levels beside, and the scores of
    state-tracking tasks by length.

    Args:
        checkpoints: folders of lm train or of any causal model that transformers saved.
        tasks: paper for the paper's table, pack for all tasks of lm tasks, or names of tasks.
        data: folders of lm fetch and of lm tasks.
        limit: only the first documents of each task.
        batch_size: requests at a time.
        max_length: tokens that a model reads at most; by default what its configuration says, or
            2048.
        online: let lm-eval download the data of tasks that no folder has.
        out: folder for the report (a page, Markdown, CSV, LaTeX and figures), new or of an earlier
            report.
    """
    require_lm()
    if not checkpoints:
        raise UserError("CHECKPOINTS is missing: give a folder of a language model")
    if not online:
        os.environ.update(OFFLINE)
    from statetrack.report.render import check_report_folder, print_document, write_document

    if out is not None:
        check_report_folder(out, "lm-eval")
    from importlib.metadata import version

    from statetrack.lm.harness.evaluation import evaluate_checkpoints
    from statetrack.lm.harness.selection import select_tasks
    from statetrack.lm.harness.table import scores_document
    from statetrack.report.text import to_plain
    from statetrack.sweep.environment import environment

    console = make_console(json)
    started = time.monotonic()
    with console.status("reading tasks") as status:
        selection = select_tasks(tasks, data, online=online)
        done = evaluate_checkpoints(
            checkpoints, selection, limit=limit, batch_size=batch_size, max_length=max_length,
            device=device, progress=status.update,
        )  # fmt: skip
    facts = {
        "checkpoints": [str(path) for path in checkpoints],
        "documents of each task": "all" if limit is None else f"the first {limit:,}",
        "lm-eval": version("lm-eval"),
        **environment(device),
        "seconds": time.monotonic() - started,
    }
    document = scores_document(done, selection, facts, limit)
    if out is not None:
        write_document(document, out)
    print_document(console, replace(document, tables=document.tables[:-1]))  # without all scores
    if out is not None:
        console.print(f"Open {out / 'index.html'} for the page.", soft_wrap=True)
    write_result(json, to_plain(document))
