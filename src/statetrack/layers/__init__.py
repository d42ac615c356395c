"""The architectures, one file each; every module in this package is loaded and registers itself."""

import importlib
import pkgutil

from statetrack.layers.base import MIXERS, Mixer, MixerConfig
from statetrack.layers.delta_net import DeltaNet, DeltaNetConfig, DeltaNetState
from statetrack.layers.mamba import Mamba, MambaConfig, MambaState
from statetrack.layers.slstm import SLSTM, SLSTMConfig, SLSTMState
from statetrack.layers.transitions import Dense, Diagonal, HouseholderProduct, Transition

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "MIXERS",
    "SLSTM",
    "DeltaNet",
    "DeltaNetConfig",
    "DeltaNetState",
    "Dense",
    "Diagonal",
    "HouseholderProduct",
    "Mamba",
    "MambaConfig",
    "MambaState",
    "Mixer",
    "MixerConfig",
    "SLSTMConfig",
    "SLSTMState",
    "Transition",
]
