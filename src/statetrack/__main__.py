"""`python -m statetrack` is the command `statetrack`."""

import sys

from statetrack.cli import main

if __name__ == "__main__":
    sys.exit(main())
