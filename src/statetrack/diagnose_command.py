"""`statetrack diagnose`: which languages the eigenvalues of a run's transitions exclude."""

from __future__ import annotations

from pathlib import Path

import tyro

from statetrack.terminal import Json, check_json, make_console, write_result


def diagnose(
    run: tyro.conf.Positional[Path],
    /,
    word: str = "1",
    checkpoint: int | None = None,
    tolerance: float = 1e-4,
    figure: Path | None = None,
    json: Json = None,
) -> None:
    """Show the eigenvalues of a run's transitions and what they exclude.

    Verdicts on the languages (WORD^m)*, m >= 2, such as (11)*, are of three kinds: architectural
    (whatever the weights), probed (this model, up to a tolerance) and not excluded. None says that
    a model can do something.

    Args:
        run: a run folder, or what `statetrack compile` has written.
        word: what is read again and again: tokens of the task, separated by spaces unless each is
            a single letter.
        checkpoint: the step of the checkpoint; the last one if absent.
        tolerance: eigenvalues closer than this count as equal.
        figure: a PNG, SVG or PDF of the eigenvalues on the complex plane, before and after
            training.
        json: see above.
    """
    from statetrack.files import check_figure
    from statetrack.theory import diagnose as diagnose_run

    check_json(json)
    if figure is not None:
        check_figure(figure)
    console = make_console(json)
    with console.status("loading") as status:
        diagnosis = diagnose_run(
            run, word, checkpoint=checkpoint, tolerance=tolerance, on_progress=status.update
        )
    diagnosis.print(console)
    if figure is not None:
        with console.status("drawing"):
            diagnosis.plot(figure)
    write_result(json, {"run": str(run), **diagnosis.to_dict()})
