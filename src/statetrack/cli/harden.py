"""`statetrack harden`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from statetrack.config import at_least
from statetrack.errors import UserError
from statetrack.files import check_new
from statetrack.terminal import make_console, print_table, write_result


def harden(
    run: Path,
    *,
    out: Path | None = None,
    lengths: tuple[int, ...] = (1000, 10_000),
    samples: int = 64,
    orders: tuple[int, ...] = (1, 2, 3),
    checkpoint: int | None = None,
    verbose: bool = False,
    device: str = "auto",
    json: str | None = None,
) -> int:
    """Round a trained model to an exact one, which works at any length.

    For layers of DeltaNet, DeltaProduct, their gated forms, Mamba, GLA or the diagonal RNN in
    [-1,1]. Eigenvalues and reflections that are almost exact become exact, as do the matrices of a
    finite group; a convolution or a layer's memory that hardly matters is removed. Candidates are
    judged on fresh sequences of the training lengths only; if none is as good as the model and
    without a mistake there, nothing is written. The result is a new run folder, which every
    command reads, with the DFA that the model computes in automaton.json if one can be read off
    it. The exit code is 1 if nothing is written, for example because the model has not learned its
    task.

    Args:
        run: a run folder.
        out: the new run folder; RUN-hardened if absent.
        lengths: where to measure accuracy before and after.
        samples: sequences per length.
        orders: the m for which two reflections may be pi / m apart.
        checkpoint: the step of the checkpoint; the last one if absent.
        verbose: also print the settings of each layer's rounding.
    """
    from statetrack.compiler.folders import is_compiled
    from statetrack.hardening import harden as harden_model
    from statetrack.hardening.harden import check_orders, find_roundings
    from statetrack.hardening.runs import (
        compare,
        compare_automata,
        learned,
        validation_batch,
        write_run,
    )
    from statetrack.training import Run

    at_least("samples", samples, 1)
    check_orders(orders)
    if is_compiled(run):
        raise UserError(f"{run} was compiled, and is exact as it is")
    opened = Run.open(run)
    config = opened.config
    for length in lengths:
        config.task.check_lengths(length, length)
    named = run.resolve() if run.name in ("", "..") else run
    folder = out or named.with_name(f"{named.name}-hardened")
    check_new(folder)
    console = make_console(json)
    facts: dict[str, Any] = {"run": str(run), "out": None}
    with console.status("hardening") as status:
        step, _ = opened.load(checkpoint)
        trained = opened.model(step, device=device)
        find_roundings(trained)  # refuse first what no training helps
        validation = validation_batch(config)
        skill = learned(trained, config.task, validation)
        if not skill:
            reason = f"the model has not learned {config.task.name}: {skill}"
            console.print(f"Train it first: {reason}.\nNothing is written.")
            write_result(json, {**facts, "changed": False, "reason": reason})
            return 1
        result = harden_model(
            trained,
            validation,
            orders=orders,
            on_progress=lambda text: status.update(f"hardening: {text}"),
        )
        if result.changed:
            automata = compare_automata(result, config)
            write_run(folder, config, step, result, automata)
            facts["out"] = str(folder)
    if result.changed:
        console.print(str(automata))
    for sentence in result.sentences(verbose):
        console.print(sentence)
    if not result.changed:
        console.print("Nothing is written.")
        write_result(json, {**facts, **result.to_dict(), "accuracy": [], "automaton": None})
        return 1
    console.print(f"The new run: {folder}", soft_wrap=True)
    with console.status("evaluating"):
        rows = compare(config, trained, result.model, lengths, samples)
    columns = ["length", "accuracy before", "after"]
    body = [[f"{r.length:,}", f"{r.before:.4f}", f"{r.after:.4f}"] for r in rows]
    print_table(console, f"Of all scored positions of {samples} sequences", columns, body)
    accuracy = [asdict(row) for row in rows]
    facts |= {**result.to_dict(), "accuracy": accuracy, "automaton": automata.to_dict()}
    write_result(json, facts)
    return 0
