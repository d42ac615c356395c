"""Linear RNNs that can track state.

The public names are those of `statetrack.api`. They load on first use, so that `import statetrack`
alone does not load torch.
"""

from __future__ import annotations

import importlib
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

__version__ = version("statetrack")

if TYPE_CHECKING:
    from statetrack.api import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        if name == "__all__":
            return __dir__()
        if not name.startswith("_"):
            if find_spec(f"statetrack.{name}"):  # a subpackage, which may need no torch
                return importlib.import_module(f"statetrack.{name}")
            api = importlib.import_module("statetrack.api")
            if hasattr(api, name):
                return getattr(api, name)
        raise AttributeError(f"module 'statetrack' has no attribute {name!r}")

    def __dir__() -> list[str]:
        names = dir(importlib.import_module("statetrack.api"))
        return ["__version__", *(name for name in names if not name.startswith("_"))]
