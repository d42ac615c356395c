"""Read A(x_t) from every linear layer of a model while it reads a text.

Layers of this package have `transitions`. A layer of transformers is converted to one of ours when
it is asked for its transitions; the weights are shared as far as names and layout allow. The model
itself runs unchanged, so its other modules (attention, experts, norms) may be anything.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.models.mamba.modeling_mamba import MambaMixer
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
from transformers.models.olmo_hybrid.modeling_olmo_hybrid import OlmoHybridGatedDeltaNet
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeGatedDeltaNet
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from statetrack.config import one_of
from statetrack.errors import UserError
from statetrack.layers import (
    GatedDeltaNetConfig,
    Mamba2Config,
    MambaConfig,
    MixerConfig,
    Transition,
)
from statetrack.layers.base import Mixer
from statetrack.models.convert.checkpoint import Tensors
from statetrack.models.convert.gated_delta_net import (
    delta_rule_mixer,
    qwen3_5_mixer,
    qwen3_next_mixer,
)
from statetrack.models.convert.mamba import mamba2_mixer, mamba_mixer, step_limits
from statetrack.models.convert.weights import Weights, wide_dtype


class LinearLayer(NamedTuple):
    """A layer of a model with transitions."""

    number: int  # of its block: others may be attention
    title: str
    module: nn.Module
    mixer: Callable[[], Mixer]  # the layer as one of ours, in float32 or wider


Visit = Callable[[int, Transition], None]  # with the index of the layer


def linear_layers(model: nn.Module) -> list[LinearLayer]:
    """List the layers of a model that have transitions, in order.

    Raises:
        UserError: there are none.
    """
    found = []
    for name, module in model.named_modules():
        make = MAKERS.get(type(module))
        mixer = None
        if isinstance(module, Mixer):
            mixer = partial(_wide, module)
        elif make is not None:
            mixer = partial(make, module)
        if mixer is not None:
            config = module.config if isinstance(module, Mixer) else mixer().config
            assert isinstance(config, MixerConfig)
            number = re.findall(r"\d+", name)
            found.append(LinearLayer(int(number[-1]) if number else 0, config.title, module, mixer))
    linear = [layer for layer in found if _is_linear(layer)]
    if not linear:
        known = ", ".join(sorted(kind.__name__ for kind in MAKERS))
        raise UserError(
            f"{type(model).__name__} has no linear recurrent layers; transitions are read from "
            f"layers of this package and from {known}"
        )
    return linear


@torch.no_grad()
def visit_transitions(
    model: nn.Module, layers: list[LinearLayer], tokens: Tensor, visit: Visit
) -> None:
    """Run a model on tokens [1, T]; pass each layer's transitions to `visit` before it runs."""

    def before(index: int, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = args[0] if args else kwargs["hidden_states"]
        mixer = layers[index].mixer()
        transition = mixer.transitions(x.to(next(mixer.parameters()).dtype))
        assert transition is not None
        visit(index, transition)

    with _hooks(layers, before):
        model(tokens, use_cache=False)


@contextmanager
def _hooks(layers: list[LinearLayer], before: Callable[..., None]) -> Iterator[None]:
    handles = [
        layer.module.register_forward_pre_hook(partial(before, i), with_kwargs=True)
        for i, layer in enumerate(layers)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def _is_linear(layer: LinearLayer) -> bool:
    mixer = layer.mixer()
    one = next(mixer.parameters()).new_zeros(1, 1, mixer.hidden_size)
    return mixer.transitions(one) is not None


def _wide(mixer: Mixer) -> Mixer:
    """The layer in float32 at least: bf16 would round a gate of 0.999 to 1."""
    dtype = next(mixer.parameters()).dtype
    wide = torch.promote_types(dtype, torch.float32)
    return mixer if dtype == wide else copy.deepcopy(mixer).to(wide)


# -- layers of transformers ------------------------------------------------------------------------


def _mamba(layer: MambaMixer) -> Mixer:
    config = MambaConfig(
        d_state=layer.ssm_state_size,
        expand=layer.intermediate_size // layer.hidden_size,
        conv_size=layer.conv_kernel_size,
        dt_rank=layer.time_step_rank,
    )
    return _built(layer, config, mamba_mixer)


def _mamba2(layer: Mamba2Mixer) -> Mixer:
    low, high = step_limits(layer.time_step_limit)
    config = Mamba2Config(
        d_state=layer.ssm_state_size,
        expand=layer.intermediate_size // layer.hidden_size,
        head_dim=layer.head_dim,
        n_groups=layer.n_groups,
        conv_size=layer.conv_kernel_size,
        dt_limit_min=low,
        dt_limit_max=high,
        output_norm_eps=layer.layer_norm_epsilon,
    )
    return _built(layer, config, mamba2_mixer)


def _olmo_hybrid(layer: OlmoHybridGatedDeltaNet) -> Mixer:
    config = _gated_delta_net(layer, allow_neg_eigval=layer.allow_neg_eigval)
    return _built(layer, config, delta_rule_mixer)


def _qwen3_next(layer: Qwen3NextGatedDeltaNet) -> Mixer:
    rename = partial(qwen3_next_mixer, num_heads=layer.num_k_heads)
    return _built(layer, _gated_delta_net(layer), rename)


def _qwen3_5(layer: Qwen3_5GatedDeltaNet | Qwen3_5MoeGatedDeltaNet) -> Mixer:
    return _built(layer, _gated_delta_net(layer), qwen3_5_mixer)


def _gated_delta_net(layer: Any, **options: Any) -> GatedDeltaNetConfig:
    return GatedDeltaNetConfig(
        num_heads=layer.num_k_heads,
        num_v_heads=layer.num_v_heads,
        expand_k=layer.key_dim / layer.hidden_size,
        expand_v=layer.value_dim / layer.hidden_size,
        conv_size=layer.conv_kernel_size,
        **options,
    )


MAKERS: dict[type[nn.Module], Callable[[Any], Mixer]] = {
    MambaMixer: _mamba,
    Mamba2Mixer: _mamba2,
    OlmoHybridGatedDeltaNet: _olmo_hybrid,
    Qwen3NextGatedDeltaNet: _qwen3_next,
    Qwen3_5GatedDeltaNet: _qwen3_5,
    Qwen3_5MoeGatedDeltaNet: _qwen3_5,
}
"""Layers of transformers, and the functions that convert them to ours."""


def _built(layer: Any, config: MixerConfig, rename: Callable[[Tensors], Weights]) -> Mixer:
    """Make a layer of this package with the weights of one of transformers."""
    one_of(f"the activation of {type(layer).__name__}", layer.activation, ("silu", "swish"))
    with torch.device("meta"):
        mixer = config.build(layer.hidden_size)
    tensors = Tensors(layer.state_dict())
    weights = rename(tensors)
    tensors.finish()
    dtype = wide_dtype(weights)
    mixer.load_state_dict({name: t.to(dtype) for name, t in weights.items()}, assign=True)
    return mixer
