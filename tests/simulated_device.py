"""A device that computes on the CPU and refuses what a GPU refuses.

Its tensors are `OnDevice`: they have device "meta" and hold a tensor on the CPU, which does the
work. Tensors of the device and of the CPU do not mix, and none becomes an array without a move to
the CPU. So code that forgets `device=`, `.to(device)` or `.cpu()` fails here as it does on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from statetrack import devices

NAME = "meta"
DEVICE = torch.device(NAME)
INDEXING = ("aten::index", "aten::index_put_", "aten::_index_put_impl_")  # by indices on the CPU


class OnDevice(Tensor):
    """A tensor of the simulated device."""

    held: Tensor
    is_meta = False  # it has values

    @staticmethod
    def __new__(cls, held: Tensor) -> OnDevice:
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        made.held = held
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def __repr__(self) -> str:
        return f"OnDevice({self.held})"


def _held(x: Any) -> Any:
    return x.held if isinstance(x, OnDevice) else x


def _is_device(x: Any) -> bool:
    return x is not None and torch.device(x).type == DEVICE.type


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation as the device, or as the CPU if none of its tensors is on the device."""
    name = func._schema.name
    tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    ours = [x for x in tensors if isinstance(x, OnDevice)]
    if name == "aten::copy_":  # between any devices
        func(_held(args[0]), _held(args[1]), *args[2:], **kwargs)
        return args[0]
    on_device = bool(ours)
    if "device" in kwargs:  # a factory, or a move
        on_device = _is_device(kwargs["device"]) or (kwargs["device"] is None and bool(ours))
        kwargs = {**kwargs, "device": torch.device("cpu")}
    elif ours:
        alien = [x for x in tensors if not isinstance(x, OnDevice) and x.dim() > 0]
        if alien and not (name in INDEXING and isinstance(args[0], OnDevice)):
            raise RuntimeError(f"{name}: tensors on the device and on the CPU")
    if on_device and isinstance(kwargs.get("generator"), torch.Generator):
        raise RuntimeError(f"{name}: a generator of the CPU for a tensor on the device")
    # a device has random numbers of its own: those of the CPU go on as if nothing were drawn
    own = torch.Tag.nondeterministic_seeded in func.tags and on_device
    with torch.random.fork_rng(devices=[], enabled=own):
        made = func(*pytree.tree_map(_held, args), **pytree.tree_map(_held, kwargs))
    if not on_device:
        return made
    known = {id(x.held): x for x in ours}  # what an operation in place returns

    def placed(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return known[id(x)] if id(x) in known else OnDevice(x)

    return pytree.tree_map(placed, made)


class _Numbers(TorchFunctionMode):
    """Does by way of the CPU what torch does for no meta tensor or no subclass of tensors."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and _is_device(kwargs.get("device")):
            return func(*args, **{**kwargs, "device": "cpu"}).to(DEVICE)
        if func is Tensor.new_tensor and isinstance(args[0], OnDevice):
            return torch.tensor(*args[1:], **{"dtype": args[0].dtype, **kwargs}).to(DEVICE)
        if func is Tensor.tolist and isinstance(args[0], OnDevice):
            return args[0].cpu().tolist()
        return func(*args, **kwargs)


class _Machine(TorchDispatchMode):
    """Makes the tensors that are asked for on the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class Waits(TorchDispatchMode):
    """Lists, inside of `simulated_device`, operations for which a CPU waits for a GPU."""

    READS = ("_local_scalar_dense", "nonzero", "masked_select", "equal")

    def __init__(self) -> None:
        super().__init__()
        self.found = list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func._schema.name.removeprefix("aten::"), kwargs or {}
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if any(isinstance(x, OnDevice) for x in tensors) and (
            name in self.READS
            or (name == "index" and any(x.dtype is torch.bool for x in tensors[1:]))
            or (name == "repeat_interleave" and kwargs.get("output_size") is None)
            or (name == "copy_" and not isinstance(args[0], OnDevice))
            or (kwargs.get("device") is not None and not _is_device(kwargs["device"]))
        ):
            self.found.append(name)
        return func(*args, **kwargs)


@contextmanager
def simulated_device() -> Iterator[torch.device]:
    """A context in which the device "meta" computes, and commands and configurations know it."""
    overwrite = torch.__future__.get_overwrite_module_params_on_conversion()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "KINDS", (*devices.KINDS, NAME))
        patch.setattr(devices, "available_devices", lambda: ["cpu", NAME])
        # a module's parameters are replaced: to write into them would leave out what they hold
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        try:
            with _Numbers(), _Machine():
                yield DEVICE
        finally:
            torch.__future__.set_overwrite_module_params_on_conversion(overwrite)
