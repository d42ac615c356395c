"""The recurrences, and what lies between matrix products, as functions on tensors.

Each has a naive form, the definition, and fast ones.
"""

from statetrack.ops.cross_entropy import cross_entropy
from statetrack.ops.recurrence import (
    delta_product,
    delta_product_step,
    delta_rule,
    delta_rule_step,
    gated_linear_attention,
    gated_linear_attention_step,
)
from statetrack.ops.rms_norm import rms_norm
from statetrack.ops.selective_scan import selective_scan, selective_scan_step
from statetrack.ops.short_conv import short_conv
from statetrack.ops.slstm import SLSTMMemory, slstm
from statetrack.ops.softplus import softplus
from statetrack.ops.swiglu import swiglu

__all__ = [
    "SLSTMMemory",
    "cross_entropy",
    "delta_product",
    "delta_product_step",
    "delta_rule",
    "delta_rule_step",
    "gated_linear_attention",
    "gated_linear_attention_step",
    "rms_norm",
    "selective_scan",
    "selective_scan_step",
    "short_conv",
    "slstm",
    "softplus",
    "swiglu",
]
