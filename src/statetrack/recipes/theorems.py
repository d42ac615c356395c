"""Each theorem's claim, checked on compiled networks and on trained models.

Compiled networks are proved or checked by computation when the report is made. Trained models are
checked by their eigenvalues on a test batch and by what they score; such a check can refute a
claim, but not prove it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from statetrack.recipes import presets
from statetrack.recipes.recipe import Recipe, Results, Settings, facts, register, shortened
from statetrack.recipes.selection import Entry, evaluated, sequence_accuracy
from statetrack.recipes.theorem_claims import (
    COUNTING,
    GROUPS,
    NOT_MEASURED,
    PARITY,
    TWO_LAYERS,
    Claim,
    compiled_claims,
    verdict,
)
from statetrack.recipes.word_problems import Model, problem_entries
from statetrack.recipes.z60 import Z3
from statetrack.recipes.z60 import models as z60_models
from statetrack.report.document import Cell, Document, Table
from statetrack.report.results import spectrum_figure
from statetrack.sweep.job import Job

SOLVED = 0.99  # the least score of a model that counts as having learned
TOLERANCE = 1e-3  # of eigenvalues of trained models
Spectrum = list[complex]


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
def parity_entries(settings: Settings) -> dict[tuple[str, bool], Entry]:
    """Return the small models of parity, by mixer and range."""
    found = {}
    for mixer in presets.DEMO_MIXERS:
        for neg in (False, True):
            made = _parity_job(mixer, neg, settings, 0).config.model.title

            def make(lr: float, seed: int, mixer: str = mixer, neg: bool = neg) -> Job:
                return _parity_job(mixer, neg, settings, seed)

            seeds = settings.reported_seeds
            found[mixer, neg] = Entry("parity", made, make, (1e-2,), seeds, evaluated("40-256"))
    return found


ONE_LAYER = Model("delta_net", True, 1, steps=800, published=False, width=32, spectra=True)


@cache
def counting_entries(settings: Settings) -> dict[Model, Entry]:
    """Return the models of Z3 in z60, and one layer of single reflections."""
    return problem_entries(Z3, (*z60_models(Z3), ONE_LAYER), settings, 3)


def jobs(settings: Settings, results: Results) -> list[Job]:
    """List the runs whose eigenvalues are checked; those of z60 are its own."""
    found = [*parity_entries(settings).values(), *counting_entries(settings).values()]
    return [job for entry in found for job in entry.jobs(results)]


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
        _trained_theorem_3(settings, results),
        _trained_theorem_6(settings, results),
        _trained_proposition_1(settings, results),
    ]


def _trained_theorem_1(settings: Settings, results: Results) -> Claim:
    done = [r for entry in parity_entries(settings).values() for r in entry.reported(results)]
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
        PARITY,
        "eigenvalues of trained models of parity on a test batch",
        verdict(negative == len(solved) and not learned, numbers)
        if solved
        else f"{NOT_MEASURED}: no model has learned it",
    )


def _trained_theorem_2(settings: Settings, results: Results) -> Claim:
    length = Z3.lengths(settings)[1]  # twice the training length
    score = sequence_accuracy(length)
    one, solved, real, learned = 0, 0, 0, 0
    for model, entry in counting_entries(settings).items():
        if model.layers > 1:
            continue
        done = [r for r in entry.reported(results) if r.get("spectrum")]
        for result, layers in zip(done, _spectra(done), strict=True):
            one += 1
            good = (score(result) or 0.0) >= SOLVED
            turns = _any(layers, lambda z: abs(z.imag) > TOLERANCE)
            solved += good and turns
            learned += good
            real += good and not turns
    numbers = (
        f"of {one} one-layer models, {learned} count at length {length}; {solved} of these have "
        f"non-real eigenvalues, {real} have not"
    )
    return Claim(
        "Theorem 2",
        COUNTING,
        "eigenvalues of trained one-layer models of Z3, with one and two factors per token",
        verdict(not real, numbers) if learned else f"{NOT_MEASURED}: no model has learned it",
    )


def _trained_theorem_3(settings: Settings, results: Results) -> Claim:
    found = {m: e for m, e in counting_entries(settings).items() if m.layers == 1 < m.factors}
    how = "trained models of Z3 with one layer and two factors per token"
    return _counting(Claim("Theorem 3", GROUPS, how, ""), found, settings, results)


def _trained_theorem_6(settings: Settings, results: Results) -> Claim:
    found = {m: e for m, e in counting_entries(settings).items() if m.layers == 2}
    how = "trained models of Z3 with two layers, from scratch and from the construction's weights"
    return _counting(Claim("Theorem 6", TWO_LAYERS, how, ""), found, settings, results)


def _counting(
    claim: Claim, entries: Mapping[Model, Entry], settings: Settings, results: Results
) -> Claim:
    """Return the claim with a verdict: some model in [-1,1] counts, none in [0,1] does."""
    length = Z3.lengths(settings)[1]  # twice the training length
    score = sequence_accuracy(length)
    scores: dict[bool, list[float]] = {False: [], True: []}
    for model, entry in entries.items():
        scores[model.neg] += [score(result) or 0.0 for result in entry.reported(results)]
    learned = {neg: sum(value >= SOLVED for value in found) for neg, found in scores.items()}
    numbers = (
        f"at length {length}, {learned[True]} of {len(scores[True])} models in [-1,1] count and "
        f"{learned[False]} of {len(scores[False])} in [0,1]"
    )
    known = verdict(not learned[False], numbers)
    return replace(claim, verdict=known if learned[True] else f"{NOT_MEASURED}: {numbers}")


def _trained_proposition_1(settings: Settings, results: Results) -> Claim:
    found = [*parity_entries(settings).values(), *counting_entries(settings).values()]
    done = [r for entry in found for r in entry.reported(results) if r.get("spectrum")]
    moduli = [abs(z) for layers in _spectra(done) for layer in layers if layer for z in layer]
    most = max(moduli, default=0.0)
    return Claim(
        "Proposition 1",
        "no eigenvalue of a product of generalised Householder matrices exceeds modulus 1",
        "eigenvalues of all trained models of this page on a test batch",
        verdict(most <= 1 + TOLERANCE, f"the greatest modulus of {len(moduli):,} is {most:.6f}")
        if moduli
        else NOT_MEASURED,
    )


def document(settings: Settings, results: Results) -> Document:
    """Make the table of claims, how each was checked, and the verdict."""
    compiled, trained = compiled_claims(), trained_claims(settings, results)
    claims = [*compiled, *trained]
    rows: list[list[Cell]] = [
        [claim.name, claim.text, claim.how, claim.verdict]
        for claim in sorted(claims, key=lambda claim: _order(claim.name))
    ]
    refuted = [claim.name for claim in claims if claim.verdict.startswith("REFUTED")]
    missing = [claim.name for claim in claims if claim.verdict.startswith(NOT_MEASURED)]
    held = len(claims) - len(refuted) - len(missing)
    summary = [f"{held} of {len(claims)} checks hold."]
    summary += [f"Refuted: {', '.join(refuted)}."] if refuted else []
    summary += [f"Not measured yet: {', '.join(missing)}."] if missing else []
    found = [*parity_entries(settings).values(), *counting_entries(settings).values()]
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
            "state. Theorem 5 is the decomposition of Krohn and Rhodes, which Theorem 4 uses.",
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
