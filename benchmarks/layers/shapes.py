"""What is measured: the sizes of the paper's models, and every layer at them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from statetrack.layers import MIXERS, Mixer

# baselines for small tasks, which nobody makes a language model of
SMALL_ONLY = ("full_matrix", "diagonal_rnn")


@dataclass(frozen=True)
class Shape:
    """A training step on [batch, length, width], or decoding `length` tokens one by one."""

    kind: Literal["training", "decoding"]
    batch: int
    length: int
    width: int

    @property
    def heads(self) -> int:
        """Four, or as many as have the size 128."""
        return max(4, self.width // 128)

    @property
    def title(self) -> str:
        """E.g. "training, B256 T40, width 128"."""
        length = f" T{self.length}" if self.kind == "training" else ""
        return f"{self.kind}, B{self.batch}{length}, width {self.width}"


SHAPES = (
    Shape("training", 256, 40, 128),  # formal languages
    Shape("training", 1, 2048, 1024),  # a layer of a language model
    Shape("decoding", 1, 64, 128),
    Shape("decoding", 1, 32, 1024),
    Shape("decoding", 256, 16, 128),
)


def shapes(layer: str) -> list[Shape]:
    """Those at which a layer is measured."""
    return [s for s in SHAPES if s.width == 128 or layer not in SMALL_ONLY]


def build(layer: str, shape: Shape, **options: Any) -> Mixer:
    """A layer with its default options, but for the heads and what is given."""
    config = MIXERS[layer]
    if "num_heads" in {field.name for field in fields(config)}:
        options["num_heads"] = shape.heads
    return config(**options).build(shape.width)


def ranges(layer: str) -> dict[str, dict[str, Any]]:
    """The title of each range that a layer has, and its options."""
    if MIXERS[layer].no_switch:
        return {"statetrack": {}}
    return {
        "statetrack [0,1]": {"allow_neg_eigval": False},
        "statetrack [-1,1]": {"allow_neg_eigval": True},
    }
