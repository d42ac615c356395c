"""The self-test: is what ops and layers compute on a device right, and how fast is it?

`run_selftest` is what `statetrack selftest` runs. The reference is always the CPU in float64.
"""

from statetrack.selftest.outcome import Outcome
from statetrack.selftest.run import SelfTest, run_selftest
from statetrack.selftest.timing import Timing

__all__ = ["Outcome", "SelfTest", "Timing", "run_selftest"]
