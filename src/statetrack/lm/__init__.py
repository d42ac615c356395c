"""Language models: Hugging Face classes, text data, pretraining and evaluation.

Everything here but `extra` needs the extra `lm`: pip install "statetrack[lm]". The public names
load on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from statetrack.lm.extra import require_lm

if TYPE_CHECKING:
    from statetrack.lm.hf_cache import StateTrackCache as StateTrackCache
    from statetrack.lm.hf_config import StateTrackConfig as StateTrackConfig
    from statetrack.lm.hf_model import StateTrackForCausalLM as StateTrackForCausalLM
    from statetrack.lm.hf_model import StateTrackModel as StateTrackModel
    from statetrack.lm.load import load_language_model as load_language_model
    from statetrack.lm.pretraining.config import PretrainingConfig as PretrainingConfig
    from statetrack.lm.pretraining.loop import pretrain as pretrain

PUBLIC = {
    "StateTrackCache": "hf_cache",
    "StateTrackConfig": "hf_config",
    "StateTrackForCausalLM": "hf_model",
    "StateTrackModel": "hf_model",
    "load_language_model": "load",
    "PretrainingConfig": "pretraining.config",
    "pretrain": "pretraining.loop",
}
"""Public names, and the modules that define them."""


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module 'statetrack.lm' has no attribute {name!r}")
    require_lm()
    importlib.import_module("statetrack.lm.hf_model")  # registers the classes with transformers
    return getattr(importlib.import_module(f"statetrack.lm.{PUBLIC[name]}"), name)
