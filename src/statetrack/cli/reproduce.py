"""`statetrack reproduce`: the tables and figures of the paper."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from statetrack.cli.sweep import engine_option
from statetrack.errors import UserError
from statetrack.terminal import PlainConsole, make_console, print_table, write_result

if TYPE_CHECKING:
    from statetrack.recipes.plan import Plan
    from statetrack.recipes.recipe import Recipe, Settings


def reproduce(
    name: str,
    *,
    scale: Literal["smoke", "laptop", "paper"] = "laptop",
    early: bool = False,
    seeds: int | None = None,
    texts: tuple[str, ...] = (),
    harness: tuple[str, ...] = (),
    lm_precision: Literal["bf16", "fp32"] = "bf16",
    mamba_conv: int = 4,
    xlstm_layers: int = 3,
    transformer_heads: int = 4,
    transformer_rope: bool = True,
    out: Path | None = None,
    jobs: int | None = None,
    engine: Literal["local", "slurm"] = "local",
    engine_options: tuple[str, ...] = (),
    retry_failed: bool = False,
    plan: bool = False,
    device: str = "auto",
    json: str | None = None,
) -> int:
    """Run the experiments behind a table or figure of the paper, and write the report.

    Names: diagonal-parity (fig1), states (fig2), swaps (fig3), chomsky (table3, table5, fig6), s5
    (fig4, fig7), z60 (fig8), language-models (fig5, fig10), theorems, length, leaderboard; all of
    them: all. Language models need the extra lm; without it `all` leaves them out. Run it again
    to continue: finished runs are not repeated. Runs that two recipes share are run once. The exit
    code is 1 if a run failed.

    Args:
        name: a recipe, its number in the paper such as table3, or all.
        scale: smoke tests the machinery in a minute or less per recipe, laptop cuts the budget to
            what two cores do in hours, paper is the published protocol.
        early: the settings of the paper's early version instead of the final one, where they
            differ: at paper scale in chomsky, s5 and z60, on a laptop in chomsky alone.
        seeds: seeds per model; by default smoke has 1, laptop 5, paper 3 (a recipe may have more).
        texts: text files, or data folders of `lm data`, on which the perplexity of language models
            is measured, too.
        harness: folders of `lm tasks`, on all of whose tasks language models are scored, and of
            `lm fetch`, on the paper's.
        lm_precision: number format in which language models are trained; bf16 is the paper's,
            fp32 is faster on a CPU without instructions for bf16.
        mamba_conv: width of Mamba's convolution: the paper says 4, its code has 1.
        xlstm_layers: layers of mLSTM and sLSTM on modular arithmetic, which the paper leaves open.
        transformer_heads: heads of the Transformer, which the paper leaves open.
        transformer_rope: rotary positions for the Transformer, or none; the paper leaves it open.
        out: the folder of runs and reports; runs/reproduce-SCALE if absent.
        jobs: runs side by side; if absent one per GPU where they are used, else one per core, or
            all with Slurm.
        engine: where to run: on this machine or on a Slurm cluster.
        engine_options: for Slurm, such as partition=cpu time=120 mem_gb=4.
        retry_failed: do runs that failed earlier once more.
        plan: only print what would be run and how long it takes.
    """
    from statetrack.devices import check_device_name, use_device
    from statetrack.recipes.plan import make_plan
    from statetrack.recipes.recipe import Settings, find_recipe, installed_recipes
    from statetrack.sweep.engine import check_options, read_results, write_sweep_file
    from statetrack.sweep.pool import cores
    from statetrack.tasks.rows import ROW_FORMATS

    options = dict(map(engine_option, engine_options))
    check_options(jobs, engine, options, ())
    check_device_name(device)
    if engine == "local" and not plan:
        use_device(device)
    settings = Settings(
        scale,
        early,
        seeds,
        texts,
        harness,
        lm_precision,
        mamba_conv,
        xlstm_layers,
        transformer_heads,
        transformer_rope,
    )
    if name.lower() == "all":
        recipes, left_out = installed_recipes()
    else:
        recipes, left_out = [find_recipe(name)], []
        if unusable := recipes[0].unusable():
            needs = f"{recipes[0].name} needs the extra lm: {', '.join(unusable)}"
            raise UserError(f'{needs}: pip install "statetrack[lm]"')
    folder = out or Path("runs") / f"reproduce-{scale}{'-early' if early else ''}"
    console = make_console(json)
    made = make_plan(recipes, settings, read_results(folder), jobs or cores())
    print_plan(console, made, folder)
    for sentence in left_out:
        console.print(sentence, soft_wrap=True)
    if plan:
        write_result(json, {"folder": str(folder), "settings": asdict(settings), **made.to_json()})
        return 0
    # before the settings are written, with which the command must continue
    if len({Path(text).resolve() for text in texts}) < len(texts):
        raise UserError("--texts names a file or folder twice")
    for text in map(Path, texts):
        if text.is_file() and text.suffix in ROW_FORMATS:
            raise UserError(f"{text} has rows: make a data folder of it with statetrack lm data")
        if not (text.is_file() or (text / "data.json").is_file()):
            raise UserError(
                f"{text} is neither a text file nor a data folder of statetrack lm data"
            )
    for given in harness:
        if not (Path(given) / "index.json").is_file():
            raise UserError(
                f"{given} has no index.json: make it with statetrack lm tasks or lm fetch"
            )
    names = [recipe.name for recipe in recipes]
    write_sweep_file(folder, shlex.join(["statetrack", *sys.argv[1:]]), names, asdict(settings))
    where = {"engine": engine, "engine_options": options, "retry_failed": retry_failed}
    return run_recipes(console, recipes, settings, folder, jobs, json, device, **where)


def print_plan(console: PlainConsole, plan: Plan, folder: Path) -> None:
    """Print the runs of each recipe, how many are done and the expected time."""
    from statetrack.compiler.wording import counted

    rows = [
        [row.name, str(row.runs), str(row.done), duration(row.seconds)]
        for row in (*plan.recipes, plan.total)
    ]
    columns = ["recipe", "runs", "done", "CPU time left"]
    print_table(console, f"Plan: {folder}", columns, rows)
    console.print(
        f"About {duration(plan.wall_seconds)} on {counted(plan.workers, 'core')}. Estimated from "
        "runs on two AMD EPYC cores.",
        soft_wrap=True,
    )


def duration(seconds: float) -> str:
    """Format a time with its two greatest units.

    >>> duration(45), duration(3700), duration(200_000)
    ('45 s', '1 h 02 min', '2 d 8 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    hours = round(seconds / 3600)
    return f"{hours // 24:,} d {hours % 24} h"


def run_recipes(
    console: PlainConsole,
    recipes: list[Recipe],
    settings: Settings,
    folder: Path,
    workers: int | None,
    json: str | None,
    device: str = "auto",
    **engine_settings: Any,
) -> int:
    """Run the jobs of recipes in a sweep's folder, and print and write their documents.

    Args:
        console: where progress and tables are printed.
        recipes: what to run.
        settings: of the recipes.
        folder: of the sweep; what it holds already is not repeated.
        workers: processes side by side; if absent, one for each GPU in use or for each core.
        json: the file for the documents as JSON, or - for standard output.
        device: where the jobs compute.
        **engine_settings: further options of `run_sweep`.

    Returns:
        The exit code: 1 if a run failed.
    """
    from statetrack.recipes.overview import make_documents
    from statetrack.recipes.recipe import Results
    from statetrack.report.render import print_document, write_document
    from statetrack.report.text import to_plain
    from statetrack.sweep.display import SweepDisplay
    from statetrack.sweep.engine import read_results, run_sweep

    def every(found: Any) -> list[Any]:
        listed = (job for recipe in recipes for job in recipe.jobs(settings, Results(found)))
        return [job.on(device) for job in listed]

    complete = False
    try:
        with SweepDisplay(console, workers) as display:
            run_sweep(folder, every, workers=workers, on_event=display, **engine_settings)
        complete = True
    finally:  # also after Ctrl-C: what is done is reported
        results = Results(read_results(folder))
        documents = make_documents(recipes, settings, results)
        for document in documents:
            write_document(document, folder / document.name)
            print_document(console, document)
        if not complete:
            console.print("Cut short; the same command continues.")
    for document in documents:
        console.print(f"Written: {folder / document.name / 'index.html'}", soft_wrap=True)
    done = [results.by_key.get(job.key) for job in every(results.by_key)]
    failed = sum(result is None or result["status"] == "failed" for result in done)
    plain = {document.name: to_plain(document) for document in documents}
    write_result(json, {"folder": str(folder), "failed": failed, "documents": plain})
    return 1 if failed else 0
