"""Reports, declarations and mistakes of the caller."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys

import pytest
import torch

from statetrack.errors import UserError
from statetrack.layers import MIXERS
from statetrack.testing import CHECKS, ConformanceError, check_layer
from statetrack.testing.report import ratio
from tests.testing.layers import PAGE, Leaky


def leaky() -> torch.nn.Module:
    return Leaky(8)


def test_the_page_explains_every_check():
    text = PAGE.read_text()
    assert [c.name for c in CHECKS.values() if f"| `{c.name}` | {c.about} |\n" not in text] == []


def test_the_page_says_what_our_layers_do_not_support():
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    said = {
        (layer, check): why
        for layer, checks, why in rows
        for check in re.findall(r"`(\w+)`", checks)
    }
    assert said == {
        (config.layer.__name__, check): why
        for config in MIXERS.values()
        for check, why in config.layer.unsupported.items()
    }


@pytest.mark.parametrize("perturb", [0, 0.3])
def test_a_layer_without_a_decoder_does_not_pass_its_check(perturb):
    (result,) = check_layer(leaky, only=["decoder"], unsupported={}, perturb=perturb).results
    assert (result.status, result.detail) == ("unsupported", "the layer has no decoder")


def test_a_report_for_people_and_for_programs():
    report = check_layer(leaky, only=["rows", "packed"], unsupported={}, title="leaky")
    assert report.summary() == "leaky: 1 passed, 1 failed"
    assert [r.check for r in report.failures] == ["packed"]
    assert report["rows"].error < 1e-4 == report["rows"].tolerance
    lines = str(report).splitlines()
    assert lines[1].split() == ["check", "result", "error", "tolerance", "detail"]
    assert [line.split()[:2] for line in lines[2:]] == [["rows", "passed"], ["packed", "failed"]]
    values = json.loads(json.dumps(report.as_json(), allow_nan=False))
    assert values["failed"] == 1
    assert values["checks"][1] == {
        "check": "packed",
        "status": "failed",
        "error": None,
        "tolerance": None,
        "detail": report["packed"].detail,
    }
    with pytest.raises(
        ConformanceError, match="leaky: 1 passed, 1 failed\n  packed failed: TypeError: "
    ):
        report.raise_for_failures()


def test_an_error_that_is_not_finite_is_null_in_json():
    class NotANumber(Leaky):
        def forward(self, x, state=None, *, mask=None):
            return super().forward(x, state)[0] * torch.nan, state

    report = check_layer(lambda: NotANumber(8), only=["rows"])
    assert report["rows"].error == torch.inf
    assert report.as_json()["checks"][0]["error"] is None


def test_an_error_that_is_nan_fails():
    assert ratio(math.nan, 1e-5) == math.inf
    assert ratio(math.nan, 0.0) == math.inf


def test_what_is_declared_must_be_true():
    declared = {"rows": "no reason", "packed": "it takes no cu_seqlens", "compile": "not tried"}
    report = check_layer(leaky, only=declared, unsupported=declared)
    assert report["packed"].status == "unsupported"
    assert report["packed"].detail == "it takes no cu_seqlens"
    assert report["compile"].status == "unsupported"  # it takes long: believed
    assert report["rows"].status == "failed"
    assert report["rows"].detail == "passes, but is declared unsupported: no reason"
    given = check_layer(leaky, only=["rows"], unsupported=declared, perturb=0)
    assert given["rows"].status == "passed"  # of these weights


def test_unknown_checks():
    with pytest.raises(UserError, match=r"unknown check 'chunk'; nearest of .* chunks"):
        check_layer(leaky, only=["chunk"])
    with pytest.raises(UserError, match="unknown check 'pack'"):
        check_layer(leaky, unsupported={"pack": "no"})


def test_the_random_numbers_of_the_caller_are_left_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    check_layer(leaky, only=["rows"])
    assert torch.equal(torch.rand(3), expected)


def test_a_layer_that_computes_in_float32_inside():
    class Single(Leaky):
        def step(self, x_t, state):
            y_t, state = super().step(x_t.float(), state.float())
            return y_t.to(x_t.dtype), state

        def _apply(self, fn, recurse=True):
            return self

    only = ["chunks", "finite_differences", "forward_mode", "float32"]
    assert check_layer(lambda: Single(8), only=only).failures
    assert not check_layer(lambda: Single(8), only=only, exact=torch.float32).failures


def test_no_pytest_is_needed():
    code = "import sys; sys.modules['pytest'] = None; import statetrack.testing"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
