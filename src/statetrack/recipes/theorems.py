"""Each theorem's claim, checked on compiled networks and on trained models.

Compiled networks are proved or checked by computation when the report is made. Trained models are
checked by their eigenvalues on a test batch and by what they score; such a check can refute a
claim, but not prove it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import torch

from statetrack.compiler import compile, factor, theorems
from statetrack.diagnosis.finite_precision import DATATYPES, Term, settle
from statetrack.recipes import presets
from statetrack.recipes.recipe import Recipe, Results, Settings, facts, register, shortened
from statetrack.recipes.selection import Cell, evaluated
from statetrack.recipes.word_problems import Model, sequence_accuracy
from statetrack.recipes.word_problems import cells as problem_cells
from statetrack.recipes.z60 import Z3
from statetrack.recipes.z60 import models as z60_models
from statetrack.report.document import Cell as Value
from statetrack.report.document import Document, Table
from statetrack.report.results import spectrum_figure
from statetrack.sweep.job import Job

SOLVED = 0.99  # the least score of a model that counts as having learned
TOLERANCE = 1e-3  # of eigenvalues of trained models
TRIALS = 200  # random matrices, or sums of powers
HORIZON = 10_000  # tokens of the constructions that round
Spectrum = list[complex]


@dataclass(frozen=True)
class Claim:
    """A claim and how it was checked."""

    name: str
    text: str
    how: str
    verdict: str  # "holds", "REFUTED" or "not measured", with numbers


def _verdict(holds: bool, numbers: str) -> str:
    return f"{'holds' if holds else 'REFUTED'}: {numbers}"


def _lemma_1() -> Claim:
    rng = np.random.default_rng(0)
    datatype = DATATYPES["fp8_e4m3"]
    wrong = 0
    for _ in range(TRIALS):
        negative = bool(rng.integers(2))
        terms = [
            Term(Fraction(int(rng.integers(-8, 9)), 4), _eigenvalue(rng, negative), int(m))
            for m in rng.integers(0, 3, size=3)
        ]
        found = settle(terms, datatype)
        wrong += found.even != found.odd and all(term.eigenvalue >= 0 for term in terms)
    return Claim(
        "Lemma 1",
        "cast sums of powers become constant on even and on odd k; the same on both if no "
        "eigenvalue is negative",
        f"{TRIALS} random sums, cast to {datatype.name} in exact arithmetic",
        _verdict(not wrong, f"{TRIALS - wrong} of {TRIALS}"),
    )


def _eigenvalue(rng: np.random.Generator, negative: bool) -> Fraction:
    return Fraction(int(rng.integers(-8 if negative else 0, 9)), 8)


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
        _verdict(
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
    held = {name: theorems.horizon(theorems.cyclic(m), HORIZON) for name, m in
            (("Z3", 3), ("Z5", 5))}  # fmt: skip
    right = [h[kind]["holds_for"] is None for h in held.values() for kind in ("constant", "random")]
    text = "a group's word problem takes one layer, cyclic groups two factors"
    return [
        Claim("Theorem 3", text, f"compiled {' and '.join(nets)}, proved state by state",
              _verdict(all(p.holds for p in proofs.values()),
                       "; ".join(p.evidence for p in proofs.values()))),
        Claim("Theorem 3", text, f"rotations for {' and '.join(held)}, {HORIZON:,} tokens",
              _verdict(all(right), f"{sum(right)} of {len(right)} words right")),
    ]  # fmt: skip


def _theorem_4() -> Claim:
    languages = ("a*b*", "[ab]*aba[ab]*", "tomita3")
    nets = {language: theorems.theorem4(language) for language in languages}
    proofs = [net.prove() for net in nets.values()]
    depths = [len(net.stack) for net in nets.values()]
    short = all(d < net.dfa.states for d, net in zip(depths, nets.values(), strict=True))
    return Claim(
        "Theorem 4",
        "every regular language is recognised, by layers of permutations and resets",
        f"compiled {', '.join(languages)}, proved state by state",
        _verdict(
            all(p.holds for p in proofs) and short,
            f"{', '.join(map(str, depths))} layers, each below the number of states",
        ),
    )


def _theorem_6() -> Claim:
    right = []
    generator = torch.Generator().manual_seed(0)
    for m in (2, 3, 5, 7, 60):
        x = torch.randint(m, (1, HORIZON), generator=generator)
        right.append(bool(torch.equal(theorems.theorem6(m)(x), x.cumsum(1) % m)))
    return Claim(
        "Theorem 6",
        "two layers with one reflection per token add modulo any m",
        f"the construction for m = 2, 3, 5, 7, 60 on {HORIZON:,} random tokens, float32",
        _verdict(all(right), f"{sum(right)} of {len(right)} moduli right at every position"),
    )


def _section_3_3() -> Claim:
    net = compile("S5", tokens_per_element=4)
    proof = net.prove()
    return Claim(
        "Section 3.3",
        "with 4 tokens per element single reflections suffice for S5",
        "compiled S5 with 4 tokens per element, proved state by state",
        _verdict(proof.holds, proof.evidence),
    )


@cache
def compiled_claims() -> tuple[Claim, ...]:
    """Check every claim that needs no training."""
    made = (_lemma_1(), _proposition_1(), *_theorem_3(), _theorem_4(), _theorem_6(), _section_3_3())
    return made


def _parity_job(mixer: str, neg: bool, settings: Settings, seed: int) -> Job:
    config = presets.demo_parity(mixer, allow_neg_eigval=neg, seed=seed)
    job = Job(
        name=f"theorems-parity-{mixer}{'-neg' if neg else '-pos'}-s{seed}",
        config=config,
        lengths=("40-256",),
        samples=512,
        spectrum=True,
        seconds=10.0,
    )
    return shortened(job) if settings.scale == "smoke" else job


@cache
def parity_cells(settings: Settings) -> dict[tuple[str, bool], Cell]:
    """Return the small models of parity in both ranges."""
    found = {}
    for mixer in presets.DEMO_MIXERS:
        for neg in (False, True):
            made = _parity_job(mixer, neg, settings, 0).config.model.title

            def make(lr: float, seed: int, mixer: str = mixer, neg: bool = neg) -> Job:
                return _parity_job(mixer, neg, settings, seed)

            seeds = settings.reported_seeds
            found[mixer, neg] = Cell("parity", made, make, (1e-2,), seeds, evaluated("40-256"))
    return found


ONE_LAYER = Model("delta_net", True, 1, steps=800, published=False, width=32)


@cache
def counting_cells(settings: Settings) -> dict[Model, Cell]:
    """Return models of Z3: those that z60 trains from scratch, and one layer of reflections."""
    trained = [model for model in z60_models(Z3) if not model.compiled]
    return problem_cells(Z3, (*trained, ONE_LAYER), settings, 3)


def jobs(settings: Settings, results: Results) -> list[Job]:
    """List the runs whose eigenvalues are checked; those of z60 are its own."""
    found = [*parity_cells(settings).values(), *counting_cells(settings).values()]
    return [job for cell in found for job in cell.jobs(results)]


def _spectra(results: Sequence[Mapping[str, Any]]) -> list[list[Spectrum | None]]:
    """Return the eigenvalues of each layer of every result that has them."""
    return [
        [layer and [complex(*z) for z in zip(layer["real"], layer["imag"], strict=True)]
         for layer in r["spectrum"]["layers"]]
        for r in results
        if r.get("spectrum")
    ]  # fmt: skip


def _any(layers: Sequence[Spectrum | None], test: Callable[[complex], bool]) -> bool:
    return any(test(z) for layer in layers if layer for z in layer)


def _outside(z: complex) -> bool:
    return z.real < -TOLERANCE or abs(z.imag) > TOLERANCE


def trained_claims(settings: Settings, results: Results) -> list[Claim]:
    """Check the claims that trained models can refute."""
    return [
        _trained_theorem_1(settings, results),
        _trained_theorem_2(settings, results),
        _trained_proposition_1(settings, results),
    ]


def _trained_theorem_1(settings: Settings, results: Results) -> Claim:
    done = [r for cell in parity_cells(settings).values() for r in cell.reported(results)]
    done = [r for r in done if r.get("spectrum")]
    score = evaluated("40-256")
    solved = [r for r in done if (score(r) or 0.0) >= SOLVED]
    negative = sum(_any(layers, _outside) for layers in _spectra(solved))
    narrow = [r for r in done if not r["allow_neg_eigval"]]
    learned = sum((score(r) or 0.0) >= SOLVED for r in narrow)
    numbers = (
        f"{negative} of {len(solved)} models that solve 40-256 have such an eigenvalue; of "
        f"{len(narrow)} models in [0,1], {learned} solve it"
    )
    return Claim(
        "Theorem 1",
        "parity at every length needs an eigenvalue that is not real and non-negative",
        "eigenvalues of trained models of parity on a test batch",
        _verdict(negative == len(solved) and not learned, numbers) if done else "not measured",
    )


def _trained_theorem_2(settings: Settings, results: Results) -> Claim:
    score = sequence_accuracy(Z3.lengths(settings)[2 if settings.scale != "smoke" else 1])
    one, solved, real, learned = 0, 0, 0, 0
    for model, cell in counting_cells(settings).items():
        if model.layers > 1:
            continue
        done = [r for r in cell.reported(results) if r.get("spectrum")]
        for result, layers in zip(done, _spectra(done), strict=True):
            one += 1
            good = (score(result) or 0.0) >= SOLVED
            turns = _any(layers, lambda z: abs(z.imag) > TOLERANCE)
            solved += good and turns
            learned += good
            real += good and not turns
    numbers = (
        f"of {one} one-layer models, {learned} count at four times the training length; {solved} "
        f"of these have non-real eigenvalues, {real} have not"
    )
    return Claim(
        "Theorem 2",
        "counting modulo 3 in one layer needs a non-real eigenvalue",
        "eigenvalues of trained one-layer models of Z3, with one and two factors per token",
        _verdict(not real, numbers) if one else "not measured",
    )


def _trained_proposition_1(settings: Settings, results: Results) -> Claim:
    found = [*parity_cells(settings).values(), *counting_cells(settings).values()]
    done = [r for cell in found for r in cell.reported(results) if r.get("spectrum")]
    moduli = [abs(z) for layers in _spectra(done) for layer in layers if layer for z in layer]
    most = max(moduli, default=0.0)
    return Claim(
        "Proposition 1",
        "no eigenvalue of a product of generalised Householder matrices exceeds modulus 1",
        "eigenvalues of all trained models of this page on a test batch",
        _verdict(most <= 1 + TOLERANCE, f"the greatest modulus of {len(moduli):,} is {most:.6f}")
        if moduli
        else "not measured",
    )


def document(settings: Settings, results: Results) -> Document:
    """Make the table of claims, how each was checked, and the verdict."""
    compiled, trained = compiled_claims(), trained_claims(settings, results)
    claims = [*compiled, *trained]
    rows: list[list[Value]] = [
        [claim.name, claim.text, claim.how, claim.verdict]
        for claim in sorted(claims, key=lambda claim: _order(claim.name))
    ]
    refuted = [claim.name for claim in claims if claim.verdict.startswith("REFUTED")]
    missing = [claim.name for claim in claims if claim.verdict == "not measured"]
    held = len(claims) - len(refuted) - len(missing)
    summary = [f"{held} of {len(claims)} checks hold."]
    summary += [f"Refuted: {', '.join(refuted)}."] if refuted else []
    summary += [f"Not measured yet: {', '.join(missing)}."] if missing else []
    found = [*parity_cells(settings).values(), *counting_cells(settings).values()]
    groups = {f"{c.column}, {c.title}": done for c in found if (done := c.reported(results))}
    picture = spectrum_figure("Eigenvalues of the trained models", groups)
    return Document(
        name="theorems",
        title=RECIPE.title,
        summary=summary,
        tables=[Table("Claims", ["claim", "statement", "how checked", "verdict"], rows,
                      name="claims")],
        figures=[] if picture is None else [picture],
        notes=[
            "The statements are those of the paper's final version, in short. A check on trained "
            "models can refute a claim, not prove it; a proof of a compiled network visits every "
            "state.",
        ],
        facts=facts("theorems", settings, jobs(settings, results), results),
        configs={
            f"{c.column}, {c.title}": c.reported_jobs(results)[0].config.to_json() for c in found
        },
    )  # fmt: skip


def _order(name: str) -> int:
    order = ("Lemma 1", "Theorem 1", "Theorem 2", "Proposition 1", "Theorem 3", "Section 3.3")
    return (*order, "Theorem 4", "Theorem 6").index(name)


RECIPE = register(
    Recipe(
        name="theorems",
        aliases=(),
        title="The theorems, checked on compiled and trained models",
        jobs=jobs,
        document=document,
    )
)
