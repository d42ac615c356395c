"""The tests of language models run where the extra `lm` is installed: `make test-lm`."""

from __future__ import annotations

from statetrack.lm.extra import unusable_packages

if unusable_packages():
    collect_ignore_glob = ["*test_*.py"]  # in subfolders, too
