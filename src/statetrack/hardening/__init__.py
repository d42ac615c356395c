"""Make a trained model exact: what almost reflects reflects, what almost keeps keeps."""

from statetrack.hardening.candidate import Part
from statetrack.hardening.harden import harden
from statetrack.hardening.report import Hardened

__all__ = ["Hardened", "Part", "harden"]
