"""The base class of layers, with their configuration and registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from statetrack.config import Named, check_types, hints, option, unknown, within
from statetrack.errors import UserError, check_type
from statetrack.kernels import gpu, library
from statetrack.layers.decoder import Decoder
from statetrack.layers.inverse import DependentError, HeadTargets
from statetrack.layers.operations import TENSORS, TensorOps
from statetrack.layers.transitions import Transition
from statetrack.ops.ragged import Ragged, check_cu_seqlens
from statetrack.plugins import load_plugins

M = TypeVar("M", bound=type["Mixer"])

NOT_LINEAR = dict.fromkeys(
    ("eigenvalues", "negative_eigenvalues"), "there is no A(x): it is not a linear RNN"
)
"""The checks of `statetrack.testing` that a layer without A(x) does not support."""
MAX_HIDDEN_SIZE = 1 << 20  # far beyond any model: a square matrix takes 4 TB
VARIANT_SIZE = 12  # the hidden size of the layers that MixerConfig.variants lists


@dataclass(frozen=True)
class MixerConfig(Named):
    """Options of a layer; each layer has a subclass with its own."""

    kind: ClassVar[str] = "mixer"
    name: ClassVar[str]
    label: ClassVar[str]
    has_beta: ClassVar[bool] = False  # whether the saturation penalty has something to act on
    no_switch: ClassVar[str] = ""  # why this layer refuses allow_neg_eigval, if it does
    about: ClassVar[str]
    layer: ClassVar[type[Mixer]]

    allow_neg_eigval: bool = option(False, "eigenvalues of A(x) in [-1,1] instead of [0,1]")

    @classmethod
    def class_for(cls, name: str) -> type[MixerConfig]:
        if name not in MIXERS and not (load_plugins() and name in MIXERS):
            raise unknown("mixer", name, MIXERS)
        return MIXERS[name]

    @property
    def title(self) -> str:
        """The name in tables, e.g. "DeltaNet [-1,1]"."""
        if self.no_switch:
            return self.label
        return f"{self.label} {'[-1,1]' if self.allow_neg_eigval else '[0,1]'}"

    @property
    def description(self) -> str:
        """The title, and the options that are not at their defaults."""
        changed = [
            f"{f.name} {getattr(self, f.name)}"
            for f in fields(self)
            if f.name != "allow_neg_eigval" and getattr(self, f.name) != f.default
        ]
        return f"{self.title} ({', '.join(changed)})" if changed else self.title

    @classmethod
    def variants(cls) -> list[Self]:
        """List small layers of hidden size 12 (`VARIANT_SIZE`) that tests run.

        Together they take every path through the layer's code; by default, one for each range.
        """
        return [cls()] if cls.no_switch else [cls(), cls(allow_neg_eigval=True)]

    @classmethod
    def architectures(cls) -> dict[str, Self]:
        """Map titles to the configurations that `explain` lists, of hidden size 12.

        Together they must have every guarantee of eigenvalues that the options allow; by default,
        the variants in both ranges.
        """
        ranges = (False,) if cls.no_switch else (False, True)
        every = [replace(config, allow_neg_eigval=r) for r in ranges for config in cls.variants()]
        return {config.title: config for config in every}

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval of the real parts of all eigenvalues of A(x), if the switch sets it."""
        return (-1.0 if self.allow_neg_eigval else 0.0), 1.0

    def __post_init__(self) -> None:
        check_types(self)
        if self.allow_neg_eigval and self.no_switch:
            raise UserError(f"{self.label} has no allow_neg_eigval: {self.no_switch}")

    def build(self, hidden_size: int) -> Mixer:
        """Build the layer with these options."""
        return self.layer(hidden_size, self)


MIXERS: dict[str, type[MixerConfig]] = {}


def register(layer: M) -> M:
    """Class decorator: register a layer under the name of its configuration."""
    layer.config_class.layer = layer
    MIXERS[layer.config_class.name] = layer.config_class
    return layer


class Mixer(nn.Module, ABC):
    """A layer that mixes tokens through a state.

    Subclasses define `mix`, the formula over a right-padded batch, `init_state` and `transitions`;
    linear RNNs also `op_inputs`, on which `mix` and `transitions` stand. Masks, packed sequences,
    single steps and decoders are made of these here. A `mix` that computes with its `ops` only and
    is declared `recordable` decodes fast. States are NamedTuples of tensors whose first dimension
    is the batch; they are never changed in place.
    """

    config_class: ClassVar[type[MixerConfig]]
    no_weight_decay: ClassVar[tuple[str, ...]] = ()
    """Parameters without weight decay."""
    unsupported: ClassVar[Mapping[str, str]] = {}
    """Checks of `statetrack.testing` that do not hold for the layer, and why."""
    affine_state: ClassVar[bool] = True
    """Whether the state's first tensor follows S_t = A(x_t) S_{t-1} + B(x_t), unscaled."""

    def __init__(self, hidden_size: int, config: MixerConfig | None = None, **options: Any) -> None:
        super().__init__()
        if config is None:
            config = _options(self.config_class, options)
        elif options:
            raise UserError(f"{type(self).__name__} takes a config or options, not both")
        elif type(config) is not self.config_class:  # a subclass belongs to another layer
            wanted, got = self.config_class.__name__, type(config).__name__
            raise UserError(f"{type(self).__name__} takes a {wanted}; got a {got}")
        check_type("hidden_size", hidden_size, int, "a whole number")
        within("hidden_size", hidden_size, 1, MAX_HIDDEN_SIZE)
        self.hidden_size = hidden_size
        self.config = config

    def forward(
        self,
        x: Tensor,
        state: Any = None,
        *,
        mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        """Mix a batch of sequences.

        Args:
            x: [B, T, hidden_size].
            state: the state that an earlier call returned; None for the first one.
            mask: [B, T] bool, False for positions that do not exist: they do not change the state
                or any output, and their own output is 0.
            cu_seqlens: [N + 1] boundaries of sequences packed into one row (B = 1); the state
                then has batch N.

        Returns:
            y [B, T, hidden_size] and the state after each sequence's last token.
        """
        self.check_input(x)
        if mask is None and cu_seqlens is None:
            return self.mix(x, self.check_state(state, x.shape[0]), TENSORS)
        if mask is not None and cu_seqlens is not None:
            raise UserError("give a mask or cu_seqlens, not both")
        if mask is not None:
            if not isinstance(mask, Tensor) or mask.shape != x.shape[:2]:
                got = list(mask.shape) if isinstance(mask, Tensor) else f"a {type(mask).__name__}"
                raise UserError(f"mask must be a tensor [B, T] = {list(x.shape[:2])}; got {got}")
            ragged = Ragged.from_mask(mask.bool())
        else:
            assert cu_seqlens is not None
            ragged = Ragged.from_bounds(check_cu_seqlens(cu_seqlens, *x.shape[:2]), x.device)
        x = ragged.pad(x)
        y, state = self.mix(x, self.check_state(state, x.shape[0]), TensorOps(ragged.valid))
        return ragged.unpad(y), state

    def first_state(self, x: Tensor) -> Any:
        """Check that x is [B, T, hidden_size] and return the state before its first token."""
        self.check_input(x)
        return self.init_state(x.shape[0])

    def check_input(self, x: Tensor) -> None:
        """Raise a UserError unless x is [B, T, hidden_size]."""
        _check_floats(self, "x", x)
        if x.dim() != 3 or x.shape[-1] != self.hidden_size or 0 in x.shape:
            expected = f"[B, T, {self.hidden_size}], none of them 0"
            raise UserError(f"{type(self).__name__}: x must be {expected}; got {list(x.shape)}")

    def check_state(self, state: Any, batch: int) -> Any:
        """Return the state, the first one for None; raise if it is not of this layer and batch."""
        if state is None:
            return self.init_state(batch)
        kind, layout = self._own_state
        if type(state) is not kind or self._layout(state) != layout:
            name = f"{kind.__name__} with parts of shapes {layout}"
            raise UserError(f"{type(self).__name__}: the state must be a {name} behind the batch")
        if any(s.shape[0] != batch for s in state):
            raise UserError(f"the state has batch {state[0].shape[0]}, the input {batch}")
        return state

    @cached_property
    def _own_state(self) -> tuple[Any, list[list[int]]]:
        """The type of this layer's states, and their layout."""
        own = self.init_state(1)
        return type(own), self._layout(own)

    def _layout(self, state: Any) -> list[list[int]]:
        """The shapes of a state's tensors without the batch."""
        return [list(part.shape[1:]) for part in state]

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.parameters()).device

    def zeros(self, *shape: int) -> Tensor:
        """Return zeros for the first state: float32, whatever torch's default dtype is."""
        return torch.zeros(*shape, dtype=torch.float32, device=self.device)

    def step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Process one token x_t [B, hidden_size]: y_t [B, hidden_size] and the next state."""
        _check_floats(self, "x_t", x_t)
        if x_t.dim() != 2 or x_t.shape[-1] != self.hidden_size:
            expected = f"[B, {self.hidden_size}]"
            raise UserError(f"{type(self).__name__}: x_t must be {expected}; got {list(x_t.shape)}")
        state = self.check_state(state, len(x_t))
        # without kernels the defining loop is the fastest for one token
        kernels = library.serves(x_t, next(self.parameters())) or gpu.refusal("triton", x_t) is None
        backend = "auto" if kernels else "naive"
        y, state = self.mix(x_t[:, None], state, TensorOps(backend=backend))
        return y[:, 0], state

    def decoder(self, batch_size: int) -> Decoder:
        """Record a step for `batch_size` sequences, to decode fast: see `Decoder`."""
        return Decoder(self, batch_size)

    def op_inputs(self, x: Tensor) -> Any:
        """Return what the layer feeds its op for x [B, T, D], as a NamedTuple.

        With a HouseholderProduct: k [B, T f, H, K], v [B, T f, H, V], beta [B, T f, H] and `gate`,
        [B, T, H] or None, among others; f factors per position.

        Raises:
            UserError: The layer does not define them, as one that is not a linear RNN.
        """
        raise UserError(
            f"{type(self).__name__} does not define op_inputs; only linear RNNs have them"
        )

    @abstractmethod
    def mix(self, x: Tensor, state: Any, ops: TensorOps) -> tuple[Tensor, Any]:
        """Mix x [B, T, hidden_size]: y and the next state.

        ops.mask [B, T] is False for padding at the right ends.
        """

    @abstractmethod
    def init_state(self, batch: int) -> Any:
        """Return the state before the first token."""

    @abstractmethod
    def transitions(self, x: Tensor) -> Transition | None:
        """Return A(x_t) for every token of x [B, T, hidden_size]; None if there is no A(x)."""

    def beta_gates(self) -> Mapping[nn.Module, float]:
        """Return the modules whose output is beta, each with beta's greatest possible value."""
        return {}

    def init_at_depth(self, layer: int, num_layers: int) -> None:
        """Initialise what depends on the depth: layer 0, 1, ... of a model, which calls this."""

    def with_config(self, weights: Mapping[str, Tensor] | None = None, **options: Any) -> Self:
        """Return a layer with other options, `weights` by name, and this one's other weights."""
        made = replace(self.config, **options).build(self.hidden_size)
        made.to(next(self.parameters())).train(self.training)
        own = made.state_dict()
        kept = {name: weight for name, weight in self.state_dict().items() if name in own}
        made.load_state_dict({**own, **kept, **(weights or {})})
        assert isinstance(made, type(self))
        return made

    @property
    def conv_width(self) -> int:
        """How many inputs the layer's convolution `conv` reads; 1 if it has none."""
        conv = getattr(self, "conv", None)
        return conv.width if conv else 1

    # Optional: what `statetrack.hardening` needs. A layer that can be hardened has no
    # `hardening_obstacle` and defines `memoryless`; `with_gates` if its transitions are Diagonal,
    # or `op_inputs`, `head_outputs` and `with_op_inputs` if they are a HouseholderProduct; and
    # `without_conv` if it has a ShortConv `conv`. Methods that change what the layer does with
    # inputs x [n, D] return a new layer; `layers.inverse` helps to write them.

    shared_step_size: ClassVar[bool] = False
    """Whether the gates [..., channels, N] of a Diagonal share one step size in each channel."""

    def hardening_obstacle(self) -> str | None:
        """Return why the layer cannot be hardened; None if it can."""
        return f"{type(self).__name__} does not define how"

    @property
    def output_projection(self) -> nn.Linear | None:
        """The linear map at the layer's end, if there is one."""
        return None

    @property
    def conv_delays(self) -> range:
        """By how many positions the convolution may delay the whole recurrence."""
        return range(1)

    def without_conv(self, x: Tensor, conv_outputs: Sequence[Tensor], delay: int = 0) -> Self:
        """Return a layer without convolution that computes the parts `conv_outputs` [n, ...] of x.

        With a `delay` > 0 it has a convolution that only hands on the input so far back. Where no
        weights give these parts, they are approximated by least squares.
        """
        raise self._not_defined("without_conv")

    def memoryless(self, x: Tensor) -> Self:
        """Return a layer whose output depends on the current input alone, for any input."""
        raise self._not_defined("memoryless")

    def with_gates(self, x: Tensor, gates: Tensor, silent: Tensor) -> Self:
        """Return a layer with other gates for inputs x.

        Args:
            x: [n, D], in float64.
            gates: [n, channels, N]: 1 (and then nothing is written), -1, 0, or NaN to keep them; N
                is 1 unless `shared_step_size`.
            silent: [channels] bool: nothing is ever written there.

        Raises:
            DependentError: no weights give each input its gates.
        """
        raise self._not_defined("with_gates")

    def head_outputs(self, x: Tensor) -> Tensor:
        """Return what each head reads for x [B, T, D], normalised, without gain: [B, T, H, V]."""
        raise self._not_defined("head_outputs")

    def with_op_inputs(self, x: Tensor, wanted: HeadTargets, eps_factor: float = 1.0) -> Self:
        """Return a layer with other keys, values and betas for inputs x.

        Args:
            x: [n, D], in float64.
            wanted: what its op gets, up to what no output shows: a rotation of each head's keys and
                queries and a common scale of all values. Keys and values matter where beta > 0.
            eps_factor: how many times larger the epsilon of the head norm becomes.

        Raises:
            DependentError: no weights give each input what is wanted.
        """
        raise self._not_defined("with_op_inputs")

    def queries(self, x: Tensor) -> Tensor | None:
        """Return the queries [n, H, K], of length 1, of inputs x [n, D]; None: it has none."""
        return None

    def set_queries(self, x: Tensor, q: Tensor) -> None:
        """Set the weights of the queries, so that those of inputs x [n, D] are q [n, H, K].

        Raises:
            DependentError: no weights give each input its query.
        """
        raise self._not_defined("set_queries")

    def widened(self, hidden_size: int) -> Self:
        """Return a layer for a larger hidden size that ignores the new entries, and gives 0 there.

        Raises:
            DependentError: the layer does not define how.
        """
        raise DependentError

    def with_unit_keys(self, x: Tensor) -> Self:
        """Return a layer whose keys for inputs x have length 1 up to float64; this one if so."""
        return self

    def _not_defined(self, method: str) -> UserError:
        name = type(self).__name__
        return UserError(f"{name} cannot be hardened: it does not define {method}")


def _check_floats(layer: Mixer, name: str, x: object) -> None:
    if not (isinstance(x, Tensor) and x.is_floating_point() and x.layout is torch.strided):
        got = f"{x.dtype}, {x.layout}" if isinstance(x, Tensor) else type(x).__name__
        raise UserError(
            f"{type(layer).__name__}: {name} must be a dense tensor of floats; got {got}"
        )


def _options(config_class: type[MixerConfig], options: dict[str, Any]) -> MixerConfig:
    allowed = hints(config_class)
    for key in options:
        if key not in allowed:
            raise UserError(
                f"{config_class.label} has no option {key!r}; it has: {', '.join(allowed)}"
            )
    return config_class(**options)
