"""The conformance kit over the layers of flash-linear-attention, with stand-ins for its kernels."""

from __future__ import annotations

import pytest
import torch

from statetrack.testing.inputs import draw
from tests.ops.common import assert_close
from tests.peers.common import SINGLE, Conformance, assert_documented, called, each_check, finding
from tests.peers.fla.conformance import CHECKS, FUSED_HOOKS, PEERS, WIDTH
from tests.peers.fla.cpu import on_cpu  # noqa: F401

pytestmark = pytest.mark.usefixtures("on_cpu")


@each_check(PEERS, CHECKS)
def test_check(peer: Conformance, check: str) -> None:
    peer.check(check)


def test_docs() -> None:
    assert_documented(PEERS.values(), CHECKS, FUSED_HOOKS)


@pytest.mark.parametrize("name", PEERS)
def test_a_cache_changes_no_output(name: str) -> None:
    """The checks run with a cache, training without."""
    peer = PEERS[name].noisy()
    x = draw(2)(2, 6, WIDTH).float()
    assert_close(peer(x)[0], peer.layer(x)[0], SINGLE)


@torch.no_grad()
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=finding(FUSED_HOOKS) if name == "gated_delta_net" else ())
        for name in PEERS
    ],
)
def test_hooks_without_a_cache(name: str) -> None:
    theirs = PEERS[name].noisy().layer
    assert called(theirs.q_conv1d, lambda: theirs(draw(2)(1, 6, WIDTH).float()))
