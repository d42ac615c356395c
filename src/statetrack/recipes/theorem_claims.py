"""The claims of the theorems that compiled networks and constructions can be checked for."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import torch

from statetrack.compiler import CompiledRNN, compile, factor, theorems
from statetrack.diagnosis.finite_precision import DATATYPES, Term, power_sum, settle

TRIALS = 200  # random matrices, or sums of powers
TOKENS = 10_000  # tokens of the constructions that round
CHECKED = 64  # powers that are computed after the one from which a sum should be constant
# with what a verdict begins, besides "holds"
REFUTED = "REFUTED"
NOT_MEASURED = "not measured"
NOT_REACHED = "not reached"  # no model does what the theorem says that one can
ILLUSTRATION = "illustration"  # an example of what the theorem says of all models
# statements that are checked on compiled and on trained models
PARITY = "parity at every length needs an eigenvalue that is negative or not real"
COUNTING = "counting modulo 3 in one layer needs a non-real eigenvalue"
GROUPS = "a group's word problem takes one layer, cyclic groups two factors"
REFLECTIONS = "with 4 tokens per element single reflections suffice for S5"
TWO_LAYERS = "two layers with one reflection per token add modulo any m"


@dataclass(frozen=True)
class Claim:
    """A claim and how it was checked."""

    name: str  # of the theorem
    text: str  # of the claim
    how: str  # it was checked
    verdict: str  # begins with "holds" or one of the words above


def verdict(holds: bool, numbers: str) -> str:
    """Return the text of a verdict with the numbers it rests on."""
    return f"{'holds' if holds else REFUTED}: {numbers}"


def _lemma_1() -> Claim:
    rng = np.random.default_rng(0)
    datatype = DATATYPES["fp8_e4m3"]
    wrong = same = 0
    for _ in range(TRIALS):
        negative = bool(rng.integers(2))
        terms = [
            Term(Fraction(int(rng.integers(-8, 9)), 4), _eigenvalue(rng, negative), int(m))
            for m in rng.integers(0, 3, size=3)
        ]
        found = settle(terms, datatype)
        nonnegative = all(term.eigenvalue >= 0 for term in terms)
        same += nonnegative
        ends = (found.even, found.odd)
        wrong += (nonnegative and found.even != found.odd) or any(
            datatype.cast(power_sum(terms, k)) != ends[k % 2]
            for k in range(found.start, found.start + CHECKED)
        )
    return Claim(
        "Lemma 1",
        "cast sums of powers become constant on even and on odd k; the same on both if no "
        "eigenvalue is negative",
        f"{TRIALS} random sums, {same} of them without a negative eigenvalue, cast to "
        f"{datatype.name} in exact arithmetic, over {CHECKED} powers from where each is constant",
        verdict(not wrong, f"{TRIALS - wrong} of {TRIALS}"),
    )


def _eigenvalue(rng: np.random.Generator, negative: bool) -> Fraction:
    return Fraction(int(rng.integers(-8 if negative else 0, 9)), 8)


def _theorems_1_and_2() -> list[Claim]:
    parity = _eigenvalues(theorems.parity())
    turns = {f"Z{m}": float(np.abs(_eigenvalues(theorems.cyclic(m)).imag).max()) for m in (3, 5)}
    sizes = ", ".join(f"{size:.3f}" for size in turns.values())
    return [
        Claim("Theorem 1", PARITY, "eigenvalues of the compiled network of parity",
              _illustration(parity.real.min() < 0, f"the least is {parity.real.min():g}")),
        Claim("Theorem 2", COUNTING, f"eigenvalues of the rotations for {' and '.join(turns)}",
              _illustration(min(turns.values()) > 0, f"greatest imaginary parts {sizes}")),
    ]  # fmt: skip


def _illustration(agrees: bool, numbers: str) -> str:
    """Return the verdict of one network: it can refute what a theorem says of all, not more."""
    return f"{ILLUSTRATION}: {numbers}" if agrees else verdict(False, numbers)


def _eigenvalues(net: CompiledRNN) -> Any:
    """Return the eigenvalues of every layer at every symbol."""
    symbols = torch.arange(len(net.first))[None]
    layers = [transition.eigvals().flatten() for transition in net.transitions(symbols)]
    return torch.cat(layers).numpy()


def _proposition_1() -> Claim:
    rng = np.random.default_rng(0)
    worst = norm = largest = least = 0.0
    for _ in range(TRIALS):
        n = int(rng.integers(2, 6))
        matrix = rng.normal(size=(n, n))
        matrix /= np.linalg.norm(matrix, 2)
        factors = factor.contraction(matrix)
        worst = max(worst, float(np.abs(factor.product(factors, n) - matrix).max()))
        wide, narrow = (_householders(rng, n, top) for top in (2.0, 1.0))
        norm = max(norm, float(np.linalg.norm(wide, 2)))
        eigenvalues = np.linalg.eigvals(narrow)
        largest = max(largest, float(np.abs(eigenvalues.imag).max()))
        least = min(least, float(eigenvalues.real.min()))
    holds = worst < 1e-9 and norm < 1 + 1e-9 and largest < 1e-6 and least > -1e-6
    return Claim(
        "Proposition 1",
        "products of generalised Householder matrices have norm at most 1; every contraction is "
        "one; with eigenvalues in [0,1] and two factors the product's lie in [0,1]",
        f"{TRIALS} random contractions factored, and as many random products",
        verdict(
            holds,
            f"factored to {worst:.0e}, greatest norm {norm:.6f}, of two factors in [0,1] least "
            f"real part {least:.0e} and greatest imaginary part {largest:.0e}",
        ),
    )


def _householders(rng: np.random.Generator, n: int, top: float) -> Any:
    """Return a product of two matrices I - beta v v^T, beta in 0..top."""
    made = np.eye(n)
    for beta in rng.uniform(0, top, size=2):
        v = rng.normal(size=(n, 1))
        v /= np.linalg.norm(v)
        made = made @ (np.eye(n) - beta * v @ v.T)
    return made


def _theorem_3() -> list[Claim]:
    nets = {"parity": theorems.parity(), "S5": theorems.permutations("S5")}
    proofs = {name: net.prove() for name, net in nets.items()}
    held = {name: theorems.horizon(theorems.cyclic(m), TOKENS) for name, m in
            (("Z3", 3), ("Z5", 5))}  # fmt: skip
    right = [h[kind]["holds_for"] is None for h in held.values() for kind in ("constant", "random")]
    return [
        Claim("Theorem 3", GROUPS, f"compiled {' and '.join(nets)}, proved state by state",
              verdict(all(p.holds for p in proofs.values()),
                       "; ".join(p.evidence for p in proofs.values()))),
        Claim("Theorem 3", GROUPS, f"rotations for {' and '.join(held)}, {TOKENS:,} tokens",
              verdict(all(right), f"{sum(right)} of {len(right)} words right")),
    ]  # fmt: skip


def _theorem_4() -> Claim:
    languages = ("a*b*", "[ab]*aba[ab]*", "tomita3")
    nets = {language: theorems.theorem4(language) for language in languages}
    proofs = [net.prove() for net in nets.values()]
    depths = [len(net.stack) for net in nets.values()]
    states = [net.dfa.states for net in nets.values()]
    return Claim(
        "Theorem 4",
        "every regular language is recognised, by layers of permutations and resets",
        f"compiled {', '.join(languages)}, proved state by state",
        verdict(
            all(p.holds for p in proofs),
            f"{', '.join(map(str, depths))} layers for {', '.join(map(str, states))} states",
        ),
    )


def _theorem_6() -> Claim:
    right = []
    generator = torch.Generator().manual_seed(0)
    for m in (2, 3, 5, 7, 60):
        x = torch.randint(m, (1, TOKENS), generator=generator)
        right.append(bool(torch.equal(theorems.theorem6(m)(x), x.cumsum(1) % m)))
    return Claim(
        "Theorem 6",
        TWO_LAYERS,
        f"the construction for m = 2, 3, 5, 7, 60 on {TOKENS:,} random tokens, float32",
        verdict(all(right), f"{sum(right)} of {len(right)} moduli right at every position"),
    )


def _section_3_3() -> Claim:
    net = compile("S5", tokens_per_element=4)
    proof = net.prove()
    return Claim(
        "Section 3.3",
        REFLECTIONS,
        "compiled S5 with 4 tokens per element, proved state by state",
        verdict(proof.holds, proof.evidence),
    )


@cache
def compiled_claims() -> tuple[Claim, ...]:
    """Check every claim that needs no training."""
    return (
        _lemma_1(), *_theorems_1_and_2(), _proposition_1(), *_theorem_3(), _theorem_4(),
        _theorem_6(), _section_3_3(),
    )  # fmt: skip
