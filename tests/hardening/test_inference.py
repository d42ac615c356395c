"""The answers show what a token that a head ignores should do."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from statetrack.hardening.inference import infer_ignored
from statetrack.hardening.representations import Representation
from statetrack.tasks import IGNORE
from tests.hardening.test_representations import rotation

RNG = torch.Generator().manual_seed(0)
TOKENS = torch.randint(5, (64, 20), generator=RNG)
TARGETS = TOKENS.cumsum(1) % 5


def turns(of: int, *steps: int) -> Representation:
    """Each token rotates by so many steps of a full turn."""
    group = torch.stack([rotation(2 * math.pi * i / of) for i in range(of)])
    return Representation(group[list(steps)], group, torch.ones(len(steps), dtype=torch.bool))


def angles(found: Representation, of: int) -> list[int]:
    sines, cosines = found.matrices[:, 1, 0], found.matrices[:, 0, 0]
    return (torch.atan2(sines, cosines) * of / (2 * math.pi)).round().long().remainder(of).tolist()


@pytest.mark.parametrize(
    ("of", "steps", "expected"),
    [
        (5, (0, 1, 2, 0, 4), [0, 1, 2, 3, 4]),
        (5, (0, 2, 4, 0, 0), [0, 2, 4, 1, 3]),  # three tokens: 0 stays as it is
        (10, (0, 7, 4, 0, 3), [0, 7, 4, 1, 3]),  # half a turn more does not matter
        (5, (0, 1, 2, 3, 4), [0, 1, 2, 3, 4]),  # nothing is ignored but the 0
    ],
)
def test_the_element_with_which_the_state_determines_the_answers(
    of: int, steps: tuple[int, ...], expected: list[int]
) -> None:
    found = infer_ignored(turns(of, *steps), TOKENS, TARGETS)
    assert found is not None
    assert angles(found, of) == expected
    assert found.fits.tolist() == [a == b for a, b in zip(steps, expected, strict=True)]


def test_positions_without_a_token_or_an_answer() -> None:
    """A BOS, whose answer is another one; and positions that are not scored."""
    index = torch.cat([torch.full((64, 1), -1), TOKENS], 1)
    targets = torch.cat([torch.full((64, 1), 7), TARGETS], 1)
    targets[:, 3:9] = IGNORE
    found = infer_ignored(turns(5, 0, 1, 2, 0, 4), index, targets)
    assert found is not None
    assert angles(found, 5) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("given", "targets"),
    [
        (turns(5, 0, 1, 2, 0, 3), TARGETS),  # 4 is wrong, and not ignored
        (turns(6, 0, 1, 2, 0, 4), TARGETS),
        (turns(5, 0, 1, 2, 0, 4), TARGETS.flip(0)),
        (turns(7, 0, 1, 0, 0, 0), TARGETS),  # too many possibilities
    ],
)
def test_where_no_element_does(given: Representation, targets: Tensor) -> None:
    assert infer_ignored(given, TOKENS, targets) is None
