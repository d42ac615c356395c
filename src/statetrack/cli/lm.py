"""`statetrack lm`: the list of its subcommands."""

from __future__ import annotations

from statetrack.terminal import make_console, print_table, write_result


def lm(*, json: str | None = None) -> None:
    """List the commands for language models; `statetrack lm NAME --help` shows one's options.

    They need the extra lm: pip install "statetrack[lm]".
    """
    from statetrack.cli.main import SUBCOMMANDS
    from statetrack.cli.parser import summary

    rows = [[" ".join(words), summary(c)] for words, c in SUBCOMMANDS.items() if words[0] == "lm"]
    print_table(make_console(json), "Language models", ["command", "what it does"], rows)
    write_result(json, {"commands": dict(rows)})
