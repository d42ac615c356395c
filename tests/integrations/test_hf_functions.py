"""Our functions under the arguments of transformers', as far as they go without that package."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from statetrack.errors import UserError
from statetrack.integrations import hf_functions

X = torch.ones(1, 4, 1, 2)
CALLS: dict[str, tuple[Any, ...]] = {
    "causal_conv": (X, X),
    "mamba_scan": (X, X, X, X, X),
    "mamba_step": (X, X, X, X, X, X),
    "mamba2_scan": (X, X, X, X, X, 64),
    "mamba2_step": (X, X, X, X, X, X),
    "gated_delta_rule": (X, X, X, X[..., 0], X[..., 0]),
    "gated_delta_rule_step": (X, X, X, X[..., 0], X[..., 0]),
}


@pytest.mark.parametrize("option", ["cu_seqlens", "seq_idx"])
@pytest.mark.parametrize("name", CALLS)
def test_packed_sequences_are_refused(name: str, option: str) -> None:
    bounds = torch.tensor([0, 2, 4])
    with pytest.raises(UserError, match="no packed sequences"):
        getattr(hf_functions, name)(*CALLS[name], **{option: bounds})
