"""The model around the layers: tokens in, logits out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from statetrack.errors import UserError, check_type
from statetrack.layers import Transition
from statetrack.layers.common import wang_init_
from statetrack.layers.decoder import Decoder, refuse_observers
from statetrack.layers.operations import TENSORS, TensorOps, recordable
from statetrack.memory import check_memory
from statetrack.models.block import Block, GatedMLP, make_norm
from statetrack.models.config import ModelConfig
from statetrack.models.experts import Experts
from statetrack.ops.ragged import on_host

State = tuple[Any, ...]  # the state of each layer
MODULE_BYTES = 4_000  # that Python takes for a module, whatever its parameters


class SequenceModel(nn.Module):
    """Embedding, blocks, norm and head, built from a ModelConfig.

    >>> from statetrack import DeltaNetConfig
    >>> model = SequenceModel(ModelConfig(vocab_size=3, hidden_size=16, mixer=DeltaNetConfig()))
    >>> logits, state = model(torch.tensor([[1, 2, 1, 1]]))
    >>> logits.shape
    torch.Size([1, 4, 3])
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        check_type("config", config, ModelConfig, "a ModelConfig")
        self.config = config
        if torch.get_default_device().type == "cpu":
            size = model_size(config)
            needed = size.parameters * torch.get_default_dtype().itemsize
            what = f"a model of {size.parameters:.3g} parameters in {config.num_layers:,} layers"
            check_memory(needed + size.modules * MODULE_BYTES, what)
        if config.embedding == "learned":
            self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.num_layers))
        self.norm = make_norm(config) if config.final_norm else nn.Identity()
        self.head: nn.Module = nn.Identity()
        if config.head == "linear":
            self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.head_bias)
        self._init_weights()
        if config.tie_embeddings:
            self.head.weight = self.embedding.weight

    def _init_weights(self) -> None:
        """Initialise embedding, MLPs, experts and head; the mixers initialise themselves."""
        std = self.config.initializer_range
        if std is None:
            return
        if isinstance(self.head, nn.Linear):
            nn.init.normal_(self.head.weight, std=std)
            if self.head.bias is not None:
                nn.init.zeros_(self.head.bias)
        if self.config.embedding == "learned":
            nn.init.normal_(self.embedding.weight, std=std)
        num_layers = self.config.num_layers
        for mlp in (m for m in self.modules() if isinstance(m, GatedMLP)):
            nn.init.normal_(mlp.gate_up.weight, std=std)
            if self.config.mlp == "gated_gelu":
                wang_init_(mlp.down.weight, self.config.hidden_size, num_layers)
            else:  # keep the variance of the residual stream the same at any depth
                nn.init.normal_(mlp.down.weight, std=std / math.sqrt(2 * num_layers))
        for experts in (m for m in self.modules() if isinstance(m, Experts)):
            experts.init_normal_(std, std / math.sqrt(2 * num_layers))

    def forward(
        self,
        tokens: Tensor,
        state: State | None = None,
        *,
        mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Compute the logits of every position.

        Args:
            tokens: [B, T] token ids.
            state: the state that an earlier call returned; None for the first one.
            mask: [B, T] bool, False for positions that do not exist.
            cu_seqlens: [N + 1] boundaries of sequences packed into one row.

        Returns:
            logits [B, T, vocab_size] and the state after the last token.
        """
        x = self.embed(tokens)
        if tokens.dim() != 2:
            raise UserError(f"tokens must be [B, T]; got shape {list(tokens.shape)}")
        states, cu_seqlens = [], on_host(cu_seqlens)
        for block, s in zip(self.stack(), self._states(state), strict=True):
            x, s = block(x, s, mask=mask, cu_seqlens=cu_seqlens)
            states.append(s)
        return self.head(self.norm(x)), tuple(states)

    def step(self, token: Tensor, state: State) -> tuple[Tensor, State]:
        """Process one token [B]: logits [B, vocab_size] and the next state."""
        x, state = self.step_with(self.stack(), token, state)
        return self.head(self.norm(x)), state

    def step_with(
        self, blocks: Iterable[Block | Decoder], token: Tensor, state: State | None
    ) -> tuple[Tensor, State]:
        """Run one token [B] through these blocks, or decoders of them.

        Returns:
            What the last norm reads [B, hidden_size], and the next state.
        """
        x = self.embed(token)
        states = []
        for block, s in zip(blocks, self._states(state), strict=True):
            x, s = block.step(x, s)
            states.append(s)
        return x, tuple(states)

    def decoder(self, batch_size: int) -> ModelDecoder:
        """Record a step for `batch_size` sequences, to generate fast: see `ModelDecoder`."""
        return ModelDecoder(self, batch_size)

    def init_state(self, batch: int) -> State:
        """The state before the first token."""
        return tuple(block.mixer.init_state(batch) for block in self.stack())

    @torch.no_grad()
    def transitions(self, tokens: Tensor) -> list[Transition | None]:
        """Return A(x_t) of every layer for tokens [B, T]; None for a layer without A(x)."""
        x = self.embed(tokens)
        out = []
        for block in self.stack():
            out.append(block.mixer.transitions(block.mixer_input(x)))
            x, _ = block(x, None)
        return out

    def num_parameters(self) -> int:
        """Count the trained numbers; tied weights count once."""
        return sum(p.numel() for p in self.parameters())

    def stack(self) -> Iterator[Block]:
        """The blocks in order."""
        for block in self.blocks:
            assert isinstance(block, Block)
            yield block

    def embed(self, tokens: Tensor) -> Tensor:
        """Return what the first block gets for tokens [...]: [..., hidden_size]."""
        check_type("tokens", tokens, Tensor, "a tensor")
        if tokens.dtype in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32):
            tokens = tokens.long()
        if tokens.dtype is not torch.int64:
            raise self._no_tokens()
        # torch checks the range of tokens itself
        if self.config.embedding == "learned":
            try:
                return self.embedding(tokens)
            except IndexError as error:
                raise self._no_tokens() from error
        try:
            unit = F.one_hot(tokens, self.config.vocab_size)
        except RuntimeError as error:
            raise self._no_tokens() from error
        unit = unit.to(next(self.parameters()).dtype)
        return F.pad(unit, (0, self.config.hidden_size - self.config.vocab_size))

    def _no_tokens(self) -> UserError:
        return UserError(f"tokens must be whole numbers in 0..{self.config.vocab_size - 1}")

    def _states(self, state: State | None) -> State:
        if state is None:
            return (None,) * len(self.blocks)
        check_type("the state", state, (tuple, list), "what an earlier call returned")
        if len(state) != len(self.blocks):
            raise UserError(f"the state has {len(state)} layers, the model {len(self.blocks)}")
        return state


class ModelDecoder:
    """One token at a time through recorded kernels, without gradients: see `Decoder`.

    A block is recorded as a whole, with its norms, MLP and residuals; if that is not possible, its
    mixer alone; if that is not, it takes the plain step. The last norm and the head are recorded
    together, or plain; the embedding is the model's.

    Args:
        model: the model.
        batch_size: the number of sequences.

    Example:
        >>> import torch
        >>> from statetrack import ModelConfig, SequenceModel
        >>> model = SequenceModel(ModelConfig(vocab_size=5, hidden_size=64))
        >>> decoder, state = model.decoder(batch_size=1), model.init_state(1)
        >>> with torch.no_grad():
        ...     logits, state = decoder.step(torch.tensor([3]), state)
    """

    def __init__(self, model: SequenceModel, batch_size: int) -> None:
        self.model = model
        self.batch_size = batch_size
        self.blocks = [block.decoder(batch_size) for block in model.stack()]
        self.readout = Decoder(_Readout(model), batch_size)

    def step(self, token: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Process one token [B]: logits [B, vocab_size] and the next state.

        Raises:
            UserError: see `Decoder.step`.
        """
        refuse_observers()
        if not isinstance(token, Tensor) or list(token.shape) != [self.batch_size]:
            got = list(token.shape) if isinstance(token, Tensor) else type(token).__name__
            raise UserError(f"this decoder's tokens must be [{self.batch_size}]; got {got}")
        x, state = self.model.step_with(self.blocks, token, state)
        logits, _ = self.readout.step(x, ())
        return logits, state


class _Readout(nn.Module):
    """The last norm and the head, in the form that a `Decoder` records: with an empty state."""

    def __init__(self, model: SequenceModel) -> None:
        super().__init__()
        self.hidden_size = model.config.hidden_size
        self.norm, self.head = model.norm, model.head

    def step(self, x: Tensor, state: tuple[()]) -> tuple[Tensor, tuple[()]]:
        return self.mix(x, state, TENSORS)

    @recordable
    def mix(self, x: Tensor, state: tuple[()], ops: TensorOps) -> tuple[Tensor, tuple[()]]:
        return ops.linear(ops.call(self.norm, x), self.head), state

    def init_state(self, batch: int) -> tuple[()]:
        return ()

    def check_state(self, state: tuple[()], batch: int) -> tuple[()]:
        return state


def compile_blocks(model: SequenceModel, **options: Any) -> None:
    """Run each block through torch.compile from now on; names and weights stay as they are.

    Args:
        model: whose blocks are compiled when they first run.
        **options: of torch.compile.
    """
    for block in model.stack():
        block.compile(**options)


class ModelSize(NamedTuple):
    """Sizes of a model."""

    parameters: int  # numbers that are trained; tied ones count once
    modules: int
    state: int  # numbers that all layers keep of one sequence


def model_size(config: ModelConfig) -> ModelSize:
    """Count a model's sizes from one pattern of blocks, which is repeated, and one of experts."""
    repeats = config.num_layers // len(config.pattern)
    try:
        with torch.device("meta"), _Uninitialised():
            once = SequenceModel(replace(config, num_layers=len(config.pattern), experts=None))
            state = once.init_state(1)
            parameters, modules = _added_by_experts(config, repeats)
    except (RuntimeError, TypeError) as error:
        if "verflow" not in str(error):
            raise
        shape = re.search(r"sizes=(\[[0-9, ]+\])", str(error))
        what = f"of shape {shape[1]}" if shape else "with a size above 2^63"
        raise UserError(f"this model has a tensor {what}, more than torch can address") from None
    in_blocks = sum(p.numel() for p in once.blocks.parameters())
    block_modules = len(list(once.blocks.modules())) - 1  # without the list itself
    return ModelSize(
        parameters + once.num_parameters() + (repeats - 1) * in_blocks,
        modules + len(list(once.modules())) + (repeats - 1) * block_modules,
        repeats * sum(part.numel() for layer in state for part in layer),
    )


def _added_by_experts(config: ModelConfig, repeats: int) -> tuple[int, int]:
    """Count the parameters and modules that the experts have more than the MLPs they replace."""
    if config.experts is None:
        return 0, 0
    layers = config.experts.layers
    if layers is None:
        count = repeats * sum(map(config.has_mlp, range(len(config.pattern))))
    else:
        count = len(layers)
    experts, mlp = Experts(config.hidden_size, config.experts), GatedMLP(config)
    sizes = [
        (sum(p.numel() for p in part.parameters()), len(list(part.modules())))
        for part in (experts, mlp)
    ]
    return count * (sizes[0][0] - sizes[1][0]), count * (sizes[0][1] - sizes[1][1])


class _Uninitialised(TorchFunctionMode):
    """Skip functions that write into a tensor, such as `normal_`: meta tensors have no values.

    The first such call would take seconds, because torch imports much for it.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.__name__
        if name.endswith("_") and not name.endswith("__"):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def count_parameters(config: ModelConfig) -> int:
    """Count the parameters of a model without building it."""
    return model_size(config).parameters


def check_finite(model: nn.Module, where: str = "the model") -> None:
    """Raise a UserError if a weight is NaN or infinite; `where` names the model in the message."""
    for name, weight in model.named_parameters():
        if not torch.isfinite(weight).all():
            raise UserError(f"{name} of {where} has entries that are infinite or undefined")
