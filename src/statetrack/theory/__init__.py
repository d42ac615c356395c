"""Theory as software: what a linear RNN cannot do, and models that do it exactly."""

from statetrack.theory.diagnostics import Diagnosis, diagnose
from statetrack.theory.hardening import Hardened, harden

__all__ = ["Diagnosis", "Hardened", "diagnose", "harden"]
