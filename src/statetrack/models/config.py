"""The configuration of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from statetrack.config import at_least, check_types, one_of, option, shared_values
from statetrack.errors import UserError
from statetrack.layers import DeltaNetConfig, MixerConfig
from statetrack.models.experts import ExpertsConfig


@dataclass(frozen=True)
class ModelConfig:
    """Options of a stack of blocks between an embedding and a head.

    `mixer` is the configuration of every layer, or a tuple of them: a pattern that is repeated
    until there are `num_layers`. Other options that differ by layer are given by the mixer's name.
    """

    vocab_size: int = option(2, "number of tokens, in and out")
    hidden_size: int = option(128, "width of the residual stream")
    num_layers: int = option(2, "number of blocks")
    mixer: MixerConfig | tuple[MixerConfig, ...] = option(DeltaNetConfig(), "the layers")  # noqa: RUF009
    embedding: Literal["learned", "one_hot"] = option("learned", "learned vectors, or unit vectors")
    norm: Literal["rms", "layer", "none"] = option("rms", "norm before each part of a block")
    norm_after: tuple[str, ...] = option(
        (), "mixers whose blocks have those norms after each part instead"
    )
    norm_eps: float = option(1e-6, "epsilon of those norms and the final one")
    residual: bool = option(True, "add each part's input to its output")
    mlp: Literal["swiglu", "gated_gelu", "none"] = option("swiglu", "MLP after each mixer")
    mlp_after: tuple[str, ...] | None = option(
        None, "mixers whose blocks have the MLP; None: all of them"
    )
    mlp_size: int | None = option(None, "MLP width; None: 8/3 or 1.3 (gelu) of hidden size")
    experts: ExpertsConfig | None = option(None, "experts in place of the MLP, if any")  # noqa: RUF009
    final_norm: bool = option(True, "norm before the head")
    head: Literal["linear", "none"] = option("linear", "linear, or none: the blocks end in logits")
    head_bias: bool = option(False, "bias in the head")
    tie_embeddings: bool = option(False, "the head is the embedding transposed")
    initializer_range: float | None = option(
        0.02,
        "standard deviation of embedding, MLP (but the second matrix of gated_gelu: xLSTM's own) "
        "and head; None for PyTorch's defaults",
    )

    def __post_init__(self) -> None:
        if not all(isinstance(mixer, MixerConfig) for mixer in self.pattern):
            raise UserError(f"mixer must be a MixerConfig or a tuple of them; got {self.mixer!r}")
        check_types(self)
        for name in ("vocab_size", "hidden_size", "num_layers"):
            at_least(name, getattr(self, name), 1)
        for name, low in (("mlp_size", 1), ("norm_eps", 0), ("initializer_range", 0)):
            if (value := getattr(self, name)) is not None:
                at_least(name, value, low)
        for option_name in ("norm_after", "mlp_after"):
            for name in getattr(self, option_name) or ():
                one_of(option_name, name, dict.fromkeys(mixer.name for mixer in self.pattern))
        if self.mlp_after is not None and (self.mlp == "none" or not self.mlp_after):
            got = f"mlp = {self.mlp} and mlp_after = {list(self.mlp_after)}"
            raise UserError(
                f"mlp_after names the mixers with an MLP, and mlp says which; got {got}"
            )
        if isinstance(self.mixer, tuple) and (not self.mixer or self.num_layers % len(self.mixer)):
            raise UserError(
                f"a pattern of mixers must fit num_layers a whole number of times; got "
                f"{len(self.mixer)} mixers for {self.num_layers} layers"
            )
        if self.embedding == "one_hot" and self.vocab_size > self.hidden_size:
            raise UserError(
                f"a one-hot embedding needs hidden_size >= vocab_size; got {self.hidden_size} < "
                f"{self.vocab_size}"
            )
        if self.embedding == "one_hot" and self.tie_embeddings:
            raise UserError("tie_embeddings needs embedding = learned; one_hot has no weights")
        if self.head == "none" and self.vocab_size != self.hidden_size:
            raise UserError(
                f"without a head hidden_size must be vocab_size; got {self.hidden_size} and "
                f"{self.vocab_size}"
            )
        if self.head == "none" and (self.head_bias or self.tie_embeddings):
            raise UserError("head_bias and tie_embeddings need head = linear; none has no weights")
        self._check_experts()

    def _check_experts(self) -> None:
        if self.experts is None:
            return
        if self.mlp != "swiglu":
            raise UserError(f"experts replace the MLP, and need mlp = swiglu; got {self.mlp}")
        for layer in self.experts.layers or ():
            if not (0 <= layer < self.num_layers and self.has_mlp(layer)):
                raise UserError(
                    f"layers of the experts must have an MLP and lie in 0..{self.num_layers - 1}; "
                    f"got {layer}"
                )

    @property
    def mixers(self) -> tuple[MixerConfig, ...]:
        """The mixer of every layer."""
        return self.pattern * (self.num_layers // len(self.pattern))

    @property
    def pattern(self) -> tuple[MixerConfig, ...]:
        """The mixers that are repeated."""
        return self.mixer if isinstance(self.mixer, tuple) else (self.mixer,)

    def mixer_of(self, layer: int) -> MixerConfig:
        """The mixer of layer 0, 1, ...: the pattern repeats."""
        return self.pattern[layer % len(self.pattern)]

    def has_mlp(self, layer: int) -> bool:
        """Whether the block of a layer has an MLP."""
        chosen = self.mlp_after is None or self.mixer_of(layer).name in self.mlp_after
        return self.mlp != "none" and chosen

    def has_experts(self, layer: int) -> bool:
        """Whether the block of a layer has experts in place of the MLP."""
        if self.experts is None or not self.has_mlp(layer):
            return False
        return self.experts.layers is None or layer in self.experts.layers

    @property
    def mixer_names(self) -> str:
        """The names of the mixers that are repeated, separated by commas."""
        return ",".join(mixer.name for mixer in self.pattern)

    def with_mixers(self, names: str) -> ModelConfig:
        """Return the model with other mixers, which keep the values of options that they share.

        Args:
            names: the mixers, separated by commas. If they do not fit `num_layers`, there is one
                layer of each.
        """
        if names == self.mixer_names:
            return self
        classes = [MixerConfig.class_for(name) for name in names.split(",")]
        mixers = tuple(shared_values(known(), self.pattern[0]) for known in classes)
        layers = self.num_layers if self.num_layers % len(mixers) == 0 else len(mixers)
        return replace(self, mixer=mixers[0] if len(mixers) == 1 else mixers, num_layers=layers)

    def with_range(self, allow_neg_eigval: bool) -> ModelConfig:
        """Return the model with eigenvalues in [0, 1] or [-1, 1], in all layers with the switch."""
        mixers = tuple(
            mixer if mixer.no_switch else replace(mixer, allow_neg_eigval=allow_neg_eigval)
            for mixer in self.pattern
        )
        return replace(self, mixer=mixers if isinstance(self.mixer, tuple) else mixers[0])

    @property
    def title(self) -> str:
        """The model's name in tables."""
        return " + ".join(dict.fromkeys(m.title for m in self.pattern))
