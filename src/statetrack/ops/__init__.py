"""The recurrences as functions on tensors: a naive loop, the definition, and fast forms."""

from statetrack.ops.decode import delta_product_step, delta_rule_step, gated_linear_attention_step
from statetrack.ops.delta_product import delta_product
from statetrack.ops.delta_rule import delta_rule
from statetrack.ops.gated_linear_attention import gated_linear_attention
from statetrack.ops.selective_scan import selective_scan

__all__ = [
    "delta_product",
    "delta_product_step",
    "delta_rule",
    "delta_rule_step",
    "gated_linear_attention",
    "gated_linear_attention_step",
    "selective_scan",
]
