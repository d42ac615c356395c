"""The theory as software: exact linear RNNs from regular languages, and what a model cannot do.

from statetrack.theory import compile, diagnose, explain

print(explain("(ab)*"))
net = compile("(ab)*")
print(net.report(), net.prove())
print(diagnose(model, word=[1]))
"""

from statetrack.theory import factor, theorems
from statetrack.theory.cascade import Cascade, Level
from statetrack.theory.compiler import compile
from statetrack.theory.decomposition import decompose
from statetrack.theory.diagnostics import Diagnosis, diagnose
from statetrack.theory.explanation import Explanation, explain
from statetrack.theory.induction import Proof
from statetrack.theory.model import CompiledModel
from statetrack.theory.network import CompiledRNN, Run

__all__ = [
    "Cascade",
    "CompiledModel",
    "CompiledRNN",
    "Diagnosis",
    "Explanation",
    "Level",
    "Proof",
    "Run",
    "compile",
    "decompose",
    "diagnose",
    "explain",
    "factor",
    "theorems",
]
