"""Exact back-propagation of sequences whose activations do not fit into memory at once.

The model reads a sequence chunk by chunk, without gradients; only the state before each chunk is
kept. Then, from the last chunk to the first, a chunk is computed again with gradients, and its
backward pass hands the gradient of its first state to the chunk before it. The result is that of a
plain backward pass except for rounding. The time is that of one more forward pass.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from statetrack.config import at_least, within
from statetrack.errors import UserError, check_type
from statetrack.models.chunk_starts import ChunkStarts
from statetrack.ops import cross_entropy
from statetrack.ops.backends import full_precision
from statetrack.ops.ragged import check_cu_seqlens

Model = Callable[..., tuple[Tensor, Any]]  # (tokens, state, mask or cu_seqlens) -> (logits, state)
ChunkLoss = Callable[[Tensor, slice], Tensor]  # (logits [B, C, V], their positions) -> a number


class ChunkOutput(NamedTuple):
    """The output of the model for one chunk."""

    columns: slice  # its positions
    logits: Tensor  # [B, C, V]
    state: Any  # after it


def chunked_backward(
    model: Model,
    tokens: Tensor,
    loss: ChunkLoss,
    chunk_length: int,
    *,
    state: Any = None,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    context: Callable[[bool], AbstractContextManager[Any]] = lambda last: nullcontext(),
) -> tuple[Tensor, Any]:
    """Back-propagate the sum of the losses of all chunks, with the memory of one chunk.

    The gradients are added to the `grad` of the parameters and, through `state`, of what it was
    computed from; they equal those of `loss(model(tokens)).backward()` except for rounding. Besides
    one chunk, memory holds the state before every chunk; of attention's cache, which is part of the
    last one, a single copy.

    Args:
        model: a SequenceModel, or what is called like one. Random numbers that it draws, as for
            dropout, are the same in both passes over a chunk.
        tokens: [B, T].
        loss: called with a chunk's logits [B, C, V] and its positions, a slice of 0..T; returns the
            chunk's part of the loss. `chunk_cross_entropy(targets)` makes one.
        chunk_length: the greatest C.
        state: the state that an earlier call returned; None for the first one.
        mask: [B, T] bool, False for positions that do not exist.
        cu_seqlens: [N + 1] boundaries of sequences packed into one row, without a `state`.
        context: returns what surrounds the gradient pass over a chunk; called with whether it is
            the last of these passes, in which several processes average their gradients.

    Returns:
        The loss and the state after the last token (of the last packed sequence), both without
        gradients.

    Raises:
        UserError: gradients are disabled, a shape is wrong, or packed sequences have a `state`.

    Example:
        >>> import torch
        >>> from statetrack import ModelConfig, SequenceModel, chunk_cross_entropy, chunked_backward
        >>> model, tokens = SequenceModel(ModelConfig(vocab_size=5)), torch.randint(5, (1, 1001))
        >>> goal = chunk_cross_entropy(tokens[:, 1:])
        >>> loss, _ = chunked_backward(model, tokens[:, :-1], goal, chunk_length=100)
    """
    reader = _Reader(model, tokens, chunk_length, state, mask, cu_seqlens)
    if not torch.is_grad_enabled():
        raise UserError("chunked_backward computes gradients, but they are disabled here")
    given = pytree.tree_map_only(Tensor, _detached, state)
    *earlier, chunk = reader.chunks
    starts = ChunkStarts(given, len(earlier), tokens.device)
    with torch.no_grad():
        for one in earlier:
            starts.append(reader.read(one, starts.state).state)
    with context(not earlier):
        total, final, gradients = _back(reader, chunk, starts.state, loss, [])
    while earlier:
        chunk = earlier.pop()
        starts.pop()
        with context(not earlier), starts.same_random_numbers():
            part, _, gradients = _back(reader, chunk, starts.state, loss, gradients)
        total = total + part
    _pass_on(pytree.tree_leaves(state), gradients)
    return total, final


def chunked_forward(
    model: Model,
    tokens: Tensor,
    chunk_length: int,
    *,
    state: Any = None,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> Iterator[ChunkOutput]:
    """Yield the output for each chunk of up to `chunk_length` tokens, in order.

    The arguments are those of `chunked_backward`.
    """
    reader = _Reader(model, tokens, chunk_length, state, mask, cu_seqlens)
    for chunk in reader.chunks:
        output = reader.read(chunk, state)
        yield output
        state = output.state


def chunk_cross_entropy(targets: Tensor, ignore_index: int = -100) -> ChunkLoss:
    """Return a loss for chunks whose sum is the mean cross-entropy of all targets.

    Args:
        targets: [B, T] int64.
        ignore_index: the target of positions that do not count.

    Raises:
        UserError: the targets are no such tensor.
    """
    check_type("targets", targets, Tensor, "a tensor")
    if targets.dim() != 2 or targets.dtype != torch.int64:
        got = f"{list(targets.shape)} of {targets.dtype}"
        raise UserError(f"targets must be [B, T] of int64; got {got}")
    check_type("ignore_index", ignore_index, int, "a whole number")
    within("ignore_index", ignore_index, -(2**63), 2**63 - 1)
    counted: list[int] = []  # once it is needed: counting waits for the device

    def loss(logits: Tensor, columns: slice) -> Tensor:
        part = targets[:, columns]
        share = 1.0
        if part.shape != targets.shape:
            if not counted:
                counted.append(int((targets != ignore_index).sum()))
            count = int((part != ignore_index).sum())
            if counted[0] and not count:
                return logits.new_zeros(())  # where the mean would be undefined
            share = count / counted[0] if counted[0] else 1.0
        mean = cross_entropy(logits.flatten(0, 1), part.flatten(), ignore_index=ignore_index)
        return mean if share == 1 else mean * share

    return loss


class _Chunk(NamedTuple):
    """Positions that the model reads at once."""

    columns: slice
    first: bool  # whether it begins sequences, so that no state enters it
    cu_seqlens: list[int] | None = None  # of the sequences in it, if there are several


class _Reader:
    """Reads tokens chunk by chunk."""

    def __init__(
        self,
        model: Model,
        tokens: Tensor,
        chunk_length: int,
        state: Any,
        mask: Tensor | None,
        cu_seqlens: Tensor | None,
    ) -> None:
        check_type("tokens", tokens, Tensor, "a tensor")
        check_type("chunk_length", chunk_length, int, "a whole number")
        at_least("chunk_length", chunk_length, 1)
        if tokens.dim() != 2 or 0 in tokens.shape or tokens.layout is not torch.strided:
            got = f"{list(tokens.shape)}, {tokens.layout}"
            raise UserError(f"tokens must be dense, [B, T], neither of them 0; got {got}")
        if mask is not None and cu_seqlens is not None:
            raise UserError("give a mask or cu_seqlens, not both")
        if mask is not None and (not isinstance(mask, Tensor) or mask.shape != tokens.shape):
            raise UserError(f"mask must be a tensor [B, T] = {list(tokens.shape)}")
        if state is not None and cu_seqlens is not None:
            raise UserError("chunks of packed sequences take no state: each sequence starts anew")
        self.model, self.tokens, self.mask = model, tokens, mask
        batch, length = tokens.shape
        if cu_seqlens is None:
            starts = range(0, length, chunk_length)
            ends = [min(start + chunk_length, length) for start in starts]
            self.chunks = [
                _Chunk(slice(start, end), first=state is None and start == 0)
                for start, end in zip(starts, ends, strict=True)
            ]
        else:
            self.chunks = _cut_packed(check_cu_seqlens(cu_seqlens, batch, length), chunk_length)

    def read(self, chunk: _Chunk, state: Any) -> ChunkOutput:
        """Read a chunk from the state before it."""
        layout = {} if self.mask is None else {"mask": self.mask[:, chunk.columns]}
        packed = chunk.cu_seqlens is not None
        if packed:
            layout["cu_seqlens"] = torch.tensor(chunk.cu_seqlens, device="cpu")
        # Older versions of torch would use a weight that autocast has cast without gradients also
        # in the pass with gradients.
        torch.clear_autocast_cache()
        before = None if chunk.first else state
        logits, state = self.model(self.tokens[:, chunk.columns], before, **layout)
        if packed:  # the others have ended
            state = pytree.tree_map_only(Tensor, lambda part: part[-1:].clone(), state)
        return ChunkOutput(chunk.columns, logits, state)


def _cut_packed(bounds: list[int], chunk_length: int) -> list[_Chunk]:
    """Cut packed sequences into chunks.

    A chunk either goes on with the sequence that was cut, up to its end, or begins with a new one.
    So a state of one row is all that is carried.
    """
    chunks, start = list[_Chunk](), 0
    while start < bounds[-1]:
        following = bisect_right(bounds, start)
        if bounds[following - 1] < start:
            end = min(start + chunk_length, bounds[following])
            chunks.append(_Chunk(slice(start, end), first=False))
        else:
            end = min(start + chunk_length, bounds[-1])
            cuts = [bound - start for bound in bounds[following : bisect_left(bounds, end)]]
            inner = [0, *cuts, end - start] if cuts else None
            chunks.append(_Chunk(slice(start, end), True, inner))
        start = end
    return chunks


def _back(
    reader: _Reader, chunk: _Chunk, before: Any, loss: ChunkLoss, gradients: list[Any]
) -> tuple[Tensor, Any, list[Any]]:
    """Back-propagate a chunk, given the gradients of the state after it, a flat list.

    Returns its loss, the state after it, and the gradients of the state before it.
    """
    output = reader.read(chunk, before)
    part = loss(output.logits, chunk.columns)
    # A backward pass inside of autocast would round the gradients.
    with full_precision(part):
        _pass_on([part, *pytree.tree_leaves(output.state)], [torch.ones_like(part), *gradients])
    after = pytree.tree_map_only(Tensor, Tensor.detach, output.state)
    found = [leaf.grad if isinstance(leaf, Tensor) else None for leaf in pytree.tree_leaves(before)]
    return part.detach(), after, found


def _detached(part: Tensor) -> Tensor:
    """A part of a state as a variable of its own if it is one, else as a constant."""
    return part.detach().requires_grad_(part.requires_grad)


def _pass_on(values: list[Any], gradients: list[Any]) -> None:
    """Back-propagate the gradients of values, of those that depend on a variable.

    Others are constants, as the scale m of mLSTM, which no gradient goes through.
    """
    pairs = [
        (value, gradient)
        for value, gradient in zip(values, gradients, strict=False)  # none of a state: no gradients
        if gradient is not None and value.requires_grad
    ]
    if pairs:
        torch.autograd.backward([v for v, _ in pairs], [g for _, g in pairs])
