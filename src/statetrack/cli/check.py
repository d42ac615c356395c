"""`statetrack check`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from statetrack.terminal import make_console, print_table, write_result

if TYPE_CHECKING:
    import torch

    from statetrack.testing import Result


class _Subject(NamedTuple):
    """A layer to check. Those of one group share a table."""

    group: str
    title: str
    factory: Callable[[], Any]
    perturb: float


def check(
    what: str | None = None,
    *,
    only: tuple[str, ...] = (),
    allow_neg_eigval: bool | None = None,
    device: str = "auto",
    json: str | None = None,
) -> int:
    """Check that layers compute the same numbers however they are called (docs/conformance.md).

    The exit code is 1 if a check fails.

    Args:
        what: a layer by its name (see `statetrack models`), in small variants of its options; or a
            run folder, for its layers with their weights. Every layer by name if absent.
        only: names of the checks to run; all of them if absent.
        allow_neg_eigval: only variants with this value of the switch; both ranges if absent.
    """
    from statetrack.devices import use_device
    from statetrack.testing import check_layer

    console = make_console(json)
    place = use_device(device)
    subjects = list(_subjects(what, allow_neg_eigval))
    reports = []
    with console.status("checking") as status:
        for n, subject in enumerate(subjects, 1):
            status.update(f"{n} of {len(subjects)}: {subject.title}")
            report = check_layer(
                partial(_on, place, subject.factory),
                only=only or None,
                title=subject.title,
                perturb=subject.perturb,
            )
            reports.append(report)
    for group in dict.fromkeys(subject.group for subject in subjects):
        own = [r for s, r in zip(subjects, reports, strict=True) if s.group == group]
        variants = f" in {len(own)} variants" if len(own) > 1 else ""
        rows = [_row(results) for results in zip(*(r.results for r in own), strict=True)]
        print_table(console, group + variants, ["check", "result", "error", "tolerance"], rows)
        unsupported = [
            str(r) for report in own for r in report.results if r.status == "unsupported"
        ]
        failed = [f"{report.title}: {r}" for report in own for r in report.failures]
        for line in dict.fromkeys([*unsupported, *failed]):
            console.print(line)
    found = [r.status for report in reports for r in report.results]
    counts = {status: found.count(status) for status in ("passed", "failed", "unsupported")}
    console.print(", ".join(f"{n:,} {status}" for status, n in counts.items()))
    write_result(json, {**counts, "layers": [report.as_json() for report in reports]})
    return 1 if counts["failed"] else 0


def _on(device: torch.device, factory: Callable[[], Any]) -> Any:
    return factory().to(device)


def _subjects(what: str | None, switch: bool | None) -> Iterator[_Subject]:
    from statetrack.config import unknown
    from statetrack.layers import MIXERS
    from statetrack.layers.base import VARIANT_SIZE
    from statetrack.training import Run

    if what is not None and what not in MIXERS and Path(what).is_dir():
        mixers: list[Any] = [block.mixer for block in Run.open(Path(what)).model().blocks]
        for n, mixer in enumerate(mixers):
            title = f"layer {n}: {mixer.config.title}"
            yield _Subject(title, title, partial(copy.deepcopy, mixer), perturb=0.0)
        return
    if what is not None and what not in MIXERS:
        raise unknown("layer or run folder", what, MIXERS)
    for config in MIXERS.values() if what is None else [MIXERS[what]]:
        for variant in config.variants():
            if switch is None or variant.allow_neg_eigval == switch:
                build = partial(variant.build, VARIANT_SIZE)
                yield _Subject(config.label, variant.description, build, perturb=0.3)


def _row(results: tuple[Result, ...]) -> list[str]:
    """The worst result of a check, and how many variants have the same outcome."""
    worst = max(results, key=lambda r: (r.status == "failed", r.ratio))
    cells = worst.row()[:4]
    if len(results) > 1:
        cells[1] += f" {sum(r.status == worst.status for r in results)} of {len(results)}"
    return cells
