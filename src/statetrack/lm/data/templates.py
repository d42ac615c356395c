"""Short names of data sets of the Hugging Face hub, and the templates that turn rows into text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from statetrack.errors import UserError


class Template:
    """A text with `{KEY}`s, which the values of a row replace."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.keys = re.findall(r"\{([^{}]+)\}", text)
        if not self.keys:
            raise UserError(f"a template needs a {{KEY}} for the text of a row; got {text!r}")

    def fill(self, row: Mapping[str, Any], where: str) -> str:
        """Return the text of a row; `where` names the row in errors."""
        if not isinstance(row, Mapping):
            raise UserError(f"{where} must be an object with keys")
        for key in self.keys:
            if key not in row:
                raise UserError(f"{where} has no {key!r}; it has: {', '.join(row) or 'none'}")
            if not isinstance(row[key], str):
                raise UserError(f"{where}: {key!r} must be a text; got {row[key]!r}")
        text = re.sub(r"\{([^{}]+)\}", lambda match: row[match[1]], self.text)
        try:
            text.encode()
        except UnicodeEncodeError:  # JSON can contain a lone surrogate
            raise UserError(f"{where}: the text has half a surrogate pair") from None
        return text


class HubSet(NamedTuple):
    """A data set of the hub.

    One that is not streamed and has no validation split is split as the paper's evaluation is:
    0.05 % of its rows for validation, with seed 2357.
    """

    path: str
    config: str | None
    template: str
    streaming: bool


HUB_SETS = {
    "fineweb": HubSet("HuggingFaceFW/fineweb", "sample-100BT", "{text}", True),
    "codeparrot": HubSet("codeparrot/codeparrot-valid-v2-near-dedup", None, "{content}", False),
    "math-hard": HubSet(
        "lighteval/MATH-Hard", None, "Problem: {problem}, Solution: {solution}", False
    ),
    "trivia-qa": HubSet(
        "sentence-transformers/trivia-qa", "pair", "Question: {query}, Answer: {answer}", False
    ),
    "slimpajama": HubSet("DKYoon/SlimPajama-6B", None, "{text}", True),
}
EVALUATION_SHARE = 0.0005
EVALUATION_SEED = 2357
