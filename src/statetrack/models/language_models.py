"""The paper's language models, by name, in both ranges of eigenvalues.

The paper does not print their sizes. These are the sizes that its authors' scripts and libraries
give to models of these names, with the 32,000 tokens of the Mistral tokenizer.
"""

from __future__ import annotations

from statetrack.config import unknown
from statetrack.layers import DeltaNetConfig, MambaConfig
from statetrack.models.config import ModelConfig

LANGUAGE_MODELS = {
    "delta_net-340M": ModelConfig(
        vocab_size=32_000,
        hidden_size=1024,
        num_layers=24,
        mixer=DeltaNetConfig(num_heads=8),
        mlp_size=2816,
        tie_embeddings=True,
        initializer_range=0.006,  # only the configuration of this model has it
    ),
    "delta_net-1.3B": ModelConfig(
        vocab_size=32_000,
        hidden_size=2048,
        num_layers=24,
        mixer=DeltaNetConfig(num_heads=16),
        mlp_size=5632,
        initializer_range=0.02,
    ),
    "mamba-370M": ModelConfig(
        vocab_size=32_000,
        hidden_size=1024,
        num_layers=48,
        mixer=MambaConfig(),
        norm_eps=1e-5,
        mlp="none",
        tie_embeddings=True,
        initializer_range=0.02,  # no value is published for Mamba
    ),
}


def language_model(name: str, *, allow_neg_eigval: bool = False) -> ModelConfig:
    """Return one of LANGUAGE_MODELS, with eigenvalues in [0, 1] or [-1, 1]."""
    if name not in LANGUAGE_MODELS:
        raise unknown("language model", name, LANGUAGE_MODELS)
    return LANGUAGE_MODELS[name].with_range(allow_neg_eigval)
