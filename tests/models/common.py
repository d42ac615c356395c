"""The models under test: each option of ModelConfig at least once, small sizes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from statetrack.layers import (
    AttentionConfig,
    DeltaNetConfig,
    DiagonalRNNConfig,
    FullMatrixConfig,
    MambaConfig,
)
from statetrack.models import ExpertsConfig, ModelConfig, SequenceModel
from statetrack.testing.inputs import draw
from tests.layers.common import tidy
from tests.ops.common import assert_close

VOCAB = 5
DELTA = DeltaNetConfig(allow_neg_eigval=True, num_heads=2)
PLAIN_DELTA = DeltaNetConfig(num_heads=4, conv_size=0)
MAMBA = MambaConfig(allow_neg_eigval=True, d_state=3)
ATTENTION = AttentionConfig(num_heads=2)
DIAGONAL = DiagonalRNNConfig(allow_neg_eigval=True)


def small(**options) -> ModelConfig:
    """A ModelConfig of width 8."""
    return ModelConfig(**{"vocab_size": VOCAB, "hidden_size": 8, "mlp_size": 12, **options})


MODELS = [
    pytest.param(config, id=name)
    for name, config in {
        "delta_net": small(mixer=DELTA),
        "mamba": small(mixer=MAMBA, mlp="none", final_norm=False, initializer_range=None),
        "hybrid": small(mixer=(DELTA, MAMBA), num_layers=4),
        "hybrid-of-three": small(mixer=(MAMBA, PLAIN_DELTA, DELTA), num_layers=3, norm="layer"),
        "attention": small(mixer=ATTENTION),
        "hybrid-with-attention": small(mixer=(DELTA, ATTENTION, MAMBA), num_layers=3),
        "norm-after": small(
            mixer=(DELTA, ATTENTION), norm_after=("attention",), num_layers=4, norm_eps=0.1
        ),
        "mlp-after": small(mixer=(DELTA, MAMBA), mlp_after=("mamba",), num_layers=4),
        "experts": small(
            mixer=DELTA, experts=ExpertsConfig(count=4, top_k=2, size=6, shared_size=5)
        ),
        "experts-in-one-layer": small(
            mixer=(DELTA, ATTENTION),
            experts=ExpertsConfig(count=3, size=4, shared_size=3, normalize=False, layers=(1,)),
        ),
        "diagonal_rnn": small(
            mixer=DIAGONAL, num_layers=1, norm="layer", residual=False, mlp="none"
        ),
        "full_matrix": small(
            mixer=FullMatrixConfig(size=3), num_layers=1, hidden_size=VOCAB, embedding="one_hot",
            norm="none", residual=False, mlp="none", final_norm=False, head="none",
        ),
        "one-hot": small(mixer=PLAIN_DELTA, num_layers=1, embedding="one_hot", norm="none"),
        "no-residual": small(mixer=(DELTA, MAMBA), residual=False, mlp="gated_gelu"),
        "layer-norm": small(mixer=PLAIN_DELTA, norm="layer", norm_eps=1e-5, head_bias=True),
        "tied": small(mixer=MAMBA, tie_embeddings=True, mlp="gated_gelu"),
        "bare": small(mixer=DELTA, norm="none", final_norm=False, mlp="none", residual=False),
    }.items()
]  # fmt: skip


def make_model(config: ModelConfig, seed: int = 0) -> SequenceModel:
    """The model in float64 with weights large enough that every part counts."""
    torch.manual_seed(seed)
    model = SequenceModel(config).double()
    normal = draw(seed)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3 * normal(*p.shape)
    return model


def tokens(batch: int, length: int, seed: int = 1) -> Tensor:
    """[batch, length] token ids."""
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def assert_same_states(actual, expected, tolerance: float = 1e-10) -> None:
    assert isinstance(actual, tuple)
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        assert type(a) is type(b)
        for name, x, y in zip(b._fields, tidy(a), tidy(b), strict=True):
            assert_close(x, y, tolerance, name)
