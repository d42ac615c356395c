"""Check that the packages of the extra `lm` are installed."""

from __future__ import annotations

from importlib.util import find_spec

from statetrack.errors import UserError

PACKAGES = ("transformers", "tokenizers", "accelerate", "datasets", "lm_eval")


def missing_packages() -> list[str]:
    """List the packages of the extra `lm` that are not installed."""
    return [name for name in PACKAGES if find_spec(name) is None]


def require_lm() -> None:
    """Raise a UserError that says what to install if a package of the extra `lm` is missing."""
    if missing := missing_packages():
        raise UserError(f'language models need {", ".join(missing)}: pip install "statetrack[lm]"')
