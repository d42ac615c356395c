"""The eigenvalues of a model's transitions, and the languages that they exclude."""

from statetrack.diagnosis.diagnose import diagnose
from statetrack.diagnosis.report import Diagnosis
from statetrack.diagnosis.verdicts import Kind, Verdict

__all__ = ["Diagnosis", "Kind", "Verdict", "diagnose"]
