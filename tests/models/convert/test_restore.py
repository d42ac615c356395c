"""Converted models written back, in the format of flash-linear-attention and as Mamba2."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from statetrack.errors import UserError
from statetrack.models.convert import convert
from statetrack.models.convert.restore import restore
from statetrack.testing.inputs import draw
from tests.models.convert import test_gla, test_mamba2
from tests.models.convert.test_gated_delta_net import WIDTH, K, V, fla_state

GATE = ("A_log", "dt_bias", "a_proj.weight")


def fla_model(
    kind: str, tied: bool = False, **options: Any
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A checkpoint of fla: its configuration and random tensors."""
    normal = draw(1)
    config = {
        "model_type": kind, "vocab_size": 7, "hidden_size": WIDTH, "num_hidden_layers": 2,
        "num_heads": 2, "intermediate_size": 6, "tie_word_embeddings": tied,
        **({} if kind == "delta_net" else {"head_dim": K, "expand_v": V / K}), **options,
    }  # fmt: skip
    layer = fla_state(2, 2, n=options.get("num_householder", 1))
    if kind == "delta_net":
        config |= {"expand_k": 2 * K / WIDTH, "expand_v": 2 * V / WIDTH}
        del layer["g_proj.weight"]
    if kind == "delta_net" or not config.get("use_forget_gate", True):
        layer = {name: tensor for name, tensor in layer.items() if name not in GATE}
    state = {"model.embeddings.weight": normal(7, WIDTH), "model.norm.weight": normal(WIDTH)}
    for index in range(2):
        block = {f"attn.{name}": tensor + index for name, tensor in layer.items()}
        block |= {f"{part}_norm.weight": normal(WIDTH) for part in ("attn", "mlp")}
        block |= {f"mlp.{part}_proj.weight": normal(6, WIDTH) for part in ("gate", "up")}
        block["mlp.down_proj.weight"] = normal(WIDTH, 6)
        state |= {f"model.layers.{index}.{name}": tensor for name, tensor in block.items()}
    state["lm_head.weight"] = state["model.embeddings.weight" if tied else "model.norm.weight"]
    if not tied:
        state["lm_head.weight"] = normal(7, WIDTH)
    return config, state


CHECKPOINTS = {
    "delta_net": fla_model("delta_net"),
    "delta_net, tied": fla_model("delta_net", tied=True),
    "gated_deltanet": fla_model("gated_deltanet"),
    "gated_deltaproduct": fla_model("gated_deltaproduct", num_householder=3, use_forget_gate=True),
    "deltaproduct": fla_model("gated_deltaproduct", num_householder=2, use_forget_gate=False),
    "gla": (test_gla.CONFIG, test_gla.state("g_norm.weight")),
    "mamba2": (test_mamba2.CONFIG, test_mamba2.weights()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_converted_model_is_written_back(name: str, dtype: torch.dtype) -> None:
    config, state = CHECKPOINTS[name]
    state = {name: tensor.to(dtype) for name, tensor in state.items()}
    written, tensors = restore(convert(config, state), config, state)
    assert written == config
    assert tensors.keys() == state.keys()
    for key, tensor in tensors.items():
        assert tensor.dtype == dtype
        assert torch.equal(tensor, state[key]), key


def test_weights_that_were_trained_since() -> None:
    config, state = CHECKPOINTS["gated_deltanet"]
    model = convert(config, state)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight))
    again = convert(config, restore(model, config, state)[1])
    for name, weight in again.state_dict().items():
        assert torch.equal(weight, model.state_dict()[name]), name


def test_the_range_is_written_where_the_package_has_it() -> None:
    config, state = CHECKPOINTS["delta_net"]
    written, tensors = restore(convert(config, state, allow_neg_eigval=True), config, state)
    assert written == {**config, "allow_neg_eigval": True}
    assert convert(written, tensors).config.mixers[0].allow_neg_eigval


@pytest.mark.parametrize("name", ["gla", "mamba2"])
def test_a_range_that_the_package_does_not_have(name: str) -> None:
    config, state = CHECKPOINTS[name]
    with pytest.raises(UserError, match="allow_neg_eigval of the model is True"):
        restore(convert(config, state, allow_neg_eigval=True), config, state)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"norm_eps": 1e-3}, "output_norm_eps of the model is 1e-06"),
        ({"num_heads": 1}, "num_heads of the model is 2"),
    ],
)
def test_options_of_another_model(changed: dict[str, Any], says: str) -> None:
    config, state = CHECKPOINTS["delta_net"]
    with pytest.raises(UserError, match=says):
        restore(convert(config, state), {**config, **changed}, state)


def test_other_sizes() -> None:
    config, state = CHECKPOINTS["delta_net"]
    wider = {
        name: torch.cat([tensor, tensor], int("down" in name)) if "mlp." in name else tensor
        for name, tensor in state.items()
    }
    with pytest.raises(UserError, match=r"mlp.down.weight of the model is \[10, 6\]"):
        restore(convert(config, state), {**config, "intermediate_size": 12}, wider)


def test_other_layers() -> None:
    (config, state), other = CHECKPOINTS["gated_deltanet"], CHECKPOINTS["delta_net"]
    with pytest.raises(UserError, match="mixer of the model is"):
        restore(convert(*other), config, state)
