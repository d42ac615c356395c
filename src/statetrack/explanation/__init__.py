"""Explain which linear RNNs can recognise a regular language, and why."""

from statetrack.explanation.explain import Explanation, explain

__all__ = ["Explanation", "explain"]
