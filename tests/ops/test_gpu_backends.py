"""Which backend serves tensors on a GPU: by device and dtype, on a machine that needs have none."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from statetrack import UserError
from statetrack.kernels import gpu
from statetrack.ops import delta_rule, gated_linear_attention
from statetrack.ops.backends import choose, full_precision
from statetrack.ops.recurrence import fla
from statetrack.ops.recurrence.fla_limits import unfit_fla
from tests.ops.inputs import delta_rule_inputs, linear_attention_inputs

ALL = ("naive", "torch", "native", "fla", "triton")


def on_gpu(dtype: torch.dtype = torch.bfloat16) -> Any:
    """What `choose` asks of a tensor."""
    return SimpleNamespace(is_cuda=True, is_cpu=False, dtype=dtype, device="cuda:0")


def on_mps() -> Any:
    return SimpleNamespace(is_cuda=False, is_cpu=False, dtype=torch.float32, device="mps:0")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The GPU packages that are installed, to be changed by a test."""
    names = {"triton", "fla"}

    def missing(backend: str) -> str | None:
        return None if backend in names else gpu.INSTALL[backend]

    monkeypatch.setattr(gpu, "missing", missing)
    gpu.warn_missing.cache_clear()
    yield names
    gpu.warn_missing.cache_clear()


@pytest.mark.usefixtures("installed")
class TestAuto:
    def test_the_first_that_the_op_has(self) -> None:
        assert choose("op", "auto", ALL, on_gpu()) == "fla"
        assert choose("op", "auto", ("naive", "torch", "native", "triton"), on_gpu()) == "triton"
        assert choose("op", "auto", ("naive", "torch", "native"), on_gpu()) == "torch"
        assert choose("op", "auto", ("naive", "native"), on_gpu()) == "naive"

    def test_the_first_that_is_fit(self) -> None:
        unfit = {"fla": "float32"}
        assert choose("op", "auto", ALL, on_gpu(), unfit=unfit) == "triton"
        assert choose("op", "auto", ALL, on_gpu(), unfit=unfit | {"triton": "size"}) == "torch"

    def test_float64(self) -> None:
        assert choose("op", "auto", ALL, on_gpu(), on_gpu(torch.float64)) == "torch"

    def test_other_devices(self) -> None:
        assert choose("op", "auto", ALL, on_mps()) == "torch"
        assert choose("op", "auto", ALL, torch.zeros(1), None) in ("native", "torch")

    def test_transforms(self) -> None:
        found = []

        def f(x: Tensor) -> Tensor:
            found.append(choose("op", "auto", ALL, on_gpu()))
            return x

        torch.func.vmap(f)(torch.zeros(2))
        assert found == ["torch"]


def test_missing_packages_are_named_once(installed: set[str]) -> None:
    installed.clear()
    with pytest.warns(UserWarning, match="slower") as record:
        assert choose("op", "auto", ALL, on_gpu()) == "torch"
    texts = [str(w.message) for w in record]
    assert texts == [
        "ops on GPU tensors are slower than they could be without fla and triton: "
        'pip install "statetrack[gpu]"'
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose("op", "auto", ALL, on_gpu()) == "torch"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("asked", ["auto", "fla"])
def test_an_untested_version_is_warned_of_once(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.warn_untested.cache_clear()
    monkeypatch.setattr(gpu, "UNTESTED", {"triton": "triton 9 is not tested"})
    with pytest.warns(UserWarning, match="may fail or be wrong: triton 9 is not tested"):
        assert choose("op", asked, ALL, on_gpu()) == "fla"
    assert choose("op", "triton", ALL, on_gpu()) == "triton"  # warnings are errors here
    gpu.warn_untested.cache_clear()


def test_what_could_not_serve_a_call_is_not_missed(installed: set[str]) -> None:
    installed.discard("fla")
    assert choose("op", "auto", ALL, on_gpu(), unfit={"fla": "float32"}) == "triton"


@pytest.mark.parametrize(
    ("tensor", "unfit", "reason"),
    [
        (on_gpu(torch.float64), {}, "it does not compute in float64"),
        (on_mps(), {}, r"it needs tensors on a GPU \(CUDA or ROCm\); got mps:0"),
        (torch.zeros(1), {}, r"it needs tensors on a GPU \(CUDA or ROCm\); got cpu"),
        (on_gpu(), {"fla": "it is too hot"}, "it is too hot"),
    ],
)
@pytest.mark.usefixtures("installed")
def test_forced(
    tensor: Any, unfit: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert choose("op", "fla", ALL, on_gpu()) == "fla"
    with pytest.raises(UserError, match=f"op cannot use its backend fla: {reason}"):
        choose("op", "fla", ALL, tensor, unfit=unfit)


def test_forced_but_missing(installed: set[str]) -> None:
    installed.discard("fla")
    with pytest.raises(UserError) as error:
        choose("op", "fla", ALL, on_gpu())
    assert str(error.value).endswith(f"fla: it is not installed: {gpu.INSTALL['fla']}")


# -- flash-linear-attention -----------------------------------------------------------------------

HALF, SINGLE = torch.bfloat16, torch.float32


def reason(
    dtypes: tuple[torch.dtype, ...] = (HALF, HALF, HALF),
    sizes: tuple[int, int] = (16, 16),
    gate: Tensor | None = None,
    T: int = 65,
    bounds: list[int] | None = None,
    log_gate: bool = False,
) -> str | None:
    K, V = sizes
    q, k, v = (
        torch.zeros(1, T, 1, size, dtype=dtype)
        for size, dtype in zip((K, K, V), dtypes, strict=True)
    )
    return unfit_fla(q, k, v, gate, bounds, log_gate).get("fla")


@pytest.mark.parametrize(
    "dtypes",
    [
        (HALF, HALF, HALF),
        (torch.float16,) * 3,
        (SINGLE, SINGLE, HALF),  # what DeltaNet hands over under autocast
        (HALF, HALF, SINGLE),  # Mamba-2
        (HALF, SINGLE, SINGLE),  # mLSTM
    ],
    ids=str,
)
def test_fla_takes_half_precision(dtypes: tuple[torch.dtype, ...]) -> None:
    assert reason(dtypes) is None


def test_fla_takes_no_float32() -> None:
    assert reason((SINGLE,) * 3) == (
        "it computes in half precision, and none of q, k and v is bfloat16 or float16"
    )
    assert reason((HALF, SINGLE, torch.float16)) == "q, k and v mix bfloat16 and float16"


def test_head_sizes_of_fla() -> None:
    assert reason(sizes=(256, 512)) is reason(sizes=(16, 17)) is None
    for sizes in ((8, 16), (16, 8), (257, 16)):
        text = f"keys of 16 to 256 channels and values of at least 16; got {sizes[0]} and "
        assert text in str(reason(sizes=sizes))


def test_signed_gates_of_fla() -> None:
    channels = torch.zeros(1, 65, 1, 16, requires_grad=True)
    head = torch.zeros(1, 65, 1, requires_grad=True)
    assert "signed gates on channels" in str(reason(gate=channels))
    with torch.no_grad():
        assert reason(gate=channels) is None
    assert reason(gate=channels.detach()) is None
    assert reason(gate=channels, log_gate=True) is None
    assert reason(gate=channels, T=64) is reason(gate=channels, bounds=[0, 64, 65]) is None
    assert reason(gate=head) is None


def test_forced_fla_says_why_not() -> None:
    inputs = {name: x.float() for name, x in delta_rule_inputs(1, 5, 1, 16, 16).items()}
    with pytest.raises(UserError, match="delta_rule cannot use its backend fla: it computes in"):
        delta_rule(**inputs, backend="fla")


class OnGpu(Tensor):
    """A tensor that says that it is on a GPU."""

    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("gate", ["g", "decay"])
def test_ops_take_fla_by_dtype(
    gate: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def recurrence_fla(*given: Any) -> tuple[Tensor, None]:
        calls.append(given)
        return given[2], None

    monkeypatch.setattr(fla, "recurrence_fla", recurrence_fla)
    monkeypatch.setattr(gpu, "missing", lambda name: None)
    monkeypatch.setattr(gpu, "refusal", lambda name, *_: None if name == "fla" else "not here")
    inputs = linear_attention_inputs(1, 5, 1, 16, 16, gate=gate)
    on_gpu = {name: x.to(dtype).as_subclass(OnGpu) for name, x in inputs.items()}
    o, _ = gated_linear_attention(**on_gpu)
    assert o.dtype == dtype
    assert len(calls) == (dtype is not torch.float32)
    if calls:
        *_, bounds, scale, factors, log_gate, output_final_state = calls[0]
        assert (bounds, scale, factors) == (None, 0.25, 1)
        assert (log_gate, output_final_state) == (gate == "g", False)


def test_no_autocast_inside_of_a_recurrence_on_a_gpu() -> None:
    like: Any = SimpleNamespace(device=torch.device("cuda"))
    torch.set_autocast_enabled("cuda", True)  # `torch.autocast` refuses without a GPU
    try:
        with full_precision(like):
            assert not torch.is_autocast_enabled("cuda")
        assert torch.is_autocast_enabled("cuda")
    finally:
        torch.set_autocast_enabled("cuda", False)
