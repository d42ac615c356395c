"""The theory as software: exact linear RNNs from languages and from trained models, and diagnoses.

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
from statetrack.theory.folders import load
from statetrack.theory.hardening import Hardened, harden
from statetrack.theory.induction import Proof
from statetrack.theory.model import CompiledModel
from statetrack.theory.network import CompiledRNN, Run

__all__ = [
    "Cascade",
    "CompiledModel",
    "CompiledRNN",
    "Diagnosis",
    "Explanation",
    "Hardened",
    "Level",
    "Proof",
    "Run",
    "compile",
    "decompose",
    "diagnose",
    "explain",
    "factor",
    "harden",
    "load",
    "theorems",
]
