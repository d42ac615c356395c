"""Models of Hugging Face transformers on the native kernels, on a CPU.

    from statetrack.integrations.hf import use_native_kernels

    handle = use_native_kernels(model)  # same results, faster: training, evaluation, generation
    handle.undo()                       # or: with use_native_kernels(model): ...

transformers' layers call their convolution and recurrence as functions of their module. The
`forward` of each layer of the given model is replaced by a copy whose globals have our functions
under those names. Classes, modules and other models are not changed; a layer keeps its weights,
its cache and its handling of masks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import nn

from statetrack.errors import UserError
from statetrack.integrations import hf_functions as ours

Functions = Mapping[str, Callable[..., Any]]

_CONV: Functions = {
    "causal_conv1d_fn": ours.causal_conv,
    "causal_conv1d_update": ours.causal_conv_update,
}
_DELTA: Functions = {
    **_CONV,
    "torch_chunk_gated_delta_rule": ours.gated_delta_rule,
    "torch_recurrent_gated_delta_rule": ours.gated_delta_rule_step,
}
HF_LAYERS: dict[str, Functions] = {
    "transformers.models.mamba.modeling_mamba.MambaMixer": {
        **_CONV,
        "mamba_selective_scan": ours.mamba_scan,
        "mamba_selective_state_update": ours.mamba_step,
    },
    "transformers.models.mamba2.modeling_mamba2.Mamba2Mixer": {
        **_CONV,
        "mamba2_chunk_scan": ours.mamba2_scan,
        "mamba2_selective_state_update": ours.mamba2_step,
    },
    "transformers.models.olmo_hybrid.modeling_olmo_hybrid.OlmoHybridGatedDeltaNet": _DELTA,
    "transformers.models.qwen3_next.modeling_qwen3_next.Qwen3NextGatedDeltaNet": _DELTA,
    "transformers.models.qwen3_5.modeling_qwen3_5.Qwen3_5GatedDeltaNet": _DELTA,
    "transformers.models.qwen3_5_moe.modeling_qwen3_5_moe.Qwen3_5MoeGatedDeltaNet": _DELTA,
}
"""By layer: the functions that its `forward` calls, and their replacements."""


class NativeKernels:
    """The layers of a model that run on native kernels. As a context manager, undone at its end."""

    def __init__(self, forwards: dict[nn.Module, MethodType]) -> None:
        self._forwards = forwards

    @property
    def layers(self) -> list[nn.Module]:
        """The layers whose `forward` is replaced."""
        return list(self._forwards)

    def undo(self) -> None:
        """Restore the layers' own `forward`."""
        for layer, forward in self._forwards.items():
            if vars(layer).get("forward") is not forward:
                name = type(layer).__name__
                raise UserError(f"the forward of a {name} has been replaced since; undo that first")
        for layer in self._forwards:
            del layer.forward
        self._forwards = {}

    def __enter__(self) -> NativeKernels:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def use_native_kernels(model: nn.Module) -> NativeKernels:
    """Run the recurrent layers of a model of transformers on the native kernels.

    These are the layers of Mamba, Mamba2, Qwen3-Next, Qwen3.5 and OLMo-Hybrid.

    The model is changed in place. Outputs, gradients and generated tokens stay the same up to
    rounding.

    Args:
        model: a model of transformers on the CPU, or any module that contains such layers.

    Returns:
        A handle with `undo`, which is also a context manager.

    Raises:
        UserError: the model has no such layer, is not on the CPU, or has an activation other than
            SiLU; or this version of transformers is unknown.
    """
    if not isinstance(model, nn.Module):
        raise UserError(f"use_native_kernels takes a model, a torch.nn.Module; got {model!r}")
    layers = {m: HF_LAYERS[_path(m)] for m in model.modules() if _path(m) in HF_LAYERS}
    name = type(model).__name__
    if not layers:
        known = ", ".join(path.rpartition(".")[2] for path in HF_LAYERS)
        raise UserError(f"{name} has no layer with native kernels; these have: {known}")
    if not all(p.is_cpu for layer in layers for p in layer.parameters()):
        raise UserError(f"{name} is not on the CPU; native kernels run only there")
    for layer in layers:
        if "forward" in vars(layer):
            raise UserError(f"{name} has layers whose forward has been replaced; undo that first")
        if getattr(layer, "activation", "silu") not in ours.ACTIVATIONS:
            allowed = ", ".join(ours.ACTIVATIONS)
            raise UserError(f"{name} has the activation {layer.activation!r}, not {allowed}")
    forwards = {m: MethodType(_with(type(m).forward, fs), m) for m, fs in layers.items()}
    for layer, forward in forwards.items():
        layer.forward = forward
    return NativeKernels(forwards)


def _path(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__name__}"


def _with(forward: Any, functions: Functions) -> FunctionType:
    """Copy a function with `functions` among its globals; decorators are kept."""
    if inner := getattr(forward, "__wrapped__", None):
        copy = _with(inner, functions)
        cells = forward.__closure__
        closure = tuple(CellType(copy) if c.cell_contents is inner else c for c in cells)
        return _copy(forward, forward.__globals__, closure)
    if missing := set(functions) - set(forward.__code__.co_names):
        where, names = forward.__qualname__, ", ".join(sorted(missing))
        raise UserError(f"this version of transformers is not known: {where} calls no {names}")
    return _copy(forward, {**forward.__globals__, **functions}, forward.__closure__)


def _copy(function: Any, names: dict[str, Any], closure: Any) -> FunctionType:
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, closure)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
