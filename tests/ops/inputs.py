"""Inputs for the recurrences, under the names that tests use: see `statetrack.selftest.inputs`."""

from statetrack.selftest.inputs import (
    delta_product_inputs,
    delta_rule_inputs,
    linear_attention_inputs,
    selective_scan_inputs,
)

__all__ = [
    "delta_product_inputs",
    "delta_rule_inputs",
    "linear_attention_inputs",
    "selective_scan_inputs",
]
