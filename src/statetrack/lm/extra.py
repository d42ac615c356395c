"""Check that the packages of the extra `lm` are installed, in versions that it admits."""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec

from statetrack.errors import UserError
from statetrack.requirements import declared, untested_version

PACKAGES = ("transformers", "tokenizers", "accelerate", "datasets", "lm_eval")


def unusable_packages() -> list[str]:
    """List the packages of the extra `lm` that are missing or have a wrong version."""
    absent = [f"{name} is missing" for name in PACKAGES if find_spec(name) is None]
    other = [
        f"{name} is {metadata.version(name)} (it must be {','.join(bounds)})"
        for name, bounds in declared("lm").items()
        if untested_version(name, bounds)
    ]
    return absent + other


def require_lm() -> None:
    """Raise a UserError that says what to install if a package of the extra `lm` is not usable."""
    if unusable := unusable_packages():
        wrong = ", ".join(unusable)
        raise UserError(f'language models need the extra lm: {wrong}: pip install "statetrack[lm]"')
