"""`statetrack diagnose`."""

from __future__ import annotations

from pathlib import Path

from statetrack.terminal import make_console, write_result


def diagnose(
    run: Path,
    *,
    word: str | None = None,
    checkpoint: int | None = None,
    tolerance: float = 1e-4,
    max_length: int = 1000,
    samples: int = 1024,
    precision: str = "",
    figure: Path | None = None,
    verbose: bool = False,
    device: str = "auto",
    json: str | None = None,
) -> None:
    """Find the length up to which a run's model is right, what limits it, what it cannot learn.

    The horizon, the longest length at which accuracy stays at 0.99 or above, is predicted from
    products of the transitions along sequences of the training lengths, and measured as `eval`
    does. Verdicts on the languages (WORD^m)*, m >= 2, such as (11)*, are of three kinds:
    architectural (for any weights), probed (this model, up to a tolerance) and not excluded.

    Args:
        run: a run folder, or what `statetrack compile` has written.
        word: the word that is repeated: tokens of the task, separated by spaces unless each is a
            single letter; by default the symbol of the task with the longest cycle.
        checkpoint: the step of the checkpoint; the last one if absent.
        tolerance: eigenvalues closer than this count as equal.
        max_length: the greatest length at which accuracy is measured; 0 for no measurement.
        samples: sequences that are evaluated to measure it.
        precision: finite datatypes, separated by commas: fp32, bf16, fp16, fp8_e4m3, fp8_e5m2 or
            e3m2 and the like; from which token on do the states on WORD repeat, with products and
            sums rounded once, as in the theorems?
        figure: a PNG, SVG or PDF of what is kept by length, and of the eigenvalues on the complex
            plane, before and after training.
        verbose: print the memory of each head, too.
    """
    from statetrack.diagnosis import diagnose as diagnose_run

    console = make_console(json)
    with console.status("loading") as status:
        diagnosis = diagnose_run(
            run,
            word,
            checkpoint=checkpoint,
            tolerance=tolerance,
            max_length=max_length,
            samples=samples,
            device=device,
            precision=[name.strip() for name in precision.split(",") if name.strip()],
            on_progress=status.update,
        )
    diagnosis.print(console, verbose)
    if figure is not None:
        with console.status("drawing"):
            diagnosis.plot(figure)
    write_result(json, {"run": str(run), **diagnosis.to_dict()})
