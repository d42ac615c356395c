"""Make a trained model exact: what almost reflects reflects, what almost keeps keeps."""

from statetrack.theory.hardening.candidate import Part
from statetrack.theory.hardening.harden import harden
from statetrack.theory.hardening.report import Hardened

__all__ = ["Hardened", "Part", "harden"]
