"""`statetrack run`."""

from __future__ import annotations

import sys
from pathlib import Path

from statetrack.errors import UserError
from statetrack.terminal import make_console, print_table, write_result


def run(
    folder: Path, words: tuple[str, ...] = (), *, device: str = "auto", json: str | None = None
) -> None:
    """Let a compiled network read words: accepted or not, and the last state.

    Args:
        folder: what `statetrack compile` has written.
        words: symbols, separated by spaces unless each is a single letter; without any, every line
            of standard input is a word.
    """
    from statetrack.compiler.folders import load_compiled

    console = make_console(json)
    net = load_compiled(folder, device=device)
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
