"""The layer of docs/conformance.md, to be checked and to be broken."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

PAGE: Path = ROOT / "docs" / "conformance.md"


def example() -> dict[str, Any]:
    """What the page's first block of code defines before it checks the layer."""
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    names: dict[str, Any] = {}
    exec(code.partition("\nreport = ")[0], names)
    return names


Leaky = example()["Leaky"]
