"""`statetrack demo`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from statetrack.cli.reproduce import run_recipes
from statetrack.errors import UserError
from statetrack.terminal import make_console


def demo(
    *,
    seed: int = 0,
    out: Path | None = None,
    json: str | None = None,
    smoke: bool = False,
    jobs: int | None = None,
    device: str = "auto",
) -> int:
    """Train and compare, live: what eigenvalues in [-1,1] can track and [0,1] cannot.

    Afterwards the models are hardened and evaluated at up to 100,000 tokens. Run it again to
    continue: finished runs are not repeated. The exit code is 1 if a run failed.

    Args:
        seed: n stands for the training seeds 3n, 3n + 1, 3n + 2 on parity and 3n on swaps.
        out: folder for figures, page, metrics and checkpoints; runs/demo if absent, or
            runs/demo-smoke.
        smoke: run everything, but too briefly to learn: tests the machinery in seconds.
        jobs: runs side by side; if absent one per GPU where they are used, else one per core.
    """
    if not 0 <= seed < 2**30:
        raise UserError(f"seed must lie in 0..2^30-1; got {seed}")
    from statetrack.devices import use_device
    from statetrack.recipes.demo import make_recipe
    from statetrack.recipes.recipe import Settings
    from statetrack.sweep.engine import check_options, write_sweep_file

    check_options(jobs, "local", None, ())
    use_device(device)
    folder = out or Path("runs") / ("demo-smoke" if smoke else "demo")
    write_sweep_file(folder, shlex.join(["statetrack", *sys.argv[1:]]))
    settings = Settings("smoke" if smoke else "laptop")
    recipes, console = [make_recipe(seed)], make_console(json)
    return run_recipes(console, recipes, settings, folder, jobs, json, device, retry_failed=True)
