"""Before `make sanitize`: is the library to be tested the sanitized one, with every level?"""

import platform
import sys

from statetrack.kernels.library import LEVELS, PATH

WANTED = ["avx512", "avx2", "baseline"] if platform.machine() == "x86_64" else ["baseline"]

print(f"{PATH.parent.name}/{PATH.name}: {', '.join(LEVELS)}")
if LEVELS != WANTED:
    sys.exit(f"wanted the levels {', '.join(WANTED)}; are AVX2 and the library there?")
if b"__asan_init" not in PATH.read_bytes():
    sys.exit(f"{PATH.name} was built without the address sanitizer")
