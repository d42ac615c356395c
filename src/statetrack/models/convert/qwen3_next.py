"""Qwen3-Next and the text models of Qwen3.5: Gated DeltaNet and gated attention, MLPs or experts.

Two kinds of tensors are left out: `mtp.*`, for the prediction of several tokens, which transformers
does not read either, and the encoder of images of Qwen3.5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from statetrack.config import one_of
from statetrack.errors import UserError
from statetrack.layers import AttentionConfig, GatedDeltaNetConfig, MixerConfig
from statetrack.models.config import ModelConfig
from statetrack.models.convert import weights
from statetrack.models.convert.checkpoint import Options, Tensors
from statetrack.models.convert.gated_delta_net import qwen3_5_mixer, qwen3_next_mixer
from statetrack.models.convert.weights import State, Weights
from statetrack.models.experts import ExpertsConfig

EXPERTS = (
    "num_experts", "num_experts_per_tok", "moe_intermediate_size",
    "shared_expert_intermediate_size",
)  # fmt: skip
"""The options of `ExpertsConfig`, in order."""

IMAGES = (
    "vision_config", "image_token_id", "video_token_id", "vision_start_token_id",
    "vision_end_token_id",
)  # fmt: skip

ROPE = {"rope_type", "rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved"}
"""Those of mrope place images; a text has one position in all of them."""


def qwen3_next(options: Options, tensors: Tensors) -> tuple[ModelConfig, Weights]:
    """Convert a `Qwen3NextForCausalLM`, in which any layers may have experts."""
    num_layers = options.size("num_hidden_layers", 48)
    step, dense = options.size("decoder_sparse_step", 1), options.get("mlp_only_layers", None) or []
    if not isinstance(dense, list):
        raise UserError(f"the checkpoint's mlp_only_layers must be a list; got {dense!r}")
    layers = [n for n in range(num_layers) if n not in dense and (n + 1) % step == 0]
    experts = None
    options.expect("norm_topk_prob", True, False)
    if options.get("num_experts", 512) == 0 or not layers:
        options.ignore(*EXPERTS)
    else:
        experts = replace(
            _experts(options, (512, 10, 512, 512)),
            normalize=options.get("norm_topk_prob", True),
            layers=None if len(layers) == num_layers else tuple(layers),
        )
    options.expect("use_sliding_window", False)
    rename = partial(qwen3_next_mixer, num_heads=options.size("linear_num_key_heads", 16))
    sizes = {"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632}
    return _model(options, tensors, sizes, num_layers, 2, rename, experts)


def qwen3_5_text(
    options: Options, tensors: Tensors, root: str = "model"
) -> tuple[ModelConfig, Weights]:
    """Convert a `Qwen3_5ForCausalLM`, the text model of Qwen3.5."""
    num_layers = options.size("num_hidden_layers", 32)
    sizes = {"vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288}
    return _model(options, tensors, sizes, num_layers, 4, qwen3_5_mixer, None, root)


def qwen3_5_moe_text(
    options: Options, tensors: Tensors, root: str = "model"
) -> tuple[ModelConfig, Weights]:
    """Convert a `Qwen3_5MoeForCausalLM`, the text model of a Qwen3.5 whose layers have experts."""
    num_layers = options.size("num_hidden_layers", 40)
    sizes = {"vocab_size": 248320, "hidden_size": 2048}
    experts = _experts(options, (256, 8, 512, 512))
    return _model(options, tensors, sizes, num_layers, 2, qwen3_5_mixer, experts, root)


def qwen3_5(options: Options, tensors: Tensors) -> tuple[ModelConfig, Weights]:
    """Convert the text model of a `Qwen3_5ForConditionalGeneration`."""
    return _without_images(qwen3_5_text, options, tensors)


def qwen3_5_moe(options: Options, tensors: Tensors) -> tuple[ModelConfig, Weights]:
    """Convert the text model of a `Qwen3_5MoeForConditionalGeneration`."""
    return _without_images(qwen3_5_moe_text, options, tensors)


def _without_images(
    convert: Callable[[Options, Tensors, str], tuple[ModelConfig, Weights]],
    options: Options,
    tensors: Tensors,
) -> tuple[ModelConfig, Weights]:
    """Convert the text model; whether its embeddings are tied is an option outside of it."""
    text = options.get("text_config", None)
    if not isinstance(text, Mapping):
        raise UserError(f"the checkpoint's text_config must be an object with keys; got {text!r}")
    options.ignore(*IMAGES)
    tensors.under("model.visual.").ignore()
    tied = options.get("tie_word_embeddings", False)
    inner = Options({**text, "tie_word_embeddings": tied})
    made = convert(inner, tensors, "model.language_model")
    inner.finish()
    return made


def _experts(options: Options, defaults: tuple[int, ...]) -> ExpertsConfig:
    return ExpertsConfig(*(options.size(*size) for size in zip(EXPERTS, defaults, strict=True)))


def _model(
    options: Options,
    tensors: Tensors,
    sizes: dict[str, int],
    num_layers: int,
    kv_heads: int,
    rename: Callable[[State], Weights],
    experts: ExpertsConfig | None,
    root: str = "model",
) -> tuple[ModelConfig, Weights]:
    """Convert a model.

    `sizes` and `kv_heads` are defaults, `rename` renames a Gated DeltaNet, and the names of the
    tensors begin with `root`.
    """
    options.expect("hidden_act", "silu", "swish")
    options.expect("attention_bias", False)
    options.expect("attention_dropout", 0.0, None)
    options.expect("attn_output_gate", True)
    options.ignore("output_router_logits", "router_aux_loss_coef")  # of the loss
    options.ignore("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mamba_ssm_dtype")
    tensors.under("mtp.").ignore()
    interval = options.size("full_attention_interval", 4)
    default = [
        "linear_attention" if (n + 1) % interval else "full_attention" for n in range(num_layers)
    ]
    kinds = options.layer_types(default)
    vocab_size, hidden_size, *mlp_size = (options.size(*size) for size in sizes.items())
    mixers = {
        "linear_attention": _gated_delta_net(options, hidden_size),
        "full_attention": _attention(options, kv_heads),
    }
    config = ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        mixer=tuple(mixers[kind] for kind in kinds),
        norm_eps=options.get("rms_norm_eps", 1e-6),
        mlp_size=mlp_size[0] if mlp_size else None,
        experts=experts,
        tie_embeddings=options.get("tie_word_embeddings", False),
    )

    def block(layer: int, source: Tensors) -> Weights:
        if kinds[layer] == "full_attention":
            mixer = attention_mixer(source.under("self_attn."))
        else:
            mixer = rename(source.under("linear_attn."))
        if experts is not None and config.has_experts(layer):
            mlp = weights.experts(source.under("mlp."), experts.count)
        else:
            mlp = weights.gated_mlp(source.under("mlp."))
        return {
            "mixer_norm.weight": _from_zero(source["input_layernorm.weight"]),
            "mlp_norm.weight": _from_zero(source["post_attention_layernorm.weight"]),
            **weights.prefixed("mixer.", mixer),
            **weights.prefixed("mlp.", mlp),
        }

    names = f"{root}.embed_tokens.weight", f"{root}.norm.weight", f"{root}.layers"
    out = weights.model_weights(tensors, config, *names, block)
    return config, out | {"norm.weight": _from_zero(out["norm.weight"])}


def attention_mixer(state: State) -> Weights:
    """Rename a `Qwen3NextAttention`; the rows of its q_proj are, head by head, q and its gate."""
    norm, queries = state["q_norm.weight"], state["q_proj.weight"]
    if len(queries) % (2 * len(norm)):
        wanted = f"a multiple of {2 * len(norm)}"
        raise UserError(f"the checkpoint's q_proj has {len(queries)} rows, not {wanted}")
    q, gate = (part.flatten(0, 1) for part in queries.unflatten(0, (-1, 2, len(norm))).unbind(1))
    return {
        "qkv_proj.weight": weights.stacked(q, state["k_proj.weight"], state["v_proj.weight"]),
        "g_proj.weight": gate,
        "q_norm.weight": _from_zero(norm),
        "k_norm.weight": _from_zero(state["k_norm.weight"]),
        "o_proj.weight": state["o_proj.weight"],
    }


def _gated_delta_net(options: Options, hidden_size: int) -> MixerConfig:
    heads = options.size("linear_num_key_heads", 16)
    value_heads = options.size("linear_num_value_heads", 32)
    return GatedDeltaNetConfig(
        num_heads=heads,
        num_v_heads=value_heads,
        expand_k=heads * options.size("linear_key_head_dim", 128) / hidden_size,
        expand_v=value_heads * options.size("linear_value_head_dim", 128) / hidden_size,
        conv_size=options.size("linear_conv_kernel_dim", 4),
        output_norm_eps=options.get("rms_norm_eps", 1e-6),
    )


def _attention(options: Options, kv_heads: int) -> MixerConfig:
    old = {
        "rope_theta": options.get("rope_theta", 10_000.0),
        "partial_rotary_factor": options.get("partial_rotary_factor", 0.25),
    }
    options.expect("rope_scaling", None)
    rope = options.get("rope_parameters", None) or {}
    if not isinstance(rope, dict) or not rope.keys() <= ROPE:
        allowed = ", ".join(sorted(ROPE))
        raise UserError(f"the checkpoint's rope_parameters may have {allowed}; got {rope!r}")
    one_of("the checkpoint's rope_type", rope.get("rope_type", "default"), ["default"])
    return AttentionConfig(
        num_heads=options.size("num_attention_heads", 16),
        num_kv_heads=options.size("num_key_value_heads", kv_heads),
        head_dim=options.size("head_dim", 256),
        rope_base=float((old | rope)["rope_theta"]),
        rope_fraction=(old | rope)["partial_rotary_factor"],
        qk_norm_eps=options.get("rms_norm_eps", 1e-6),
        qk_norm_by_head=True,
        output_gate=True,
    )


def _from_zero(weight: Tensor) -> Tensor:
    """The gain of a norm: Qwen stores how far it is from 1."""
    return weight.to(torch.promote_types(weight.dtype, torch.float32)) + 1
