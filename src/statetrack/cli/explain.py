"""`statetrack explain`."""

from __future__ import annotations

from pathlib import Path

from statetrack.terminal import make_console, write_result


def explain(
    language: str, *, figure: Path | None = None, verbose: bool = False, json: str | None = None
) -> None:
    """Say which layers can recognise a regular language, which cannot, and why.

    Args:
        language: a regular expression such as (ab)*, a group such as S5, the name of a task such
            as tomita3 (or "Tomita 3"), or a DFA's JSON file; anything else, and anything after
            regex:, is a regular expression.
        figure: a PNG, SVG or PDF of the automaton, unless it is large, and its cascade.
        verbose: show the algebra, the automaton and its cascade as well.
    """
    from statetrack.explanation import explain as explain_language

    console = make_console(json)
    with console.status("decomposing"):
        explanation = explain_language(language)
    console.print(explanation.report(verbose=verbose), soft_wrap=True)
    write_result(json, explanation.to_dict())  # first, since drawing may fail
    if figure is not None:
        with console.status("drawing"):
            explanation.plot(figure)
