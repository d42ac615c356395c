"""Every op through the conformance kit, against its definition in float64."""

from __future__ import annotations

from functools import partial

import pytest

from statetrack.testing import check_op
from tests.ops.test_transforms import CASES, RECURRENCES

pytestmark = pytest.mark.native


@pytest.mark.parametrize("name", CASES)
def test_conforms(name):
    op, inputs = CASES[name]
    options = {"output_final_state": True} if name.startswith(RECURRENCES) else {}
    definition = partial(op, backend="naive", **options)
    check_op(partial(op, **options), inputs, definition, title=name).raise_for_failures()
