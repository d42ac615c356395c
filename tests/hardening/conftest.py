"""Seed the random noise of every test of hardening."""

from __future__ import annotations

import pytest

from tests.hardening.test_groups import RNG


@pytest.fixture(autouse=True, scope="module")
def _same_noise_in_a_module() -> None:
    """Seed the noise of fixtures that a module shares."""
    RNG.manual_seed(0)


@pytest.fixture(autouse=True)
def _same_noise_in_a_test() -> None:
    """Seed the noise of a test, whatever ran before it in this process."""
    RNG.manual_seed(1)
