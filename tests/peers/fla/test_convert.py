"""Whole models of flash-linear-attention, converted: the same logits and gradients.

Their layers run on GPUs only, so theirs is compared with its Triton replaced by its naive functions
and torch (cpu.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fla.models import (
    DeltaNetConfig,
    DeltaNetForCausalLM,
    GatedDeltaNetConfig,
    GatedDeltaNetForCausalLM,
    GatedDeltaProductConfig,
    GatedDeltaProductForCausalLM,
    GLAConfig,
    GLAForCausalLM,
)
from torch import nn

from statetrack import UserError
from statetrack.models.convert import convert, load_pretrained, translate
from tests.ops.common import assert_all_close, assert_close
from tests.peers.common import (
    SINGLE,
    assert_same_gradients,
    logits_and_gradients,
    random_weights,
)
from tests.peers.fla.cpu import on_cpu  # noqa: F401

pytestmark = [
    pytest.mark.usefixtures("on_cpu"),
    pytest.mark.filterwarnings("ignore:ShortConvolution is crucial"),
]

VOCABULARY = 19
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 40,
    "norm_eps": 1e-4,
}  # fmt: skip


def delta_net(**options: Any) -> nn.Module:
    return DeltaNetForCausalLM(DeltaNetConfig(**(SIZES | {"num_heads": 4} | options)))


def gated_delta_net(**options: Any) -> nn.Module:
    chosen = SIZES | {"num_heads": 2, "head_dim": 6} | options
    return GatedDeltaNetForCausalLM(GatedDeltaNetConfig(**chosen))


def gated_delta_product(**options: Any) -> nn.Module:
    chosen = SIZES | {"num_heads": 2, "head_dim": 6, "num_householder": 2} | options
    return GatedDeltaProductForCausalLM(GatedDeltaProductConfig(**chosen))


def gla(**options: Any) -> nn.Module:
    return GLAForCausalLM(GLAConfig(**(SIZES | {"num_heads": 2} | options)))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "delta_net": delta_net,
    "delta_net-[-1,1]": lambda: delta_net(allow_neg_eigval=True),
    "delta_net-tied": lambda: delta_net(tie_word_embeddings=True, conv_size=3),
    "delta_net-sizes": lambda: delta_net(expand_k=0.5, expand_v=1.5),
    "delta_net-no-conv": lambda: delta_net(use_short_conv=False, qk_activation="identity"),
    "delta_net-gate": lambda: delta_net(use_gate=True),
    "delta_net-mlp": lambda: delta_net(intermediate_size=None, hidden_ratio=3),
    "gated_delta_net": gated_delta_net,
    "gated_delta_net-[-1,1]": lambda: gated_delta_net(allow_neg_eigval=True, use_gate=False),
    "gated_delta_net-shared-keys": lambda: gated_delta_net(num_v_heads=4, expand_v=1.5),
    "gated_delta_net-no-conv": lambda: gated_delta_net(use_short_conv=False),
    "delta_product": lambda: gated_delta_product(allow_neg_eigval=True),
    "delta_product-of-1": lambda: gated_delta_product(num_householder=1, use_output_gate=False),
    "delta_product-bare": lambda: gated_delta_product(use_output_gate=False, use_short_conv=False),
    "gated_delta_product-of-3": lambda: gated_delta_product(
        use_forget_gate=True, num_householder=3, expand_v=1.0
    ),
    "gated_delta_product-no-conv": lambda: gated_delta_product(
        use_forget_gate=True, use_short_conv=False
    ),
    "gla": gla,
    "gla-conv": lambda: gla(use_short_conv=True, conv_size=3, expand_k=1.0, fuse_norm=False),
}


@pytest.fixture(params=list(MODELS))
def theirs(request: Any) -> Any:
    return random_weights(MODELS[request.param]())


def test_logits_and_gradients(theirs: Any) -> None:
    config = theirs.config.to_dict()
    x = torch.randint(VOCABULARY, (2, 33), generator=torch.Generator().manual_seed(1))
    expected, their_gradients = logits_and_gradients(
        theirs, lambda: theirs(x, use_cache=False).logits
    )
    ours = convert(config, theirs.state_dict())
    logits, gradients = logits_and_gradients(ours, lambda: ours(x)[0])
    assert_close(logits, expected, SINGLE)
    _, renamed = translate(config, their_gradients)
    if theirs.config.tie_word_embeddings:
        del renamed["head.weight"]
    assert_same_gradients(gradients, renamed)


def test_from_a_folder(theirs: Any, tmp_path: Path) -> None:
    theirs.save_pretrained(tmp_path)
    saved = load_pretrained(tmp_path)
    direct = convert(theirs.config.to_dict(), theirs.state_dict())
    assert saved.config == direct.config
    assert_all_close(saved.state_dict(), direct.state_dict(), 0.0)


def test_the_range_is_one_argument(theirs: Any) -> None:
    config, state = theirs.config.to_dict(), theirs.state_dict()
    for allow in (False, True):
        ours = convert(config, state, allow_neg_eigval=allow)
        assert all(mixer.allow_neg_eigval == allow for mixer in ours.config.mixers)
    as_it_is = config.get("allow_neg_eigval", False)  # theirs has no such option for GLA
    assert convert(config, state).config.mixers[0].allow_neg_eigval == as_it_is


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (delta_net, {"qk_activation": "relu"}),
        (delta_net, {"qk_norm": "sum"}),
        (delta_net, {"use_beta": False}),
        (delta_net, {"use_short_conv": False}),
        (delta_net, {"hidden_act": "powlu"}),
        (delta_net, {"attn": {"layers": [0], "num_heads": 2}}),
        (gla, {"num_kv_heads": 1}),
        (gla, {"feature_map": "relu"}),
        (gla, {"clamp_min": -2.0}),
        (gla, {"use_output_gate": False}),
        (gla, {"elementwise_affine": False}),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value.__name__,
)
def test_what_ours_cannot_do_is_refused(
    make: Callable[[], nn.Module], options: dict[str, Any]
) -> None:
    theirs: Any = make()
    name = "qk_activation" if "use_short_conv" in options else next(iter(options))
    with pytest.raises(UserError, match=f"the checkpoint's {name} must be "):
        convert({**theirs.config.to_dict(), **options}, theirs.state_dict())


def test_another_output_gate_is_refused() -> None:
    theirs: Any = gated_delta_net(output_gate_activation="sigmoid")
    with pytest.raises(UserError, match="output_gate_activation must be 'swish' or 'silu'"):
        convert(theirs.config.to_dict(), theirs.state_dict())


@pytest.mark.parametrize("gate", [False, True])
def test_tensors_that_do_not_fit_the_options(gate: bool) -> None:
    theirs: Any = delta_net(use_gate=gate)
    said = "not absent" if gate else "missing, not"
    with pytest.raises(UserError, match=f"do not fit .*g_proj.weight would be .*{said}"):
        convert({**theirs.config.to_dict(), "use_gate": not gate}, theirs.state_dict())
