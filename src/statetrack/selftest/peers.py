"""Layers and functions of other packages, to compare speeds with. None has to be installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import Tensor, nn

from statetrack.errors import UserError
from statetrack.layers import DeltaNetConfig, GatedDeltaNetConfig, GLAConfig, Mamba2Config

MAMBA_SSM = "pip install mamba-ssm --no-build-isolation"


def mamba_ssm_scan() -> Callable[..., Tensor]:
    """Return mamba-ssm's selective scan for the arguments of ours.

    Raises:
        UserError: It is not installed.
    """
    if find_spec("mamba_ssm") is None:
        raise UserError(f"mamba-ssm is not installed: {MAMBA_SSM}")
    interface = import_module("mamba_ssm.ops.selective_scan_interface")

    def scan(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
        u, delta, B, C = (x.transpose(1, 2).contiguous() for x in (u, delta, B, C))
        return interface.selective_scan_fn(u, delta, A.float(), B, C).transpose(1, 2)

    return scan


def fla_layer(name: str, width: int, heads: int) -> nn.Module:
    """Return flash-linear-attention's layer with the sizes of ours by default.

    Args:
        name: of our layer.
        width: the hidden size.
        heads: as many as ours has, where it has heads.

    Raises:
        UserError: The package is not installed.
    """
    if find_spec("fla") is None or find_spec("triton") is None:
        raise UserError('flash-linear-attention is not installed: pip install "statetrack[gpu]"')
    layers = import_module("fla.layers")
    options: dict[str, Any] = {"hidden_size": width, "layer_idx": 0}
    if name == "delta_net":
        return layers.DeltaNet(
            num_heads=heads, expand_v=DeltaNetConfig.expand_v, allow_neg_eigval=True, **options
        )
    if name == "gla":
        key, value = GLAConfig.expand_k, GLAConfig.expand_v
        return layers.GatedLinearAttention(num_heads=heads, expand_k=key, expand_v=value, **options)
    gated = {"num_heads": heads, "head_dim": width // heads, "allow_neg_eigval": True}
    if name == "gated_delta_net":
        return layers.GatedDeltaNet(expand_v=GatedDeltaNetConfig.expand_v, **gated, **options)
    if name == "gated_delta_product":
        return layers.GatedDeltaProduct(expand_v=GatedDeltaNetConfig.expand_v, **gated, **options)
    if name == "mamba":
        return layers.Mamba(intermediate_size=2 * width, **options)
    assert name == "mamba2", name
    return layers.Mamba2(state_size=Mamba2Config.d_state, **options)


FLA_LAYERS = ("delta_net", "gated_delta_net", "gated_delta_product", "gla", "mamba", "mamba2")
"""The layers of ours that flash-linear-attention has."""
