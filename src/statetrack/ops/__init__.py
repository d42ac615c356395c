"""The recurrences as functions on tensors: a naive loop, the definition, and fast forms."""

from statetrack.ops.delta_product import delta_product
from statetrack.ops.delta_rule import delta_rule
from statetrack.ops.gated_linear_attention import gated_linear_attention
from statetrack.ops.selective_scan import selective_scan, selective_scan_step

__all__ = [
    "delta_product",
    "delta_rule",
    "gated_linear_attention",
    "selective_scan",
    "selective_scan_step",
]
