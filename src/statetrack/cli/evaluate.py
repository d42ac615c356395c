"""`statetrack eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from statetrack.errors import UserError
from statetrack.files import save_figure
from statetrack.terminal import make_console, print_table, write_result


def evaluate(
    run: Path,
    *,
    lengths: tuple[str, ...] = (),
    samples: int = 1024,
    split: Literal["validation", "test"] = "test",
    data_seed: int | None = None,
    curve: int | None = None,
    figure: Path | None = None,
    device: str = "auto",
    json: str | None = None,
) -> None:
    """Evaluate a run by length.

    Args:
        run: a run folder.
        lengths: lengths, and ranges such as 40-256 from which they are drawn; by default the
            training range and multiples of its end.
        samples: sequences per length or range, and of a curve.
        split: which fresh sequences; training draws from neither.
        data_seed: seed of the sequences; the run's own if absent.
        curve: trace accuracy against length up to this one, and report the horizon: the longest
            length at which it stays at 0.99 or above.
        figure: a PNG, SVG or PDF of the results against length, training lengths marked.
    """
    from statetrack.compiler.folders import holds_tables, is_compiled
    from statetrack.report.evaluation import evaluation_figure, evaluation_tables, lengths_text
    from statetrack.report.figures import draw
    from statetrack.training import Run, finite_training_set, length_range
    from statetrack.training import curve as trace_curve
    from statetrack.training import evaluate as evaluate_model

    if holds_tables(run):
        raise UserError(f"{run} holds compiled tables, not a run: use statetrack run {run}")
    opened = Run.open(run)
    task, trained = opened.config.task, opened.config.training
    top = trained.max_length
    ends = [opened.config.task.for_split(split).near_length(n * top) for n in (1, 2, 4, 8)]
    default = [(trained.min_length, top), *((n, n) for n in ends)]
    wanted = list(dict.fromkeys([length_range(text) for text in lengths] or default))
    for low, high in wanted:
        task.check_lengths(low, high)
    model = opened.model(device=device)
    console = make_console(json)
    rows = []
    traced = None
    with console.status("evaluating") as status:
        options: dict[str, Any] = {
            "samples": samples,
            "split": split,
            "data_seed": trained.data_seed if data_seed is None else data_seed,
            "exclude": finite_training_set(opened.config),
        }
        if curve is not None:
            status.update(f"evaluating {task.name} up to {curve}")
            traced = trace_curve(model, task, curve, **options)
        for low, high in wanted:
            status.update(f"evaluating {task.name} at {low}-{high}")
            rows.append(evaluate_model(model, task, (low, high), **options))
    compiled = is_compiled(run)
    origin = "compiled" if compiled else f"trained on {lengths_text(trained.min_length, top)}"
    title = f"{opened.config.model.title} on {task.name}, {origin}"
    for heading, columns, body in evaluation_tables(title, rows):
        print_table(console, heading, columns, body)
    result: dict[str, Any] = {"run": str(run), "results": [r.to_json() for r in rows]}
    if traced is not None:
        result["curve"] = traced.to_json()
        reached = f"to length {traced.horizon}" if traced.horizon else "at no length"
        console.print(f"Accuracy stays at 0.99 or above {reached} (of {curve}).")
    if figure is not None:
        drawn = draw(evaluation_figure(title, rows, traced, None if compiled else top))
        save_figure(figure, drawn)
    write_result(json, result)
