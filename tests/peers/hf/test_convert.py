"""Whole models of transformers, converted: the same logits, from a folder as from a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from statetrack import UserError
from statetrack.models.convert import convert, load_pretrained, read_checkpoint, translate
from statetrack.models.convert.restore import restore
from tests.ops.common import assert_close
from tests.peers.common import SINGLE, assert_same_gradients, logits_and_gradients
from tests.peers.hf import models

CONVERTED = {
    "mamba": models.mamba,
    "mamba-untied": lambda: models.mamba(tie_word_embeddings=False, expand=3, conv_kernel=3),
    "mamba2": models.mamba2,
    "mamba2-tied": lambda: models.mamba2(tie_word_embeddings=True, n_groups=1, conv_kernel=3),
    "mamba2-limits": lambda: models.mamba2(time_step_limit=(0.3, 1.0)),
    "olmo_hybrid": models.olmo_hybrid,
    "olmo_hybrid-[0,1]": lambda: models.olmo_hybrid(linear_allow_neg_eigval=False),
    "olmo_hybrid-no-positions": lambda: models.olmo_hybrid(
        rope_parameters={"rope_type": "default", "rope_theta": None}
    ),
    "olmo_hybrid-shared-heads": lambda: models.olmo_hybrid(
        num_key_value_heads=2, linear_num_key_heads=2, linear_num_value_heads=4, rms_norm_eps=1e-3
    ),
    "qwen3_next": models.qwen3_next,
    "qwen3_next-experts-in-one-layer": lambda: models.qwen3_next(
        decoder_sparse_step=2, norm_topk_prob=False, shared_expert_intermediate_size=10
    ),
    "qwen3_next-all-experts": lambda: models.qwen3_next(
        mlp_only_layers=[0], num_experts=3, num_experts_per_tok=3
    ),
    "qwen3_next-mlps-only": lambda: models.qwen3_next(mlp_only_layers=[0, 1]),
    "qwen3_next-no-experts": lambda: models.qwen3_next(
        num_experts=0,
        rms_norm_eps=1e-3,
        rope_parameters={"rope_type": "default", "rope_theta": 99.0, "partial_rotary_factor": 0.5},
    ),
    "qwen3_5": models.qwen3_5,
    "qwen3_5_moe": models.qwen3_5_moe,
    "qwen3_5-images": models.qwen3_5_images,
    "qwen3_5-tied": lambda: models.qwen3_5(tie_word_embeddings=True, num_key_value_heads=4),
}


@pytest.fixture(params=list(CONVERTED))
def theirs(request: Any) -> Any:
    return CONVERTED[request.param]()


def assert_same(ours: Any, theirs: Any) -> None:
    x = models.tokens(2, 40)
    with torch.no_grad():
        assert_close(ours(x)[0], theirs(x, use_cache=False).logits, SINGLE)


@pytest.mark.parametrize("length", [2, 70])
def test_logits_and_gradients(theirs: Any, length: int) -> None:
    config, x = theirs.config.to_dict(), models.tokens(2, length)
    ours = convert(config, theirs.state_dict())
    expected, their_gradients = logits_and_gradients(
        theirs, lambda: theirs(x, use_cache=False).logits
    )
    logits, gradients = logits_and_gradients(ours, lambda: ours(x)[0])
    assert_close(logits, expected, SINGLE)
    _, renamed = translate(config, their_gradients)
    _, added = translate(config, {n: torch.zeros_like(g) for n, g in their_gradients.items()})
    renamed = {name: gradient - added[name] for name, gradient in renamed.items()}
    if theirs.config.tie_word_embeddings:
        del renamed["head.weight"]
    assert_same_gradients(gradients, renamed, SINGLE if config["model_type"] == "mamba" else 1e-4)


@torch.no_grad()
def test_single_steps(theirs: Any) -> None:
    x = models.tokens(2, 20)
    ours = convert(theirs.config.to_dict(), theirs.state_dict())
    expected = theirs(x, use_cache=False).logits
    logits, state = ours(x[:, :12])
    assert_close(logits, expected[:, :12], SINGLE)
    for t in range(12, 20):
        y, state = ours.step(x[:, t], state)
        assert_close(y, expected[:, t], SINGLE)


@pytest.mark.parametrize("shards", [1, 3])
def test_from_a_folder(theirs: Any, tmp_path: Path, shards: int) -> None:
    size = sum(p.numel() * p.element_size() for p in theirs.parameters())
    theirs.save_pretrained(tmp_path, max_shard_size=size // shards + 1)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shards > 1)
    assert_same(load_pretrained(tmp_path), theirs)


def test_half_precision(theirs: Any, tmp_path: Path) -> None:
    theirs.bfloat16().save_pretrained(tmp_path)
    ours = load_pretrained(tmp_path)
    assert {p.dtype for p in ours.parameters()} == {torch.float32}
    assert_same(ours, type(theirs).from_pretrained(tmp_path, dtype=torch.float32))


def test_written_back(theirs: Any, tmp_path: Path) -> None:
    """From files, which have the experts one by one, and from a state dict, which stacks them."""
    theirs.bfloat16().save_pretrained(tmp_path)
    config, files = read_checkpoint(tmp_path)
    for tensors in (files, theirs.state_dict()):
        ours = convert(config, tensors)
        written, made = restore(ours, config, tensors)
        assert written == config
        assert made.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert torch.equal(made[name], tensor), name
    theirs.load_state_dict(made)


def test_the_range_is_one_argument(theirs: Any) -> None:
    config, state = theirs.config.to_dict(), theirs.state_dict()
    x = models.tokens(1, 12)
    lows = []
    for allow in (False, True):
        ours = convert(config, state, allow_neg_eigval=allow)
        found = [t for t in ours.transitions(x) if t is not None]
        assert all(t.bounds[0] == (-1.0 if allow else 0.0) for t in found)
        lows.append(min(float(t.eigvals().real.min()) for t in found))
    assert lows[0] >= 0 > lows[1]


def test_options_of_the_first_released_checkpoints() -> None:
    theirs = models.mamba()
    more = {"d_inner": 48, "d_model": 24, "n_layer": 2, "ssm_cfg": {}, "rms_norm": True,
            "fused_add_norm": True, "pad_vocab_size_multiple": 8}  # fmt: skip
    assert_same(convert({**theirs.config.to_dict(), **more}, theirs.state_dict()), theirs)


def test_what_is_not_known_is_refused(theirs: Any) -> None:
    config, state = theirs.config.to_dict(), theirs.state_dict()

    def changed(**options: Any) -> dict[str, Any]:
        """With other options of the text model."""
        if "text_config" in config:
            return {**config, "text_config": {**config["text_config"], **options}}
        return {**config, **options}

    with pytest.raises(UserError, match="options without a meaning here: new_option"):
        convert(changed(new_option=1), state)
    with pytest.raises(UserError, match="hidden_act must be 'silu' or 'swish'; got 'relu'"):
        convert(changed(hidden_act="relu"), state)
    with pytest.raises(UserError, match=r"tensors without a place here: extra\.weight"):
        convert(config, {**state, "extra.weight": torch.ones(1)})
    name = next(name for name in state if "layers.1." in name)
    with pytest.raises(UserError, match=f"no tensor {name}"):
        convert(config, {k: v for k, v in state.items() if k != name})
    with pytest.raises(UserError, match=r"do not fit its config[.]json"):
        convert(changed(vocab_size=7), state)
    with pytest.raises(UserError, match=r"unknown model_type 'llama'; known: .*mamba"):
        convert({"model_type": "llama"}, state)
