"""One way to make a model exact, and what becomes of its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from statetrack.models import SequenceModel

NOT_NEEDED = "it is not needed"


@dataclass(frozen=True)
class Part:
    """A head, or a channel."""

    name: str
    error: float | None = None  # how far the inner products of its keys, or its gates, were off
    skipped: str | None = None  # why it was left as it is
    silenced: bool = False  # as it is no longer, but without any memory

    def inside(self, where: str) -> Part:
        """The same, called by where it is, if there are others of its name."""
        return replace(self, name=f"{where} {self.name}".strip())


@dataclass(frozen=True)
class Candidate:
    """One way to make a model exact, in float64."""

    model: SequenceModel
    settings: dict[str, Any]
    parts: tuple[Part, ...]
    inexact: tuple[int, int]  # how much of it fades slowly, and how much fades
    idle: bool = False  # has no memory, so that it is exact as it is
    fewer: Callable[[], Iterator[Candidate]] = lambda: iter(())
    """The same with one part less that remembers something, the least exact first."""
    steadier: Callable[[], Iterator[Candidate]] = lambda: iter(())
    """The same that magnify less of a state's rounding, the best first."""
