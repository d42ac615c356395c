"""`statetrack diagnose`: how long a run's model is right, and what its eigenvalues exclude."""

from __future__ import annotations

from pathlib import Path

import tyro

from statetrack.terminal import Json, check_json, make_console, write_result


def diagnose(
    run: tyro.conf.Positional[Path],
    /,
    word: str | None = None,
    checkpoint: int | None = None,
    tolerance: float = 1e-4,
    max_length: int = 1000,
    samples: int = 1024,
    figure: Path | None = None,
    json: Json = None,
) -> None:
    """Tell up to which length a run's model is right, what limits it, and what it cannot learn.

    The horizon, the length up to which accuracy stays at 0.99 or above, is predicted from products
    of the transitions along sequences of the training lengths, and measured as `eval` does.
    Verdicts on the languages (WORD^m)*, m >= 2, such as (11)*, are of three kinds: architectural
    (whatever the weights), probed (this model, up to a tolerance) and not excluded.

    Args:
        run: a run folder, or what `statetrack compile` has written.
        word: what is read again and again: tokens of the task, separated by spaces unless each is
            a single letter; by default the symbol of the task with the longest cycle.
        checkpoint: the step of the checkpoint; the last one if absent.
        tolerance: eigenvalues closer than this count as equal.
        max_length: the greatest length at which accuracy is measured; 0: none is.
        samples: sequences that are evaluated to measure it.
        figure: a PNG, SVG or PDF of what is kept by length, and of the eigenvalues on the complex
            plane, before and after training.
        json: see above.
    """
    from statetrack.diagnosis import diagnose as diagnose_run
    from statetrack.files import check_figure

    check_json(json)
    if figure is not None:
        check_figure(figure)
    console = make_console(json)
    with console.status("loading") as status:
        diagnosis = diagnose_run(
            run,
            word,
            checkpoint=checkpoint,
            tolerance=tolerance,
            max_length=max_length,
            samples=samples,
            on_progress=status.update,
        )
    diagnosis.print(console)
    if figure is not None:
        with console.status("drawing"):
            diagnosis.plot(figure)
    write_result(json, {"run": str(run), **diagnosis.to_dict()})
