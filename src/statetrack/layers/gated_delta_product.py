"""Gated DeltaProduct: a scalar gate, then several steps of the delta rule per token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from statetrack.config import at_least, option
from statetrack.layers.base import register
from statetrack.layers.delta_product import by_factors
from statetrack.layers.gated_delta_net import GatedDeltaNet, GatedDeltaNetConfig


@dataclass(frozen=True)
class GatedDeltaProductConfig(GatedDeltaNetConfig):
    """Options of Gated DeltaProduct."""

    name: ClassVar[str] = "gated_delta_product"
    label: ClassVar[str] = "Gated DeltaProduct"
    about: ClassVar[str] = "A(x) a scalar gate times n generalised Householder matrices"

    num_householder: int = option(2, "n, the steps of the delta rule per token")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("num_householder", self.num_householder, 1)

    @classmethod
    def variants(cls) -> list[Self]:
        return [
            cls(num_heads=3),
            cls(
                allow_neg_eigval=True, allow_neg_gate=True, num_heads=1, num_v_heads=2, expand_k=0.5
            ),
        ]

    @classmethod
    def architectures(cls) -> dict[str, Self]:
        return by_factors(super().architectures())

    @property
    def factors(self) -> int:
        return self.num_householder

    @property
    def title(self) -> str:
        return f"{super().title}, n = {self.num_householder}"


@register
class GatedDeltaProduct(GatedDeltaNet):
    """S := a_t S, then n steps of the delta rule as in DeltaProduct; gates as in GatedDeltaNet.

    The gate acts once per token. n = 1 is GatedDeltaNet. Options: see GatedDeltaProductConfig.
    """

    config_class = GatedDeltaProductConfig
    config: GatedDeltaProductConfig
