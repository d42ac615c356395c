"""Conformance checks for any sequence layer or op.

`check_layer` and `check_op` return a `Report`; `CHECKS` has every check of a layer by its name. The
command `statetrack check` checks the layers of this package. See docs/conformance.md.
"""

from statetrack.testing.check import Check
from statetrack.testing.checks import CHECKS
from statetrack.testing.layer import check_layer
from statetrack.testing.op import check_op
from statetrack.testing.report import ConformanceError, Report, Result

__all__ = ["CHECKS", "Check", "ConformanceError", "Report", "Result", "check_layer", "check_op"]
