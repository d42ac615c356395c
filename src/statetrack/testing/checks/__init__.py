"""The checks of a sequence layer, one file per theme."""

from statetrack.testing.check import Check
from statetrack.testing.checks import gradients, modules, padding, sequences, spectrum, transforms

THEMES = (sequences, padding, gradients, transforms, modules, spectrum)

CHECKS: dict[str, Check] = {
    name: check
    for theme in THEMES
    for name, check in vars(theme).items()
    if isinstance(check, Check)
}
"""Every check of a layer by its name, in the order in which they run."""
