"""`statetrack demo`."""

from __future__ import annotations

from pathlib import Path

from statetrack.errors import UserError
from statetrack.files import free_folder, new_folder
from statetrack.terminal import make_console, write_result


def demo(
    *,
    seed: int = 0,
    out: Path | None = None,
    json: str | None = None,
    smoke: bool = False,
    workers: int | None = None,
) -> None:
    """Train and compare, live: what eigenvalues in [-1,1] can track and [0,1] cannot.

    Args:
        seed: n stands for the training seeds 3n, 3n + 1, 3n + 2 on parity and 3n on swaps.
        out: folder for the figure, page, metrics and checkpoints; runs/demo-1, -2, ... if absent.
        smoke: run everything, but too briefly to learn: tests the machinery in seconds.
        workers: processes that train side by side; one per core if absent.
    """
    if not 0 <= seed < 2**30:
        raise UserError(f"seed must lie in 0..2^30-1; got {seed}")
    if workers is not None and workers < 1:
        raise UserError(f"workers must be at least 1; got {workers}")
    from statetrack.recipes.demo import Demo
    from statetrack.recipes.demo_page import DEMO_NOTE, SMOKE, tables, write_report
    from statetrack.report.render import print_tables
    from statetrack.sweep.display import Display

    console = make_console(json)
    folder = new_folder(out or free_folder(Path("runs"), "demo"))
    this = Demo.start(seed, folder, smoke=smoke)
    titles = [f"{job.experiment} {job.title} s{job.config.training.seed}" for job in this.jobs]
    try:
        with Display(titles, console) as display:
            for event in this.run(workers):
                display.show(event)
    finally:  # also after Ctrl-C: finished runs are kept and shown
        summary = this.summary()
        write_report(summary, folder)
        print_tables(console, tables(summary))
        if not this.complete:
            done = f"{len(this.results)} of {len(this.jobs)} runs are done"
            console.print(f"Cut short: {done}; see {folder}.")
        write_result(json, summary)
    console.print(SMOKE if smoke else DEMO_NOTE, style="dim")
    console.print(f"{this.seconds:.0f} s. Open {folder / 'index.html'} for the figures.")
