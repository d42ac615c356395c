"""Transitions that are read from a model while it runs, of this package and of transformers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from statetrack import AttentionConfig, ModelConfig, SLSTMConfig
from statetrack.errors import UserError
from statetrack.layers import HouseholderProduct, Transition
from statetrack.lm.transitions import linear_layers, visit_transitions
from statetrack.models.convert import convert
from tests.lm.common import HYBRID, VOCAB, causal_model
from tests.lm.evaluation import hf_model


def read(model: PreTrainedModel, tokens: Tensor) -> list[Transition]:
    layers = linear_layers(model)
    found: dict[int, Transition] = {}
    visit_transitions(model, layers, tokens, found.__setitem__)
    assert sorted(found) == list(range(len(layers)))
    return [found[i] for i in range(len(layers))]


TOKENS = torch.randint(1, VOCAB, (1, 12), generator=torch.Generator().manual_seed(0))


def test_of_a_hybrid_of_this_package() -> None:
    model = causal_model(HYBRID)
    expected = [t for t in model.sequence_model.transitions(TOKENS) if t is not None]
    assert [layer.number for layer in linear_layers(model)] == [0, 1]  # 2 is attention
    assert [layer.title for layer in linear_layers(model)] == ["DeltaNet [-1,1]", "Mamba [0,1]"]
    for ours, theirs in zip(read(model, TOKENS), expected, strict=True):
        torch.testing.assert_close(ours.dense(), theirs.dense())


@pytest.mark.parametrize("name", ["mamba", "mamba2", "olmo_hybrid", "qwen3_5", "qwen3_5_moe"])
def test_of_transformers_as_of_the_converted_model(name: str) -> None:
    model = hf_model(name)
    converted = convert(model.config.to_dict(), model.state_dict())
    expected = [t for t in converted.transitions(TOKENS) if t is not None]
    for ours, theirs in zip(read(model, TOKENS), expected, strict=True):
        torch.testing.assert_close(ours.dense(), theirs.dense(), rtol=1e-4, atol=1e-5)


def test_of_qwen3_next_as_its_layer_computes_them() -> None:
    model, seen = hf_model("qwen3_next"), []

    def hook(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = args[0] if args else kwargs["hidden_states"]
        projected = layer.in_proj_qkvz(x), layer.in_proj_ba(x)
        q, k, v, _, b, a = layer.fix_query_key_value_ordering(*projected)
        mixed = torch.cat([part.flatten(2) for part in (q, k, v)], -1).mT
        mixed = F.silu(layer.conv1d(mixed)[..., : x.shape[1]]).mT
        k = mixed.split([layer.key_dim, layer.key_dim, layer.value_dim], -1)[1]
        k = k.unflatten(-1, (-1, layer.head_k_dim))
        k = k * (k.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
        gate = (-layer.A_log.exp() * F.softplus(a + layer.dt_bias)).exp()
        seen.append((k.repeat_interleave(2, 2), b.sigmoid(), gate))

    (layer,) = (m for m in model.modules() if isinstance(m, Qwen3NextGatedDeltaNet))
    layer.register_forward_pre_hook(hook, with_kwargs=True)
    (found,) = read(model, TOKENS)
    assert isinstance(found, HouseholderProduct)
    assert found.decay is not None
    (k, beta, gate), *_ = seen
    torch.testing.assert_close(found.beta[..., 0], beta)
    torch.testing.assert_close(found.decay, gate)
    torch.testing.assert_close(found.k[..., 0, :], k, rtol=1e-4, atol=1e-5)


def test_gates_are_not_rounded_to_the_dtype_of_the_model() -> None:
    model = causal_model(HYBRID)
    wide, narrow = read(model, TOKENS), read(copy.deepcopy(model).bfloat16(), TOKENS)
    for a, b in zip(wide, narrow, strict=True):
        assert b.dense().dtype == torch.float32
        assert (a.dense() - b.dense()).abs().max() < 0.2
    assert next(model.parameters()).dtype == torch.float32


def test_nothing_is_left_on_the_model() -> None:
    model = hf_model("mamba")
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    read(model, TOKENS)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_weights_are_shared_where_the_layout_is_the_same() -> None:
    model = hf_model("mamba")
    shared = convert(model.config.to_dict(), model.state_dict(), share=True)
    assert shared.embedding.weight.data_ptr() == model.backbone.embeddings.weight.data_ptr()
    assert shared.head.weight is shared.embedding.weight
    assert shared.num_parameters() == model.num_parameters()
    copied = convert(model.config.to_dict(), model.state_dict())
    assert copied.embedding.weight.data_ptr() != model.backbone.embeddings.weight.data_ptr()
    torch.testing.assert_close(shared(TOKENS)[0], copied(TOKENS)[0])
    layer = linear_layers(model)[0]
    mixer = layer.mixer()
    assert dict(mixer.named_parameters())["A_log"].data_ptr() == layer.module.A_log.data_ptr()


@pytest.mark.parametrize("mixer", [AttentionConfig(), SLSTMConfig()], ids=lambda m: m.name)
def test_models_without_linear_layers_are_refused(mixer: Any) -> None:
    model = causal_model(ModelConfig(vocab_size=VOCAB, hidden_size=16, mixer=mixer))
    with pytest.raises(UserError, match="has no linear recurrent layers"):
        linear_layers(model)


def test_an_unknown_tensor_of_a_layer_is_refused() -> None:
    model = hf_model("mamba")
    model.backbone.layers[0].mixer.extra = torch.nn.Parameter(torch.ones(1))
    with pytest.raises(UserError, match="extra"):
        linear_layers(model)
