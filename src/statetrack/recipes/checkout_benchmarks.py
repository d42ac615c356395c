"""The way from `statetrack bench ops` and `bench layers` to their code, which lies in benchmarks/.

They compare with other packages in environments of their own: work for a checkout.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import statetrack
from statetrack.errors import UserError

ROOT = Path(statetrack.__file__).parents[2]


def load_benchmark(name: str) -> ModuleType:
    """The module `benchmarks.<name>.driver` of the checkout that this package is installed from."""
    if not (ROOT / "benchmarks" / name / "driver.py").is_file():
        raise UserError(
            f"bench {name} needs the folder benchmarks/ of a checkout of statetrack, from which it "
            "is installed with `pip install --editable .`"
        )
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    return importlib.import_module(f"benchmarks.{name}.driver")
