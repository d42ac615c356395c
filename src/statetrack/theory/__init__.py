"""Theory as software: what a linear RNN cannot do."""

from statetrack.theory.diagnostics import Diagnosis, diagnose

__all__ = ["Diagnosis", "diagnose"]
