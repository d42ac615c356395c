"""What the tests of the documentation share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from statetrack.layers import MIXERS
from statetrack.tasks import FAMILIES


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """Forget the layers and tasks that the code of a page registers."""
    mixers, families = dict(MIXERS), list(FAMILIES)
    yield
    MIXERS.clear()
    MIXERS.update(mixers)
    FAMILIES[:] = families
