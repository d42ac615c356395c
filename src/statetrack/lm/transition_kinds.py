"""The kinds of transitions that `audit` counts, and the bounds that separate them.

They need no package of the extra `lm`, so that reports without it can name them.
"""

from __future__ import annotations

KINDS = ("reflect", "rotate", "keep", "forget")
REFLECTS = -0.1  # a real eigenvalue below this reflects
ROTATES = 0.01  # an eigenvalue with an imaginary part above this rotates
KEEPS = 0.9  # a transition whose eigenvalues all have a modulus above this keeps
