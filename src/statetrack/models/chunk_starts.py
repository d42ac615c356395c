"""The states before the chunks of `chunked_backward`, in as little memory as they need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


class ChunkStarts:
    """A stack of states, and of the random generators' states at the time they were added.

    Args:
        state: before the first chunk, as the caller gives it; it stays as it is.
        count: how many states will be added.
        device: whose random generator counts, besides the CPU's.
    """

    def __init__(self, state: Any, count: int, device: torch.device) -> None:
        self.device = device
        self._first = state
        self._count = count
        self._later = list[tuple[list[Any], pytree.TreeSpec]]()  # flat
        self._rows = dict[int, Tensor]()  # by the index of a part: the same part of all states
        self._random = [_random_states(device)]

    @property
    def state(self) -> Any:
        """The last state; unless it is the first one, its parts are variables."""
        if not self._later:
            return self._first
        parts, spec = self._later[-1]
        return pytree.tree_unflatten([_variable(part) for part in parts], spec)

    def append(self, state: Any) -> None:
        """Add the state before the next chunk, computed without gradients."""
        parts, spec = pytree.tree_flatten(state)
        self._later.append(([self._keep(index, part) for index, part in enumerate(parts)], spec))
        now = _random_states(self.device)
        before = self._random[-1]
        self._random.append(before if all(map(torch.equal, before, now)) else now)

    def _keep(self, index: int, part: Any) -> Any:
        """Return a part of the next state in memory of its own.

        Parts that keep their shape are rows of one tensor: small tensors that live long, between
        large ones that do not, would leave gaps in memory that no large one fits into.
        """
        if not isinstance(part, Tensor):
            return part
        before = self._later[-1][0][index] if self._later else None
        if index not in self._rows and _alike(before, part):
            self._rows[index] = part.new_empty(self._count - 1, *part.shape)  # not of the first
        if index in self._rows and _alike(row := self._rows[index][len(self._later) - 1], part):
            return row.copy_(part)
        # of a view, the rest of its tensor would be kept too
        own = part.clone() if part.untyped_storage().nbytes() > part.nbytes else part
        if _has_grown(before, own):
            self._share(index, before, own)
        return own

    def pop(self) -> None:
        """Forget the last state."""
        self._later.pop()
        self._random.pop()

    @contextmanager
    def same_random_numbers(self) -> Iterator[None]:
        """Draw the random numbers inside that were drawn after the last state was added."""
        now = _random_states(self.device)
        _set_random_states(self.device, self._random[-1])
        try:
            yield
        finally:
            _set_random_states(self.device, now)

    def _share(self, index: int, old: Tensor, new: Tensor) -> None:
        """Make a part of earlier states a view of the newest, which begins with the old one.

        Attention's cache does. Copies of it would take memory quadratic in the length.
        """
        for parts, _ in reversed(self._later):
            part = parts[index]
            if not isinstance(part, Tensor) or part.data_ptr() != old.data_ptr():
                break  # it is no view of the old one
            parts[index] = new[:, : part.shape[1]]


def _alike(old: Any, new: Tensor) -> bool:
    """Whether a part has kept its shape and type."""
    return isinstance(old, Tensor) and old.shape == new.shape and old.dtype == new.dtype


def _has_grown(old: Any, new: Tensor) -> TypeGuard[Tensor]:
    """Whether a part [B, S, ...] has a longer S and begins with the old values."""
    if not isinstance(old, Tensor) or old.dtype != new.dtype:
        return False
    if min(old.dim(), new.dim()) < 2 or old.shape[1] >= new.shape[1]:
        return False
    return torch.equal(new[:, : old.shape[1]], old)


def _variable(part: Any) -> Any:
    """A part of a state as a variable, if it has real or complex numbers."""
    if isinstance(part, Tensor) and (part.is_floating_point() or part.is_complex()):
        return part.detach().requires_grad_()
    return part


def _random_states(device: torch.device) -> list[Tensor]:
    """The states of the generators of the CPU and of a device."""
    states = [torch.get_rng_state()]
    if device.type not in ("cpu", "meta"):
        states.append(torch.get_device_module(device).get_rng_state(*_which(device)))
    return states


def _set_random_states(device: torch.device, states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.get_device_module(device).set_rng_state(state, *_which(device))


def _which(device: torch.device) -> tuple[torch.device, ...]:
    """The argument that names a device; torch.mps has one device and takes none."""
    return () if device.type == "mps" else (device,)
