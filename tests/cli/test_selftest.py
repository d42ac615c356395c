"""`statetrack selftest`: what it checks, what it writes, and what it says of failures."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch

from statetrack import devices
from statetrack.errors import UserError
from statetrack.layers import MIXERS, DeltaNet
from statetrack.ops.swiglu import swiglu_naive
from statetrack.selftest import op_tests, peers, speed
from statetrack.selftest.layers import check_layers, layer_tests
from statetrack.selftest.op_tests import OpTest
from statetrack.selftest.ops import check_ops
from statetrack.selftest.speed import Size
from statetrack.selftest.timing import OURS, Timing, differentiated, time_candidates
from statetrack.testing.inputs import draw
from tests.simulated_device import simulated_device

CPU = torch.device("cpu")


def test_the_cpu_passes(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = command("selftest", "--device", "cpu", "--quick", "--json", "-")
    assert result.code == 0
    found = json.loads(result.out)
    assert found == json.loads((tmp_path / "statetrack-selftest-cpu.json").read_text())
    assert found["failed"] == 0
    assert found["passed"] == sum(check["status"] == "passed" for check in found["checks"])
    assert found["device"]["device"] == "cpu"
    assert found["versions"]["torch"] == torch.__version__

    checked = {
        (c["subject"], c["backend"], c["dtype"]) for c in found["checks"] if c["kind"] == "op"
    }
    for backend in ("auto", "naive", "torch"):
        for title in ("[0,1]", "[-1,1]"):
            for op in ("delta_rule", "selective_scan"):
                assert (f"{op} {title}", backend, "float32") in checked
    every = [r for check in found["checks"] for r in check["results"]]
    assert any(r["check"].startswith("all_gradients") for r in every)
    layers = {check["subject"] for check in found["checks"] if check["kind"] == "layer"}
    titles = {c.title for config in MIXERS.values() for c in config.variants()}
    assert all(any(name.startswith(title) for name in layers) for title in titles)

    timed = {timing["implementation"] for timing in found["timings"]}
    assert {OURS, f"{OURS}, naive", f"{OURS}, torch"} <= timed
    assert all(timing["milliseconds"] > 0 for timing in found["timings"])
    assert "Ops on" in result.err
    assert "All results: statetrack-selftest-cpu.json" in result.err


def test_a_wrong_layer_fails(command, tmp_path, monkeypatch):
    right = DeltaNet.step

    def step(self, x_t, state):
        y, state = right(self, x_t, state)
        return 1.01 * y, state

    monkeypatch.setattr(DeltaNet, "step", step)
    file = tmp_path / "file.json"
    monkeypatch.setattr("statetrack.selftest.run.op_tests", lambda quick: [])
    result = command("selftest", "--device", "cpu", "--quick", "--no-timings", "--out", file)
    assert result.code == 1
    assert "DeltaNet [0,1] (num_heads 3), auto, float32: steps failed: error 1.0e-02" in result.out
    assert json.loads(file.read_text())["failed"] > 0


@pytest.mark.parametrize("device", ["cuda", "cuda:3", "tpu"])
def test_a_device_that_is_not_there(refused, device, monkeypatch):
    monkeypatch.setattr(devices, "count_gpus", lambda: 0)
    refused("selftest", "--device", device, says=[device])


def test_a_file_that_cannot_be_written(refused):
    refused("selftest", "--out", "missing/file.json", says=["missing/file.json"])


# -- ops ------------------------------------------------------------------------------------------


def test_every_public_op_is_tested():
    from statetrack import ops as public

    names = {test.name.split(" ")[0].rstrip(",") for test in op_tests.op_tests(quick=True)}
    assert set(public.__all__) - {"SLSTMMemory"} <= names


def made_up(op, **others):
    test = OpTest("made up", "D 4", op, swiglu_naive, {"x": draw(0)(3, 4)}, **others)
    return list(check_ops(CPU, [test], [torch.float32]))


def test_a_wrong_gradient_is_found():
    def op(x, backend):
        return (x - 1e-3 * (x - x.detach()))[..., :2] if backend == "auto" else swiglu_naive(x)

    by_backend = {outcome.backend: outcome for outcome in made_up(op)}
    assert by_backend["auto"].status == "failed"
    assert by_backend["torch"].status == "passed"


def test_a_gradient_that_is_off_although_the_value_is_right():
    def op(x, backend):
        y = swiglu_naive(x)
        return y + 0.01 * (y - y.detach())

    for outcome in made_up(op):
        found = {result.check: result.status for result in outcome.results}
        assert found == {"values, D 4": "passed", "all_gradients, D 4": "failed"}


def test_what_cannot_be_run_says_why():
    def op(x, backend):
        if backend == "fla":
            raise UserError("made up cannot use its backend fla: it is too small")
        if backend == "triton":
            raise RuntimeError("out of memory\nmore")
        return swiglu_naive(x)

    by_backend = {outcome.backend: outcome for outcome in made_up(op)}
    assert by_backend["fla"].status == "unsupported"
    assert by_backend["fla"].worst.detail.endswith("it is too small")
    assert by_backend["triton"].status == "failed"
    assert by_backend["triton"].worst.detail == "RuntimeError: out of memory"


def test_fla_is_not_run_in_the_interpreter(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    backends = [outcome.backend for outcome in made_up(lambda x, backend: swiglu_naive(x))]
    assert backends == ["auto", "naive", "torch", "native", "triton"]


def test_ops_on_another_device():
    """What is left on the CPU, or mixed with it, raises an error there."""
    wanted = ("delta_rule [-1,1]", "selective_scan [-1,1]", "delta_product_step", "cross_entropy")
    tests = [
        t for t in op_tests.op_tests(quick=True) if t.name in wanted and "packed" not in t.case
    ]
    with simulated_device() as device:
        status = {
            (o.subject, o.backend): o.status for o in check_ops(device, tests, [torch.bfloat16])
        }
    for subject in wanted:
        assert status[subject, "auto"] == "passed"
        assert status[subject, "native"] == "unsupported"
    assert status["delta_rule [-1,1]", "torch"] == "passed"


def test_layers_on_another_device():
    tests = [t for t in layer_tests(quick=True) if t[0] == "Mamba [-1,1] (dt_rank 2)"]
    with simulated_device() as device:
        (outcome,) = check_layers(device, tests, quick=True)
    status = {result.check: result.status for result in outcome.results}
    assert (status["pass"], status["steps"]) == ("passed", "passed")


def test_layers_of_one_range():
    small = [test for test in layer_tests(quick=True) if test[0].startswith("Mamba [-1,1]")]
    outcomes = list(check_layers(CPU, small, quick=True))
    assert [(o.dtype, o.status) for o in outcomes] == [
        ("float32", "passed"),
        ("bfloat16", "passed"),
    ]
    assert [r.check for r in outcomes[0].results] == ["pass", "steps", "packed"]


# -- timings --------------------------------------------------------------------------------------


def test_timings_compare_and_go_on_after_failures():
    x = {"x": torch.ones(3)}
    candidates = {
        OURS: partial(differentiated, lambda x: x**2, x),
        "wrong": partial(differentiated, lambda x: x**3, x),
        "broken": lambda: differentiated(None, {})(),
        "right": partial(differentiated, lambda x: x * x, x),
    }
    ours, wrong, broken, right = time_candidates("power", candidates, CPU, rounds=1)
    assert ours.ratio is None
    assert wrong.error == pytest.approx(0.5)  # of the gradient, 3 instead of 2
    assert right.error == 0
    assert right.ratio == pytest.approx(right.milliseconds / ours.milliseconds)
    assert broken.milliseconds is None
    assert "TypeError" in broken.detail
    assert broken.row()[2] == "not timed"


def test_a_time_with_a_result_that_is_not_finite_can_be_written():
    found = Timing("scan", "torch", 1.0, ratio=1.0, error=float("inf")).as_json()
    assert json.loads(json.dumps(found, allow_nan=False))["error"] is None
    assert found["detail"] == "not finite"


def test_candidates_on_a_gpu(monkeypatch):
    """Other packages are candidates there, and what is missing says how to install it."""
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    candidates_of = {}

    def record(what, candidates, device, rounds, comparable=True):
        candidates_of[what.rpartition(", 1 x")[0]] = candidates
        return []

    monkeypatch.setattr(speed, "time_candidates", record)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *args: self)
    size = Size(1, 4, 2, 4, 4, 8, (torch.float32,), 1, compiled=True)
    list(speed.time_ops(torch.device("cuda"), size))
    list(speed.time_layers(torch.device("cuda"), size))
    assert "torch.compile of the definition" in candidates_of["delta_rule"]
    with pytest.raises(UserError, match="pip install mamba-ssm"):
        candidates_of["selective_scan [0,1]"]["mamba-ssm"]()
    assert "mamba-ssm" not in candidates_of["selective_scan [-1,1]"]
    with pytest.raises(UserError, match="flash-linear-attention is not installed"):
        peers.fla_layer("delta_net", 8, 2)
    assert "flash-linear-attention" in candidates_of["DeltaNet [-1,1]"]
    assert "flash-linear-attention" not in candidates_of["sLSTM"]


def test_sizes():
    assert len(speed.sizes(torch.device("cuda"), quick=False)) == 2
    assert speed.sizes(torch.device("cuda"), quick=True) == speed.sizes(CPU, quick=True)
