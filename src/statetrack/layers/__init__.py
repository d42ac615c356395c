"""The layers, one file each. A new file registers and exports its layer without an edit here."""

import importlib
import pkgutil
import sys

from statetrack.layers.attention import Attention, AttentionConfig, AttentionState
from statetrack.layers.base import MIXERS, Mixer, MixerConfig
from statetrack.layers.base import register as register  # in no `__all__`: tasks have one, too
from statetrack.layers.delta_net import DeltaNet, DeltaNetConfig, DeltaNetState
from statetrack.layers.delta_product import DeltaProduct, DeltaProductConfig
from statetrack.layers.diagonal_rnn import DiagonalRNN, DiagonalRNNConfig, DiagonalRNNState
from statetrack.layers.full_matrix import FullMatrix, FullMatrixConfig, FullMatrixState
from statetrack.layers.gated_delta_net import GatedDeltaNet, GatedDeltaNetConfig
from statetrack.layers.gated_delta_product import GatedDeltaProduct, GatedDeltaProductConfig
from statetrack.layers.gla import GLA, GLAConfig, GLAState
from statetrack.layers.mamba import Mamba, MambaConfig, MambaState
from statetrack.layers.mamba2 import Mamba2, Mamba2Config, Mamba2State
from statetrack.layers.mlstm import MLSTM, MLSTMConfig, MLSTMState
from statetrack.layers.slstm import SLSTM, SLSTMConfig, SLSTMState
from statetrack.layers.transitions import (
    Dense,
    Diagonal,
    Guarantee,
    HouseholderProduct,
    Transition,
)

__all__ = [
    "GLA",
    "MIXERS",
    "MLSTM",
    "SLSTM",
    "Attention",
    "AttentionConfig",
    "AttentionState",
    "DeltaNet",
    "DeltaNetConfig",
    "DeltaNetState",
    "DeltaProduct",
    "DeltaProductConfig",
    "Dense",
    "Diagonal",
    "DiagonalRNN",
    "DiagonalRNNConfig",
    "DiagonalRNNState",
    "FullMatrix",
    "FullMatrixConfig",
    "FullMatrixState",
    "GLAConfig",
    "GLAState",
    "GatedDeltaNet",
    "GatedDeltaNetConfig",
    "GatedDeltaProduct",
    "GatedDeltaProductConfig",
    "Guarantee",
    "HouseholderProduct",
    "MLSTMConfig",
    "MLSTMState",
    "Mamba",
    "Mamba2",
    "Mamba2Config",
    "Mamba2State",
    "MambaConfig",
    "MambaState",
    "Mixer",
    "MixerConfig",
    "SLSTMConfig",
    "SLSTMState",
    "Transition",
]

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")
for _config in MIXERS.values():  # export the classes of a layer's file that are not listed above
    for _name, _value in vars(sys.modules[_config.__module__]).items():
        _own = isinstance(_value, type) and _value.__module__ == _config.__module__
        if _own and _name[0] != "_" and _name not in __all__:
            globals()[_name] = _value
            __all__ += [_name]
