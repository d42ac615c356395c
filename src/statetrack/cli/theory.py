"""`statetrack explain`, `compile` and `run`: what a language takes, and networks for it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import tyro

from statetrack.errors import UserError
from statetrack.terminal import Json, check_json, make_console, print_table, write_result


def explain(
    language: tyro.conf.Positional[str],
    /,
    figure: Path | None = None,
    verbose: bool = False,
    json: Json = None,
) -> None:
    """Explain which architectures cannot recognise a regular language, and what is enough.

    Args:
        language: a regular expression such as (ab)*, a group such as S5, the name of a task such
            as tomita3 (or "Tomita 3"), or a DFA's JSON file; what is none of the others is a
            regular expression, as is anything after regex:.
        figure: a PNG, SVG or PDF of the automaton, unless it is large, and its cascade.
        verbose: show the algebra, the automaton and its cascade as well.
        json: see above.
    """
    from statetrack.explanation.explain import explain as explain_language
    from statetrack.files import check_figure

    check_json(json)
    if figure is not None:
        check_figure(figure)
    console = make_console(json)
    with console.status("decomposing"):
        explanation = explain_language(language)
    console.print(explanation.report(verbose=verbose), soft_wrap=True)
    write_result(json, explanation.to_dict())  # first, for there may be nothing to draw
    if figure is not None:
        with console.status("drawing"):
            explanation.plot(figure)


def compile_language(
    language: tyro.conf.Positional[str],
    /,
    out: Path | None = None,
    target: Literal["auto", "householder", "dense", "diagonal", "gated_deltaproduct"] = "auto",
    method: Literal["auto", "holonomy", "strict", "banned"] = "auto",
    delay: Literal["shift", "state"] = "shift",
    prove: bool = False,
    verbose: bool = False,
    json: Json = None,
) -> None:
    """Compile a regular language into a linear RNN that is exact at any length.

    Args:
        language: as in `statetrack explain`.
        out: a new folder, which `statetrack run` reads; runs/compiled-LANGUAGE-1, -2, ... if
            absent.
        target: what it runs on: householder, dense or diagonal tables, the fewest if auto; or
            gated_deltaproduct, an ordinary model in a run folder, which `statetrack eval` and
            `statetrack diagnose` read, too.
        method: how the automaton is decomposed into a cascade.
        delay: how a layer learns the old state of the one before.
        prove: prove that the network computes the automaton for words of any length.
        verbose: show the cascade, its stages and every layer as well.
        json: see above.
    """
    from statetrack.compiler import compile
    from statetrack.files import check_new

    check_json(json)
    if out is not None:
        check_new(out)
    console = make_console(json)
    with console.status("compiling"):
        net = compile(language, target, method, delay)
    assert net.source is not None
    found = net.source.language
    proof = None
    if prove:
        with console.status("proving"):
            proof = net.prove()
        if not proof.holds:
            raise UserError(f"not written, for the proof fails: {proof}")
    folder = net.save(out)
    console.print(f"{found.text} ({found.kind})", soft_wrap=True)
    report = net.report(proof, verbose=verbose)
    console.print(report, soft_wrap=True)
    console.print(f"Next: statetrack run {folder} WORD ...", soft_wrap=True)
    facts = {
        "language": found.text,
        "kind": found.kind,
        "folder": str(folder),
        "target": target,
        "states": net.dfa.states,
        "report": report.splitlines(),
        "proof": None if proof is None else {"holds": proof.holds, "text": str(proof)},
    }
    write_result(json, facts)


def run_words(
    folder: tyro.conf.Positional[Path],
    words: tyro.conf.Positional[tuple[str, ...]] = (),
    /,
    json: Json = None,
) -> None:
    """Let a compiled network read words: accepted or not, and the state in the end.

    Args:
        folder: what `statetrack compile` has written.
        words: symbols, separated by spaces unless each is a single letter; without any, every line
            of standard input is a word.
        json: see above.
    """
    from statetrack.compiler.folders import load_compiled

    check_json(json)
    console = make_console(json)
    net = load_compiled(folder)
    try:
        if not words and sys.stdin.isatty():
            console.print("Words from standard input, one a line, Ctrl-D in the end:")
        given = list(words) or [line.rstrip("\r\n") for line in sys.stdin]
    except UnicodeDecodeError:
        raise UserError("standard input is not UTF-8 text") from None
    if not given:
        raise UserError("there are no words, neither as arguments nor on standard input")
    rows = net.read_words(given)
    shown = [[repr(r["word"]), r["result"], str(r["state"])] for r in rows]
    print_table(console, str(folder), ["word", "result", "state"], shown)
    write_result(json, {"folder": str(folder), "words": rows})
