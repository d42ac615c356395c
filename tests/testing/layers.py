"""The layer of docs/conformance.md, to be broken in one way or another."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

PAGE: Path = ROOT / "docs" / "conformance.md"


def example() -> dict[str, Any]:
    """What the first block of code of the page defines, without its last two lines."""
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    names: dict[str, Any] = {}
    exec(code.partition("\nreport = ")[0], names)
    return names


Leaky = example()["Leaky"]
