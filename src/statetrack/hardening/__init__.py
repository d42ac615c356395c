"""Make a trained model exact: entered through `harden`."""

from statetrack.hardening.harden import harden
from statetrack.hardening.report import Hardened

__all__ = ["Hardened", "harden"]
