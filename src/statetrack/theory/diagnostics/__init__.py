"""The eigenvalues of a model's transitions, and the languages that they exclude."""

from statetrack.theory.diagnostics.diagnose import diagnose
from statetrack.theory.diagnostics.report import Diagnosis
from statetrack.theory.diagnostics.verdicts import Kind, Verdict

__all__ = ["Diagnosis", "Kind", "Verdict", "diagnose"]
