"""The other packages' layers: how each is built, called and told its weights.

Each package is imported where it is used: it is installed in an environment of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from benchmarks.layers.shapes import Shape
from statetrack.models.convert.gated_delta_net import qwen3_next_mixer
from statetrack.models.convert.mamba import mamba2_mixer, mamba_mixer
from statetrack.models.convert.xlstm import xlstm_mlstm

Step = Callable[[Tensor], Tensor]  # x_t [B, D] -> y_t; it keeps the state


class Peer(ABC):
    """A layer of another package, which computes what one of ours does without the switch."""

    name: ClassVar[str]
    layer: ClassVar[str]  # which of ours
    environment: ClassVar[str | None] = "hf"  # where its package is; None: everywhere
    same_with: ClassVar[dict[str, Any]] = {}  # the options with which ours does the same

    def __init__(self, shape: Shape) -> None:
        self.module: nn.Module = self.build(shape)
        with torch.no_grad():  # no weight stays at a special value
            for p in self.module.parameters():
                p += 0.02 * torch.randn_like(p)

    @abstractmethod
    def build(self, shape: Shape) -> nn.Module:
        """The module, at the sizes that our layer has by default."""

    @abstractmethod
    def weights(self) -> dict[str, Tensor]:
        """Its weights by our names."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> the same."""
        return self.module(x)


class Decoder(Peer):
    """One that also goes token by token."""

    @abstractmethod
    def begin(self, prompt: Tensor) -> Step:
        """Read a prompt [B, T, D]; returns what takes the tokens after it."""


class Transformers(Decoder):
    """A layer of transformers, which keeps its state in a cache."""

    config: Any

    def begin(self, prompt: Tensor) -> Step:
        from transformers import DynamicCache

        cache = DynamicCache(config=self.config)
        self.module(prompt, cache_params=cache)
        return lambda x: self.module(x[:, None], cache_params=cache)[:, 0]


class MambaMixer(Transformers):
    """Mamba of transformers."""

    name = "transformers MambaMixer"
    layer = "mamba"

    def build(self, shape: Shape) -> nn.Module:
        from transformers.models.mamba import modeling_mamba as model

        # its own loop takes time quadratic in the length for the gradients
        self.config = model.MambaConfig(
            hidden_size=shape.width, num_hidden_layers=1, use_mambapy=True
        )
        return model.MambaMixer(self.config, 0)

    def weights(self) -> dict[str, Tensor]:
        return mamba_mixer(self.module.state_dict())


class MambaBlock(Decoder):
    """Mamba of mamba.py, on its parallel scan."""

    name = "mambapy MambaBlock"
    layer = "mamba"

    def build(self, shape: Shape) -> nn.Module:
        from mambapy.mamba import MambaBlock as Module
        from mambapy.mamba import MambaConfig

        return Module(MambaConfig(d_model=shape.width, n_layers=1))

    def weights(self) -> dict[str, Tensor]:
        return mamba_mixer(self.module.state_dict())

    def begin(self, prompt: Tensor) -> Step:
        config: Any = self.module.config
        state: Any = None, prompt.new_zeros(len(prompt), config.d_inner, config.d_conv - 1)

        def step(x: Tensor) -> Tensor:
            nonlocal state
            y, state = self.module.step(x, state)
            return y

        return _after(prompt, step)


class Mamba2Mixer(Transformers):
    """Mamba-2 of transformers."""

    name = "transformers Mamba2Mixer"
    layer = "mamba2"

    def build(self, shape: Shape) -> nn.Module:
        from transformers.models.mamba2 import modeling_mamba2 as model

        self.config = model.Mamba2Config(
            hidden_size=shape.width,
            num_hidden_layers=1,
            num_heads=shape.width // 32,  # of 2 * width channels, 64 each
            head_dim=64,
            state_size=128,
            n_groups=1,
            chunk_size=64,  # of 256 it would fill up short sequences
        )
        return model.Mamba2Mixer(self.config, 0)

    def weights(self) -> dict[str, Tensor]:
        return mamba2_mixer(self.module.state_dict())


class Qwen3NextGatedDeltaNet(Transformers):
    """Gated DeltaNet of transformers."""

    name = "transformers Qwen3NextGatedDeltaNet"
    layer = "gated_delta_net"

    def build(self, shape: Shape) -> nn.Module:
        from transformers.models.qwen3_next import modeling_qwen3_next as model

        size = shape.width // shape.heads
        self.config = model.Qwen3NextConfig(
            hidden_size=shape.width,
            num_hidden_layers=1,
            layer_types=["linear_attention"],
            linear_num_key_heads=shape.heads,
            linear_num_value_heads=shape.heads,
            linear_key_head_dim=size,
            linear_value_head_dim=2 * size,
        )
        return model.Qwen3NextGatedDeltaNet(self.config, 0)

    def weights(self) -> dict[str, Tensor]:
        heads = self.config.linear_num_key_heads
        return qwen3_next_mixer(self.module.state_dict(), num_heads=heads)


class XLSTM(Decoder):
    """A layer of xlstm, whose step takes and gives its state by keywords."""

    def begin(self, prompt: Tensor) -> Step:
        state: dict[str, Any] = {}

        def step(x: Tensor) -> Tensor:
            nonlocal state
            y, state = self.module.step(x[:, None], **state)
            return y[:, 0]

        return _after(prompt, step)


class MLSTMLayer(XLSTM):
    """mLSTM of xlstm, in its quadratic form."""

    name = "xlstm mLSTMLayer"
    layer = "mlstm"

    def build(self, shape: Shape) -> nn.Module:
        from xlstm import mLSTMLayer, mLSTMLayerConfig

        return mLSTMLayer(
            mLSTMLayerConfig(
                embedding_dim=shape.width, num_heads=shape.heads, context_length=shape.length
            )
        )

    def weights(self) -> dict[str, Tensor]:
        return xlstm_mlstm(self.module.state_dict())


class SLSTMLayer(XLSTM):
    """sLSTM of xlstm, in plain torch."""

    name = "xlstm sLSTMLayer"
    layer = "slstm"

    def build(self, shape: Shape) -> nn.Module:
        from xlstm import sLSTMLayer, sLSTMLayerConfig

        module = sLSTMLayer(
            sLSTMLayerConfig(
                embedding_dim=shape.width,
                num_heads=shape.heads,
                backend="vanilla",
            )
        )
        module.reset_parameters()
        return module

    def weights(self) -> dict[str, Tensor]:
        from statetrack.models.convert.xlstm import xlstm_slstm

        return xlstm_slstm(self.module.state_dict())


class MultiheadAttention(Peer):
    """Causal attention of torch, which has no positions and no cache."""

    name = "torch MultiheadAttention"
    layer = "attention"
    environment = None
    same_with: ClassVar[dict[str, Any]] = {"rope_base": None}

    def build(self, shape: Shape) -> nn.Module:
        self.mask = nn.Transformer.generate_square_subsequent_mask(shape.length)
        return nn.MultiheadAttention(shape.width, shape.heads, bias=False, batch_first=True)

    def weights(self) -> dict[str, Tensor]:
        state = self.module.state_dict()
        return {
            "qkv_proj.weight": state["in_proj_weight"],
            "o_proj.weight": state["out_proj.weight"],
        }

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x, x, x, need_weights=False, attn_mask=self.mask, is_causal=True)[0]


def _after(prompt: Tensor, step: Step) -> Step:
    """The step, after it has taken the tokens of the prompt."""
    for x in prompt.unbind(1):
        step(x)
    return step


PEERS: tuple[type[Peer], ...] = (
    MambaMixer, MambaBlock, Mamba2Mixer, Qwen3NextGatedDeltaNet, MLSTMLayer, SLSTMLayer,
    MultiheadAttention,
)  # fmt: skip
