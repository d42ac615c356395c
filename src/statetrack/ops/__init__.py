"""The recurrences as functions on tensors: a naive loop, the definition, and fast forms."""

from statetrack.ops.delta_rule import delta_rule
from statetrack.ops.selective_scan import selective_scan

__all__ = ["delta_rule", "selective_scan"]
