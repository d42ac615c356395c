"""flash-linear-attention's kernels in Triton's interpreter, where three things are in their way.

The autotuner measures times on a GPU, loop variables are plain integers without `.to`, and products
of bfloat16 matrices are those of their bits, so matrices are float16 here.
"""

from __future__ import annotations

import builtins
import warnings
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from triton.runtime.autotuner import Autotuner

with warnings.catch_warnings():  # about the missing GPU
    warnings.simplefilter("ignore")
    from fla.ops.utils.cache import CachedAutotuner

LOOPS = (
    "fla.ops.common.chunk_h",
    "fla.ops.common.chunk_delta_h",
    "fla.ops.gated_delta_product.chunk_deltaproduct_h",
)
"""Modules with kernels that convert a loop variable."""


class Index(int):
    """A loop variable that can be converted, as a compiled one."""

    def to(self, dtype: Any) -> Index:
        return self


def indices(*bounds: Any) -> Iterator[Index]:
    return map(Index, builtins.range(*map(int, bounds)))


def first_config(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Run with the first configuration that fits, measuring nothing."""
    self.nargs = dict(zip(self.arg_names, args, strict=False))
    config = self.prune_configs(kwargs)[0]
    return self.fn.run(*args, **kwargs, **config.all_kwargs())


@pytest.fixture
def interpreted_fla(monkeypatch: pytest.MonkeyPatch) -> None:
    for autotuner in (Autotuner, CachedAutotuner):
        monkeypatch.setattr(autotuner, "run", first_config)
    for name in LOOPS:
        monkeypatch.setattr(import_module(name), "range", indices, raising=False)
