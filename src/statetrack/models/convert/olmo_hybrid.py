"""OLMo-Hybrid of transformers (`OlmoHybridForCausalLM`): layers of Gated DeltaNet and attention."""

from __future__ import annotations

from typing import Any

from statetrack.config import one_of
from statetrack.errors import UserError
from statetrack.layers import AttentionConfig, GatedDeltaNetConfig, MixerConfig
from statetrack.models.config import ModelConfig
from statetrack.models.convert import weights
from statetrack.models.convert.checkpoint import Options, Tensors
from statetrack.models.convert.gated_delta_net import delta_rule_mixer
from statetrack.models.convert.weights import State, Weights

IN_FILES = {
    "input_layernorm": "attention_layer_norm",
    "post_attention_layernorm": "feedforward_layer_norm",
}
"""Names of norms in transformers' modules, and in the files that it writes."""

OUTPUT_NORM_EPS = 1e-5  # of the norm of each head; independent of rms_norm_eps


def olmo_hybrid(options: Options, tensors: Tensors) -> tuple[ModelConfig, Weights]:
    """Convert a model; norms come before Gated DeltaNet and its MLP, but after attention."""
    options.expect("hidden_act", "silu", "swish")
    options.expect("attention_bias", False)
    options.expect("attention_dropout", 0.0, None)
    options.ignore("linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max")
    options.ignore("linear_dt_init_floor")
    num_layers = options.size("num_hidden_layers", 32)
    kinds = options.layer_types(_default_kinds(num_layers))
    mixers = {"linear_attention": _gated_delta_net(options), "full_attention": _attention(options)}
    config = ModelConfig(
        vocab_size=options.size("vocab_size", 100352),
        hidden_size=options.size("hidden_size", 3840),
        num_layers=num_layers,
        mixer=tuple(mixers[kind] for kind in kinds),
        norm_after=("attention",) if "full_attention" in kinds else (),
        norm_eps=options.get("rms_norm_eps", 1e-6),
        mlp_size=options.size("intermediate_size", 11008),
        tie_embeddings=options.get("tie_word_embeddings", False),
    )

    def block(layer: int, source: Tensors) -> Weights:
        if kinds[layer] == "full_attention":
            norms = "post_attention_layernorm", "post_feedforward_layernorm"
            mixer = attention_mixer(source.under("self_attn."))
        else:
            norms = "input_layernorm", "post_attention_layernorm"
            mixer = delta_rule_mixer(source.under("linear_attn."))
        norm_weights = {}
        for ours, norm in zip(("mixer_norm", "mlp_norm"), norms, strict=True):
            theirs = norm if f"{norm}.weight" in source else IN_FILES.get(norm, norm)
            norm_weights[f"{ours}.weight"] = source[f"{theirs}.weight"]
        mlp = weights.gated_mlp(source.under("mlp."))
        return norm_weights | weights.prefixed("mixer.", mixer) | weights.prefixed("mlp.", mlp)

    names = "model.embed_tokens.weight", "model.norm.weight", "model.layers"
    return config, weights.model_weights(tensors, config, *names, block)


def attention_mixer(state: State) -> Weights:
    """Rename the weights of an `OlmoHybridAttention`."""
    same = ("q_norm.weight", "k_norm.weight", "o_proj.weight")
    return weights.qkv(state) | weights.renamed(state, same)


def _gated_delta_net(options: Options) -> MixerConfig:
    hidden_size, heads = options.size("hidden_size", 3840), options.size("num_attention_heads", 30)
    key_heads = options.size("linear_num_key_heads", None) or heads
    value_heads = options.size("linear_num_value_heads", None) or heads
    key_size = options.size("linear_key_head_dim", None) or int(0.75 * hidden_size / key_heads)
    value_size = options.size("linear_value_head_dim", None) or 2 * key_size
    return GatedDeltaNetConfig(
        allow_neg_eigval=options.get("linear_allow_neg_eigval", True),
        num_heads=key_heads,
        num_v_heads=value_heads,
        expand_k=key_heads * key_size / hidden_size,
        expand_v=value_heads * value_size / hidden_size,
        conv_size=options.size("linear_conv_kernel_dim", 4),
        output_norm_eps=OUTPUT_NORM_EPS,
    )


def _attention(options: Options) -> MixerConfig:
    return AttentionConfig(
        num_heads=options.size("num_attention_heads", 30),
        num_kv_heads=options.size("num_key_value_heads", None),
        rope_base=_rope_base(options.get("rope_parameters", None) or {}),
        qk_norm_eps=options.get("rms_norm_eps", 1e-6),
    )


def _rope_base(rope: Any) -> float | None:
    """The base of rotary embeddings; None, as in the released checkpoints: no positions."""
    if not isinstance(rope, dict):
        raise UserError(f"the checkpoint's rope_parameters must be an object; got {rope!r}")
    one_of("the checkpoint's rope_type", rope.get("rope_type", "default"), ["default"])
    return rope.get("rope_theta", 10_000.0)


def _default_kinds(num_layers: int) -> list[str]:
    """Attention in every fourth layer, and at least in the last."""
    kinds = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
    kinds = (kinds * (num_layers // 4 + 1))[:num_layers]
    return kinds if "full_attention" in kinds else [*kinds[:-1], "full_attention"]
