"""The command `lm_eval` with this package's models: python -m statetrack.lm.harness run ..."""

from __future__ import annotations

from lm_eval.__main__ import cli_evaluate

import statetrack.lm.hf_model  # noqa: F401 (registers the classes with transformers)

if __name__ == "__main__":
    cli_evaluate()
