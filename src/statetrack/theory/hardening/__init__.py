"""Make a trained model exact: what almost reflects reflects, what almost keeps keeps."""

from statetrack.theory.hardening.harden import harden
from statetrack.theory.hardening.report import Hardened, Part

__all__ = ["Hardened", "Part", "harden"]
