"""Compile regular languages and groups into linear RNNs that compute them exactly.

net = compile("(ab)*")
print(net.report(), net.prove())
"""

from statetrack.compiler import factor, theorems
from statetrack.compiler.cascade import Cascade, Level
from statetrack.compiler.compiler import compile
from statetrack.compiler.decomposition import decompose
from statetrack.compiler.folders import load
from statetrack.compiler.induction import Proof
from statetrack.compiler.model import CompiledModel
from statetrack.compiler.network import CompiledRNN, Run

__all__ = [
    "Cascade",
    "CompiledModel",
    "CompiledRNN",
    "Level",
    "Proof",
    "Run",
    "compile",
    "decompose",
    "factor",
    "load",
    "theorems",
]
