"""Layers of transformers and xlstm behind the interface that `statetrack.testing` checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import transformers
import xlstm
from torch import Tensor, nn
from transformers.models.mamba.modeling_mamba import MambaMixer
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
from transformers.models.olmo_hybrid.modeling_olmo_hybrid import OlmoHybridGatedDeltaNet
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from statetrack.testing.case import map_state
from tests.peers.common import NO_TRANSITIONS, Conformance, Peer

transformers.logging.set_verbosity_error()  # that there are no GPU kernels

WIDTH = 24


class Transformers(Peer):
    """A layer with the state that its package's cache holds."""

    def __init__(self, layer: nn.Module, config: Any) -> None:
        super().__init__(layer, config.hidden_size)
        self.config = config

    def forward(
        self, x: Tensor, state: Any = None, *, mask: Tensor | None = None, **packing: Tensor
    ) -> tuple[Tensor, Any]:
        cache = transformers.DynamicCache(config=self.config)
        if state is not None:
            width = self.layer.conv_kernel_size
            cache.update_conv_state(state["conv"], 0, conv_kernel_size=width)
            cache.update_recurrent_state(state["recurrent"], 0)
        y = self.layer(x, cache_params=cache, attention_mask=mask, **packing)
        return y, {
            "conv": cache.get_conv_state(0, state_idx=0),
            "recurrent": cache.get_recurrent_state(0, state_idx=0),
        }


class MLSTM(Peer):
    """A pass neither takes nor gives a state, so states come from steps."""

    def step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        before = map_state(torch.clone, state or {})  # it is written in place
        y, state = self.layer.step(x_t[:, None], **before)
        return y[:, 0], state

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        y = self.layer(x) if state is None else None
        stepped = []
        for x_t in x.unbind(1):
            y_t, state = self.step(x_t, state)
            stepped.append(y_t)
        return torch.stack(stepped, 1) if y is None else y, state


class SLSTM(Peer):
    """The state of a pass: the last inputs of the convolution and the cell's state, batch first."""

    def init_state(self, batch: int) -> Any:
        zeros = self.layer.group_norm.weight.new_zeros
        window = self.layer.config.conv1d_kernel_size - 1
        return zeros(batch, window, self.hidden_size), zeros(batch, 4, self.hidden_size)

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        conv, cell = self.init_state(len(x)) if state is None else state
        y, end = self.layer(x, conv, cell.transpose(0, 1), return_last_state=True)
        return y, (end["conv_state"], end["slstm_state"].transpose(0, 1))

    def step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        conv, cell = state
        window = F.pad(conv, (0, 0, 1, 0))  # a step has one place more
        y, end = self.layer.step(x_t[:, None], (window,), cell.transpose(0, 1))
        return y[:, 0], (end["conv_state"][0][:, 1:], end["slstm_state"].transpose(0, 1))


def make(layer: Callable[..., nn.Module], config: Any) -> Callable[[], Transformers]:
    return lambda: Transformers(layer(config, 0), config)


HEADS: dict[str, Any] = {
    "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4,
    "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 6,
    "linear_value_head_dim": 12, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip

LEFT_ONLY = "padding has to be on the left: masked inputs are set to 0, and the state decays on"
STEP = "a step overwrites the cache that it has read, so that torch refuses gradients"
PASS = "a pass overwrites the cache that it has read, so that torch refuses gradients"
BUFFERS = "the cache is a buffer outside of vmap; without a cache vmap works"
TRANSFORMERS = NO_TRANSITIONS | {
    "right_padding": LEFT_ONLY,
    "holes": LEFT_ONLY,
    "fully_masked": LEFT_ONLY,
    "steps_after_padding": LEFT_ONLY,
    "packed": "on a CPU the package refuses packed sequences",
    "state_gradients": STEP,
    "vmap": BUFFERS,
    "per_sample_gradients": BUFFERS,
}
GATED = TRANSFORMERS | dict.fromkeys(
    ("states_kept", "finite_differences", "float32", "state_gradients"), PASS
)

FINDINGS = {
    "left_padding": (
        "The mask of a pass that continues from a cache sets padded inputs to 0, but the state "
        "still decays there and the convolution still reads them."
    ),
    "garbage_in_padding": "NaN in a padded place spreads, as the mask is multiplied.",
    "hooks": "Forward hooks of `conv1d` are not called: its weight is read directly.",
}
NO_FIRST_STATE = (
    "A pass over several tokens that continues from a cache starts its recurrence at 0 instead of "
    "at the cached state."
)

PACKAGE = "transformers"
NO_MASK = "it takes no mask"
XLSTM = NO_TRANSITIONS | {
    "left_padding": NO_MASK,
    "right_padding": NO_MASK,
    "holes": NO_MASK,
    "fully_masked": NO_MASK,
    "steps_after_padding": NO_MASK,
    "garbage_in_padding": NO_MASK,
    "packed": "it takes no cu_seqlens",
}
EPS = (
    "In float64, a pass and steps differ by up to 1e-7: they stabilise the exponentials at "
    "different scales, and `eps = 1e-6` is added at that scale."
)
STEP_HOOKS = (
    "In steps, forward hooks of the convolution are not called: its weight is read directly."
)
SWAP = (
    "The state that a pass gives cannot be given to a step, nor the other way round: the "
    "convolution's state is a tensor of 3 tokens in the one and a tuple with 4 tokens in the other."
)

PEERS = {
    "mamba": Conformance(
        PACKAGE,
        "MambaMixer",
        make(
            MambaMixer,
            transformers.MambaConfig(
                hidden_size=WIDTH, state_size=4, num_hidden_layers=1, time_step_rank=2
            ),
        ),
        TRANSFORMERS,
        FINDINGS
        | dict.fromkeys(("chunks", "steps", "single_token", "long_sequences"), NO_FIRST_STATE),
    ),
    "mamba2": Conformance(
        PACKAGE,
        "Mamba2Mixer",
        make(
            Mamba2Mixer,
            transformers.Mamba2Config(
                hidden_size=WIDTH,
                state_size=4,
                num_hidden_layers=1,
                num_heads=4,
                head_dim=12,
                n_groups=2,
                chunk_size=8,
            ),
        ),
        TRANSFORMERS,
        FINDINGS,
    ),
    "qwen3_next": Conformance(
        PACKAGE,
        "Qwen3NextGatedDeltaNet",
        # a large eps: finite differences in float32 tell little of a norm of small numbers
        make(Qwen3NextGatedDeltaNet, transformers.Qwen3NextConfig(**HEADS, rms_norm_eps=1e-2)),
        GATED,
        FINDINGS,
    ),
    "olmo_hybrid": Conformance(
        PACKAGE,
        "OlmoHybridGatedDeltaNet",
        make(
            OlmoHybridGatedDeltaNet,
            transformers.OlmoHybridConfig(**HEADS, linear_allow_neg_eigval=True),
        ),
        GATED,
        FINDINGS,
    ),
    "mlstm": Conformance(
        "xlstm",
        "mLSTMLayer",
        lambda: MLSTM(
            xlstm.mLSTMLayer(
                xlstm.mLSTMLayerConfig(embedding_dim=32, num_heads=4, context_length=600)
            ),
            32,
        ),
        XLSTM
        | dict.fromkeys(
            ("vmap", "per_sample_gradients"), "steps write in place; in a pass alone vmap works"
        )
        | {"first_state": "a pass takes no state, so that the adapter goes on by steps"},
        {"chunks": EPS, "hooks": STEP_HOOKS},
        exact=torch.float64,
        perturb=0.1,
    ),
    "slstm": Conformance(
        "xlstm",
        "sLSTMLayer",
        lambda: SLSTM(
            xlstm.sLSTMLayer(
                xlstm.sLSTMLayerConfig(embedding_dim=16, num_heads=2, backend="vanilla")
            ),
            16,
        ),
        XLSTM
        | dict.fromkeys(
            ("vmap", "per_sample_gradients"), "states are written to a buffer outside of vmap"
        )
        | {"meta": "whether all states are 0 is read from their numbers"},
        {"hooks": STEP_HOOKS},
        exact=torch.float64,
    ),
}
