"""Compile regular languages and groups into linear RNNs that compute them exactly.

net = compile("(ab)*")
print(net.report(net.prove()))
"""

from statetrack.compiler import factor, theorems
from statetrack.compiler.cascade import Cascade, Level
from statetrack.compiler.compiled import Compiled
from statetrack.compiler.compiling import compile
from statetrack.compiler.dfa_to_cascade import decompose
from statetrack.compiler.folders import load
from statetrack.compiler.model import CompiledModel
from statetrack.compiler.network import CompiledRNN, Trace
from statetrack.compiler.proof import Proof

__all__ = [
    "Cascade",
    "Compiled",
    "CompiledModel",
    "CompiledRNN",
    "Level",
    "Proof",
    "Trace",
    "compile",
    "decompose",
    "factor",
    "load",
    "theorems",
]
