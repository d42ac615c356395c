"""`use_native_kernels` changes no number: models of transformers before and after."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from statetrack import UserError
from statetrack.integrations import hf_functions
from statetrack.integrations.hf import HF_LAYERS, NativeKernels, use_native_kernels
from tests.docs.pages import blocks
from tests.ops.common import assert_close
from tests.peers.common import SINGLE, assert_same_gradients, logits_and_gradients
from tests.peers.hf import models


@pytest.fixture(params=list(models.MODELS))
def model(request: Any) -> Any:
    return models.MODELS[request.param]()


def assert_unchanged(model: Any, x: Tensor, **options: Any) -> None:
    """Logits and gradients stay as they are."""
    expected, their_gradients = logits_and_gradients(model, lambda: model(x, **options).logits)
    with use_native_kernels(model):
        logits, gradients = logits_and_gradients(model, lambda: model(x, **options).logits)
    assert_close(logits, expected, SINGLE)
    assert_same_gradients(gradients, their_gradients)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("length", [1, 2, 70])
def test_logits_and_gradients(model: Any, length: int, training: bool) -> None:
    model.train(training)
    x = models.tokens(3, length)
    assert_unchanged(model, x, use_cache=False)


def test_a_mask(model: Any) -> None:
    x = models.tokens(2, 20)
    mask = torch.ones_like(x)
    mask[0, :6] = 0
    assert_unchanged(model, x, attention_mask=mask, use_cache=False)


@torch.no_grad()
def test_the_cache(model: Any) -> None:
    """After a beginning, single tokens and several at once."""
    x = models.tokens(2, 18)
    name = "cache_params" if hasattr(model, "backbone") else "past_key_values"

    def logits() -> list[Tensor]:
        found, cache = [], None
        for start, stop in [(0, 6), (6, 7), (7, 8), (8, 13), (13, 14)]:
            out = model(x[:, start:stop], use_cache=True, **{name: cache})
            cache = out[name]
            found.append(out.logits)
        return found

    before = logits()
    with use_native_kernels(model):
        for mine, theirs in zip(logits(), before, strict=True):
            assert_close(mine, theirs, SINGLE)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_generation(model: Any, options: dict[str, Any]) -> None:
    x = models.tokens(2, 9)
    mask = torch.ones_like(x)
    mask[1, :3] = 0

    def generate() -> Tensor:
        return model.generate(
            x, attention_mask=mask, max_new_tokens=30, do_sample=False, pad_token_id=0, **options
        )

    before = generate()
    with use_native_kernels(model):
        assert torch.equal(generate(), before)


def test_a_step_with_gradients(model: Any) -> None:
    """The cache is then part of what is differentiated."""
    x = models.tokens(2, 5)
    name = "cache_params" if hasattr(model, "backbone") else "past_key_values"

    def step() -> Tensor:
        with torch.no_grad():
            cache = model(x[:, :4], use_cache=True)[name]
        return model(x[:, 4:], use_cache=True, **{name: cache}).logits

    before = step()
    with use_native_kernels(model):
        logits, gradients = logits_and_gradients(model, step)
        assert_close(logits, before, SINGLE)
        assert any(g.abs().sum() > 0 for n, g in gradients.items() if n.endswith("A_log"))


def test_bfloat16(model: Any) -> None:
    """As near to float32 as transformers itself is."""
    x = models.tokens(2, 40)
    exact = model(x, use_cache=False).logits
    model.bfloat16()
    theirs = model(x, use_cache=False).logits.float()
    with use_native_kernels(model):
        mine = model(x, use_cache=False).logits.float()
    assert (mine - exact).norm() <= 1.5 * (theirs - exact).norm()


def test_our_ops_run(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    for name in ("selective_scan", "gated_linear_attention", "delta_rule"):
        op = getattr(hf_functions, name)

        def counted(*args: Any, op: Any = op, **options: Any) -> Any:
            called.append(op)
            return op(*args, **options)

        monkeypatch.setattr(hf_functions, name, counted)
    x = models.tokens(1, 8)
    model(x, use_cache=False)
    assert not called
    with use_native_kernels(model) as handle:
        model(x, use_cache=False)
        assert len(called) == len(handle.layers)


def test_undo(model: Any) -> None:
    other = copy.deepcopy(model)
    x = models.tokens(1, 8)
    before = model(x, use_cache=False).logits
    handle = use_native_kernels(model)
    assert all("forward" in vars(layer) for layer in handle.layers)
    assert not any("forward" in vars(m) for m in other.modules())
    handle.undo()
    handle.undo()
    assert not any("forward" in vars(m) for m in model.modules())
    assert torch.equal(model(x, use_cache=False).logits, before)


def test_a_copy_keeps_the_kernels(model: Any) -> None:
    use_native_kernels(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for p in twin.parameters():
            p.zero_()
    assert twin(models.tokens(1, 8), use_cache=False).logits.abs().sum() == 0


def test_errors(model: Any) -> None:
    with use_native_kernels(model) as handle:
        assert isinstance(handle, NativeKernels)
        with pytest.raises(UserError, match="undo that first"):
            use_native_kernels(model)
    with pytest.raises(UserError, match="not on the CPU"):
        use_native_kernels(model.to("meta"))


def test_other_models() -> None:
    config = transformers.LlamaConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1,
    )  # fmt: skip
    with pytest.raises(UserError, match=r"LlamaForCausalLM has no layer .* MambaMixer, "):
        use_native_kernels(transformers.LlamaForCausalLM(config))
    with pytest.raises(UserError, match="the activation 'relu', not silu, swish"):
        use_native_kernels(models.mamba(hidden_act="relu"))


def test_packed_sequences_are_refused() -> None:
    q = torch.ones(1, 4, 1, 2)
    bounds = torch.tensor([0, 2, 4])
    with pytest.raises(UserError, match="no packed sequences"):
        hf_functions.gated_delta_rule(q, q, q, q[..., 0], q[..., 0], cu_seqlens=bounds)


def test_another_version_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    path = next(path for path in HF_LAYERS if path.endswith("MambaMixer"))
    monkeypatch.setitem(HF_LAYERS, path, {"no_such_function": lambda: None})
    with pytest.raises(UserError, match=r"transformers .* no_such_function"):
        use_native_kernels(models.mamba())


def test_the_page() -> None:
    """The code of docs/other-packages.md."""
    model = models.mamba()
    (code,) = [
        b.code for b in blocks("docs/other-packages.md") if "use_native_kernels(model)" in b.code
    ]
    exec(code, {"model": model})
    assert not any("forward" in vars(module) for module in model.modules())  # undone at the end
