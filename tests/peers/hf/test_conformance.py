"""The conformance kit over layers of transformers and xlstm: what passes, and what does not.

Findings are expected failures. Each is reproduced below by calls of the other package alone.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers

from statetrack.testing.inputs import draw
from tests.ops.common import assert_close
from tests.peers.common import (
    QUICK,
    SINGLE,
    Conformance,
    assert_documented,
    called,
    each_check,
    finding,
)
from tests.peers.hf.conformance import EPS, FINDINGS, NO_FIRST_STATE, PEERS, STEP_HOOKS, SWAP


@each_check(PEERS, QUICK)
def test_check(peer: Conformance, check: str) -> None:
    peer.check(check)


def test_docs() -> None:
    assert_documented(PEERS.values(), QUICK, SWAP)


def layer(name: str) -> tuple[Any, Any]:
    """A layer of another package, no parameter at a special value, and its configuration."""
    peer = PEERS[name].noisy()
    return peer.layer, peer.layer.config if name.endswith("lstm") else peer.config


NAMES = ["mamba", "mamba2", "qwen3_next", "olmo_hybrid"]
TRANSFORMERS = pytest.mark.parametrize("name", NAMES)
CONTINUING = [pytest.param("mamba", marks=finding(NO_FIRST_STATE)), *NAMES[1:]]
XLSTM = pytest.mark.parametrize("name", ["mlstm", "slstm"])


@torch.no_grad()
@pytest.mark.parametrize("name", CONTINUING)
def test_two_passes(name: str) -> None:
    theirs, config = layer(name)
    x = draw(2)(2, 6, config.hidden_size).float()
    cache = transformers.DynamicCache(config=config)
    parts = [theirs(part, cache_params=cache) for part in x.split(3, 1)]
    assert_close(torch.cat(parts, 1), theirs(x), SINGLE)


@torch.no_grad()
@TRANSFORMERS
@pytest.mark.parametrize(
    "past", [0, pytest.param(3, marks=finding(FINDINGS["left_padding"]))], ids=["first", "second"]
)
def test_left_padding(past: int, name: str) -> None:
    """Of a first pass, and of one that continues from it."""
    theirs, config = layer(name)
    x = draw(2)(1, 6, config.hidden_size).float()
    outputs = []
    for padding in (0, 2):
        cache = transformers.DynamicCache(config=config)
        if past:
            theirs(x[:, :past], cache_params=cache)
        padded = F.pad(x[:, past:], (0, 0, padding, 0))
        mask = torch.arange(padded.shape[1])[None] >= padding
        outputs.append(theirs(padded, cache_params=cache, attention_mask=mask)[:, padding:])
    assert_close(outputs[1], outputs[0], SINGLE)


@torch.no_grad()
@TRANSFORMERS
@finding(FINDINGS["garbage_in_padding"])
def test_nan_in_padding(name: str) -> None:
    theirs, config = layer(name)
    x = draw(2)(1, 6, config.hidden_size).float()
    x[:, :2] = torch.nan
    mask = torch.arange(6)[None] >= 2
    assert theirs(x, attention_mask=mask)[:, 2:].isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize(("name", "part"), [*((n, "conv1d") for n in NAMES), ("mamba", "dt_proj")])
@finding(FINDINGS["hooks"])
def test_hooks(name: str, part: str) -> None:
    theirs, config = layer(name)
    x = draw(2)(1, 6, config.hidden_size).float()
    assert called(theirs.get_submodule(part), lambda: theirs(x))


@torch.no_grad()
@XLSTM
@pytest.mark.parametrize("way", ["pass", pytest.param("step", marks=finding(STEP_HOOKS))])
def test_hooks_of_xlstm(way: str, name: str) -> None:
    theirs, _ = layer(name)
    x = draw(2)(1, 1, theirs.config.embedding_dim).float()
    run = theirs if way == "pass" else theirs.step
    assert called(theirs.conv1d.conv, lambda: run(x))


@torch.no_grad()
@pytest.mark.parametrize("eps", [0.0, pytest.param(1e-6, marks=finding(EPS))])
def test_pass_and_steps_of_mlstm(eps: float) -> None:
    theirs = layer("mlstm")[0].double()
    cell = theirs.mlstm_cell
    cell.backend_fn = partial(cell.backend_fn, eps=eps)
    cell.backend_fn_step = partial(cell.backend_fn_step, eps=eps)
    x, state, outputs = draw(2)(2, 6, theirs.config.embedding_dim), {}, []
    for x_t in x.split(1, 1):
        y, state = theirs.step(x_t, **state)
        outputs.append(y)
    assert_close(torch.cat(outputs, 1), theirs(x), 1e-10)


@torch.no_grad()
@finding(SWAP)
def test_step_after_a_pass_of_slstm() -> None:
    theirs, _ = layer("slstm")
    x = draw(2)(2, 6, theirs.config.embedding_dim).float()
    _, state = theirs(x[:, :5], return_last_state=True)
    y, _ = theirs.step(x[:, 5:], **state)
    assert_close(y, theirs(x)[:, 5:], SINGLE)


@torch.no_grad()
@TRANSFORMERS
def test_a_cache_changes_no_output(name: str) -> None:
    """The checks run with a cache, training without."""
    theirs, config = layer(name)
    x = draw(2)(2, 6, config.hidden_size).float()
    cache = transformers.DynamicCache(config=config)
    assert_close(theirs(x, cache_params=cache), theirs(x), SINGLE)
