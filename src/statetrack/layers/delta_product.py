"""DeltaProduct: DeltaNet with several steps of the delta rule per token."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from statetrack.config import at_least, option
from statetrack.layers.base import register
from statetrack.layers.delta_net import DeltaNet, DeltaNetConfig


@dataclass(frozen=True)
class DeltaProductConfig(DeltaNetConfig):
    """Options of DeltaProduct."""

    name: ClassVar[str] = "delta_product"
    label: ClassVar[str] = "DeltaProduct"
    about: ClassVar[str] = "A(x) a product of n generalised Householder matrices I - beta k k^T"

    conv_size: int = option(
        4, "width of the causal convolution, with SiLU, on q, k, v; 0: SiLU without it"
    )
    num_householder: int = option(2, "n, the steps of the delta rule per token")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("num_householder", self.num_householder, 1)

    @classmethod
    def variants(cls) -> list[Self]:
        return [
            cls(num_heads=3, num_householder=3),
            cls(allow_neg_eigval=True, num_heads=3, conv_size=0),
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


def by_factors(configs: dict[str, Any]) -> dict[str, Any]:
    """Replace configurations by those of 2 and at least 3 factors, whose guarantees differ.

    One factor is left out: that is DeltaNet or Gated DeltaNet.
    """
    found = {}
    for given in configs.values():
        for n in (2, 3):
            config = replace(given, num_householder=n)
            found[config.title.replace("n = 3", "n >= 3")] = config
    return found


@register
class DeltaProduct(DeltaNet):
    """S := S + k_tj beta_tj (v_tj - S^T k_tj)^T for j = 1 .. n, then o_t = norm(S^T q_t / sqrt(K)).

    Each step has its own projections k, v and beta of x; q is one per token. Everything else is as
    in DeltaNet, which is n = 1, except that without the convolution q and k get the SiLU, too.

    The transition is (I - beta_n k_n k_n^T) ... (I - beta_1 k_1 k_1^T). With `allow_neg_eigval` it
    can be a rotation (n = 2, beta = 2), so eigenvalues can be complex. Without the switch they are
    real and in [0, 1] for n <= 2; for n >= 3 they can be complex, with real parts down to
    -cos(pi / n)^n. Options: see DeltaProductConfig.
    """

    config_class = DeltaProductConfig
    config: DeltaProductConfig
    qk_silu = True
