"""The theory as a compiler: from regular languages and groups to exact linear RNNs.

from statetrack.theory import compile

net = compile("(ab)*")
print(net.report(), net.prove())
"""

from statetrack.theory import factor, theorems
from statetrack.theory.cascade import Cascade, Level
from statetrack.theory.compiler import compile
from statetrack.theory.decomposition import decompose
from statetrack.theory.induction import Proof
from statetrack.theory.network import CompiledRNN, Run

__all__ = [
    "Cascade",
    "CompiledRNN",
    "Level",
    "Proof",
    "Run",
    "compile",
    "decompose",
    "factor",
    "theorems",
]
