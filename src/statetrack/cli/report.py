"""`statetrack report`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from statetrack.errors import UserError
from statetrack.files import free_folder, read_json
from statetrack.terminal import make_console, write_result

if TYPE_CHECKING:
    from statetrack.report.document import Document

MARKS = {"config.json": "run", "sweep.json": "sweep"}  # the file that makes a folder one


def report(
    paths: tuple[Path, ...],
    *,
    out: Path | None = None,
    curve: int | None = None,
    samples: int = 256,
    device: str = "auto",
    json: str | None = None,
) -> None:
    """Make a page, tables and figures of a sweep or of runs.

    Args:
        paths: a sweep's folder, or run folders.
        out: folder to write to; by default in the sweep's, or runs/report-1, -2, ... for runs.
        curve: for runs, trace accuracy against length up to this one; 0 for not at all, and by
            default up to 8 times the training length.
        samples: for runs, sequences of each length.
    """
    if not paths:
        raise UserError("PATHS is missing: give a sweep's folder, or run folders")
    for name, value, least in (("curve", curve, 0), ("samples", samples, 1)):
        if value is not None and value < least:
            raise UserError(f"{name} must be at least {least}; got {value}")
    from statetrack.devices import use_device
    from statetrack.report.render import publish_document
    from statetrack.report.text import to_plain

    console = make_console(json)
    sweeps = [path for path in paths if (path / "sweep.json").is_file()]
    if sweeps and len(paths) > 1:
        raise UserError(f"{sweeps[0]} is a sweep; report on one sweep at a time, or on runs")
    for path in paths:
        if not any((path / name).is_file() for name in MARKS):
            raise UserError(f"{path} is neither a run folder nor a sweep")
    use_device(device)
    if out is not None:
        _check_out(out, paths)
    with console.status("reading and measuring"):
        if sweeps:
            made = dict(_sweep_documents(paths[0], out or paths[0]))
        else:
            from statetrack.report.runs import runs_document

            document = runs_document(paths, longest=curve, samples=samples, device=device)
            made = {out or free_folder(Path("runs"), "report"): document}
    for folder, document in made.items():
        publish_document(console, document, folder)
    write_result(json, {str(folder): to_plain(document) for folder, document in made.items()})


def _check_out(out: Path, paths: tuple[Path, ...]) -> None:
    """Raise a UserError if a folder holds another run or sweep, or is among a sweep's jobs."""
    holds = next((what for name, what in MARKS.items() if (out / name).exists()), None)
    if holds is not None and [path.resolve() for path in paths] != [out.resolve()]:
        raise UserError(f"{out} holds a {holds}; choose another folder for the report")
    place = out.resolve()
    for sweep in place.parents:
        if (sweep / "sweep.json").exists() and place.is_relative_to(sweep / "jobs"):
            raise UserError(f"{out} is among the jobs of a sweep; choose another folder")


def _sweep_documents(sweep: Path, out: Path) -> Iterator[tuple[Path, Document]]:
    """Yield the reports of a sweep, each with its folder."""
    about = read_json(sweep / "sweep.json")
    if not isinstance(about, dict) or about.get("schema") != 1:
        raise UserError(f"{sweep / 'sweep.json'} is not of a sweep that this version reads")
    if not about.get("recipes"):
        from statetrack.report.sweeps import sweep_document

        document = sweep_document(sweep)
        yield out / document.name, document
        return
    from statetrack.recipes.overview import make_documents
    from statetrack.recipes.recipe import Results, Settings, find_recipe
    from statetrack.sweep.engine import read_results

    results = Results(read_results(sweep))
    recipes = [find_recipe(name) for name in about["recipes"]]
    for document in make_documents(recipes, Settings(**about["settings"]), results):
        yield out / document.name, document
