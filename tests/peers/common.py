"""What the comparisons with models and layers of other packages share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from statetrack.testing import CHECKS, check_layer
from statetrack.testing.case import Case, map_state

SINGLE = 1e-5
"""Relative, of what is computed in float32 on both sides."""

Tensors = dict[str, Tensor]

QUICK = [name for name, check in CHECKS.items() if not check.slow and name != "decoder"]
"""The checks of a layer that do not trace it; no layer of another package has a decoder."""

NO_TRANSITIONS = dict.fromkeys(
    ("eigenvalues", "negative_eigenvalues"), "the package does not give the matrices A(x)"
)


def random_weights(model: Any) -> Any:
    """Weights that make every part of a model matter."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith(("A_log", "dt_bias", "dt_proj.bias")):
                p.uniform_(-1.5, 1.0, generator=generator)
            elif p.dim() == 1:
                p.normal_(1.0, 0.3, generator=generator)
            else:
                p.normal_(0.0, 0.2, generator=generator)
    return model.eval()


def logits_and_gradients(model: nn.Module, logits: Callable[[], Tensor]) -> tuple[Tensor, Tensors]:
    """Logits, and the gradient of every parameter if they are weighed with fixed numbers."""
    model.zero_grad()
    y = logits()
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(9))
    (y * weight).sum().backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    return y.detach(), {name: g.clone() for name, g in grads.items() if g is not None}


def assert_same_gradients(actual: Tensors, expected: Tensors, tolerance: float = 1e-4) -> None:
    """Each close in the 2-norm; one that ought to be 0 is measured by all of them together.

    In float32 transformers' gated delta rule is off by up to 4e-5 in the gradients of its gates, as
    ours in float64 shows; ours in float32 by 2e-6.
    """
    assert actual.keys() == expected.keys()
    whole = sum(float(g.norm()) ** 2 for g in expected.values()) ** 0.5
    for name, right in expected.items():
        distance = float((actual[name] - right).norm())
        bound = tolerance * (float(right.norm()) + 1e-3 * whole)
        assert distance <= bound, f"{name}: {distance:.1e}"


class Peer(nn.Module):
    """A layer of another package, with the interface that `statetrack.testing` checks.

    Subclasses define `forward(x, state=None, ...)`, which gives outputs and the state.
    """

    def __init__(self, layer: nn.Module, hidden_size: int) -> None:
        super().__init__()
        self.layer, self.hidden_size = layer, hidden_size

    @torch.no_grad()
    def init_state(self, batch: int) -> Any:
        """Zeros, in the shapes that a pass over one token gives."""
        x = next(self.parameters()).new_zeros(batch, 1, self.hidden_size)
        return map_state(torch.zeros_like, self(x)[1])

    def step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, state = self(x_t[:, None], state)
        return y[:, 0], state


class Conformance(NamedTuple):
    """What the checks of a layer are expected to say.

    `unsupported` and `findings` map names of checks to sentences; all other checks pass. A finding
    is a failure that is not declared by the layer: each one was reproduced without the adapter.
    """

    package: str
    layer: str
    factory: Callable[[], Peer]
    unsupported: Mapping[str, str]
    findings: Mapping[str, str]
    exact: torch.dtype = torch.float32
    perturb: float = 0.3

    def noisy(self) -> Peer:
        """The layer, no parameter at a special value, for calls without the kit."""
        return Case(self.factory, exact=torch.float32).layer

    def check(self, name: str) -> None:
        """Raise if the check fails."""
        report = check_layer(
            self.factory,
            only=[name],
            title=self.layer,
            unsupported=self.unsupported,
            exact=self.exact,
            perturb=self.perturb,
        )
        report.raise_for_failures()

    def row(self, checks: Collection[str]) -> str:
        """The row of the table in docs/conformance.md."""
        counts = [
            sum(name in found for name in checks) for found in (self.unsupported, self.findings)
        ]
        cells = [
            f"{self.package} {version(self.package)}",
            f"`{self.layer}`",
            *map(str, (len(checks) - sum(counts), *counts)),
        ]
        return f"| {' | '.join(cells)} |"


def finding(sentence: str) -> Any:
    """Marks a test that must fail, as another package does not do what it asserts."""
    return pytest.mark.xfail(strict=True, raises=AssertionError, reason=sentence)


def called(module: nn.Module, run: Callable[[], object]) -> bool:
    """Whether `run` calls a forward hook of `module`."""
    found: list[bool] = []
    handle = module.register_forward_hook(lambda *_: found.append(True))
    run()
    handle.remove()
    return bool(found)


def each_check(peers: Mapping[str, Conformance], checks: Collection[str]) -> Any:
    """Parametrizes a test by `peer` and `check`; a finding must fail, or the test does."""
    params = []
    for name, peer in peers.items():
        for check in checks:
            marks = [finding(peer.findings[check])] if check in peer.findings else []
            params.append(pytest.param(peer, check, marks=marks, id=f"{name}-{check}"))
    return pytest.mark.parametrize(("peer", "check"), params)


def assert_documented(
    peers: Iterable[Conformance], checks: Collection[str], *findings: str
) -> None:
    """The page on conformance has the row of every layer and the sentence of every finding.

    `findings` are those that no check of the kit shows.
    """
    page = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text()
    expected = [text for peer in peers for text in (peer.row(checks), *peer.findings.values())]
    for text in (*expected, *findings):
        assert text in page, text
