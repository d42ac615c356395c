"""statetrack: linear RNNs that can track state.

The public names load on first use, so that `import statetrack` alone does not load torch.
"""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statetrack.allocator import tune_allocator as tune_allocator
    from statetrack.errors import UserError as UserError
    from statetrack.layers import GLA as GLA
    from statetrack.layers import MLSTM as MLSTM
    from statetrack.layers import SLSTM as SLSTM
    from statetrack.layers import Attention as Attention
    from statetrack.layers import AttentionConfig as AttentionConfig
    from statetrack.layers import DeltaNet as DeltaNet
    from statetrack.layers import DeltaNetConfig as DeltaNetConfig
    from statetrack.layers import DeltaProduct as DeltaProduct
    from statetrack.layers import DeltaProductConfig as DeltaProductConfig
    from statetrack.layers import DiagonalRNN as DiagonalRNN
    from statetrack.layers import DiagonalRNNConfig as DiagonalRNNConfig
    from statetrack.layers import FullMatrix as FullMatrix
    from statetrack.layers import FullMatrixConfig as FullMatrixConfig
    from statetrack.layers import GatedDeltaNet as GatedDeltaNet
    from statetrack.layers import GatedDeltaNetConfig as GatedDeltaNetConfig
    from statetrack.layers import GatedDeltaProduct as GatedDeltaProduct
    from statetrack.layers import GatedDeltaProductConfig as GatedDeltaProductConfig
    from statetrack.layers import GLAConfig as GLAConfig
    from statetrack.layers import Mamba as Mamba
    from statetrack.layers import Mamba2 as Mamba2
    from statetrack.layers import Mamba2Config as Mamba2Config
    from statetrack.layers import MambaConfig as MambaConfig
    from statetrack.layers import MLSTMConfig as MLSTMConfig
    from statetrack.layers import SLSTMConfig as SLSTMConfig
    from statetrack.models import ModelConfig as ModelConfig
    from statetrack.models import SequenceModel as SequenceModel
    from statetrack.ops import delta_product as delta_product
    from statetrack.ops import delta_rule as delta_rule
    from statetrack.ops import gated_linear_attention as gated_linear_attention
    from statetrack.ops import selective_scan as selective_scan
    from statetrack.tasks import make_task as make_task
    from statetrack.theory import compile as compile
    from statetrack.theory import diagnose as diagnose
    from statetrack.theory import explain as explain
    from statetrack.theory import harden as harden
    from statetrack.theory import load as load
    from statetrack.training import Run as Run
    from statetrack.training import RunConfig as RunConfig
    from statetrack.training import TrainingConfig as TrainingConfig
    from statetrack.training import evaluate as evaluate
    from statetrack.training import train as train

__version__ = version("statetrack")

_HOMES = {
    "allocator": ["tune_allocator"],
    "errors": ["UserError"],
    "layers": [
        *("Attention", "AttentionConfig", "DeltaNet", "DeltaNetConfig"),
        *("DeltaProduct", "DeltaProductConfig", "DiagonalRNN", "DiagonalRNNConfig"),
        *("FullMatrix", "FullMatrixConfig", "GatedDeltaNet", "GatedDeltaNetConfig"),
        *("GatedDeltaProduct", "GatedDeltaProductConfig", "GLA", "GLAConfig"),
        *("Mamba", "MambaConfig", "Mamba2", "Mamba2Config", "MLSTM", "MLSTMConfig"),
        *("SLSTM", "SLSTMConfig"),
    ],
    "models": ["ModelConfig", "SequenceModel"],
    "ops": ["delta_product", "delta_rule", "gated_linear_attention", "selective_scan"],
    "tasks": ["make_task"],
    "theory": ["compile", "diagnose", "explain", "harden", "load"],
    "training": ["Run", "RunConfig", "TrainingConfig", "evaluate", "train"],
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = ["__version__", *_HOME_OF]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'statetrack' has no attribute {name!r}")
    return getattr(importlib.import_module(f"statetrack.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
