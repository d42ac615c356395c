"""`statetrack compile`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from statetrack.errors import UserError
from statetrack.files import check_new
from statetrack.terminal import make_console, write_result


def compile(
    language: str,
    *,
    out: Path | None = None,
    target: Literal["auto", "householder", "dense", "diagonal", "gated_deltaproduct"] = "auto",
    method: Literal["auto", "holonomy", "strict", "banned"] = "auto",
    delay: Literal["shift", "state"] = "shift",
    tokens_per_element: int = 1,
    prove: bool = False,
    verbose: bool = False,
    device: str = "auto",
    json: str | None = None,
) -> None:
    """Compile a regular language into a linear RNN that is exact at any length.

    Args:
        language: as in `statetrack explain`.
        out: a new folder, for `statetrack run`; runs/compiled-LANGUAGE-1, -2, ... if absent.
        target: what it runs on: householder, dense or diagonal tables, the fewest if auto; or
            gated_deltaproduct, an ordinary model in a run folder, which `statetrack eval` and
            `statetrack diagnose` read, too.
        method: how the automaton is decomposed into a cascade.
        delay: how a layer learns the old state of the one before.
        tokens_per_element: of a group: each element is followed by fillers, so that one Householder
            factor per token is enough; S5 takes at least 4.
        prove: prove that the network computes the automaton for words of any length.
        verbose: show the settings, the cascade, its stages and every layer as well.
        device: where --prove lets the ops run, which is what the proof is about: cpu, cuda,
            cuda:1, ... or mps; auto is cuda if there is a GPU, else cpu (never mps).
    """
    from statetrack.compiler import compile as compile_language
    from statetrack.devices import use_device

    place = use_device(device)
    if out is not None:
        check_new(out)
    console = make_console(json)
    with console.status("compiling"):
        net = compile_language(
            language, target, method, delay, tokens_per_element=tokens_per_element
        )
    assert net.source is not None
    found = net.source.language
    proof = None
    if prove:
        with console.status("proving"):
            proof = net.to(place).prove()
        if not proof.holds:
            raise UserError(f"not written, for the proof fails: {proof}")
    report = net.report(proof, verbose=verbose)
    folder = net.save(out)
    console.print(report, soft_wrap=True)
    console.print(f"Next: statetrack run {folder} WORD ...", soft_wrap=True)
    facts = {
        "language": found.text,
        "kind": found.kind,
        "folder": str(folder),
        "target": target,
        "tokens_per_element": tokens_per_element,
        "states": net.dfa.states,
        "report": report.splitlines(),
        "proof": None if proof is None else {"holds": proof.holds, "text": str(proof)},
    }
    write_result(json, facts)
