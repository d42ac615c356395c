"""Each theorem's claim, checked on compiled networks and on trained models.

Compiled networks are proved or checked by computation when the report is made. Trained models are
checked by their eigenvalues on a test batch, which can refute a claim about all models, and by what
they score, which can show that a task is solvable; neither proves a theorem. Untrained models have
negative eigenvalues, too, so only those count that last, and the verdict says how many other models
have one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from statetrack.models import SequenceModel
from statetrack.recipes import presets, s5
from statetrack.recipes.recipe import Recipe, Results, Settings, facts, register, shortened
from statetrack.recipes.selection import (
    Entry,
    Score,
    evaluated,
    sequence_accuracy,
    without_result,
)
from statetrack.recipes.theorem_claims import (
    COUNTING,
    GROUPS,
    ILLUSTRATION,
    NOT_MEASURED,
    NOT_REACHED,
    PARITY,
    REFLECTIONS,
    REFUTED,
    TWO_LAYERS,
    Claim,
    compiled_claims,
    verdict,
)
from statetrack.recipes.word_problems import Model, Problem, problem_entries
from statetrack.recipes.z60 import Z3
from statetrack.recipes.z60 import models as z60_models
from statetrack.report.document import Cell, Document, Table
from statetrack.report.results import spectrum_figure
from statetrack.sweep.job import Job
from statetrack.sweep.spectrum import sampled_spectrum

SOLVED = 0.99  # the least score of a model that counts as having learned
TOLERANCE = 1e-3  # of eigenvalues of trained models
LASTING = 0.9  # the least modulus of an eigenvalue that lasts: 0.9^40 = 0.015 at length 40
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


def _lasts(layers: Sequence[Spectrum | None], wanted: Callable[[complex], bool]) -> bool:
    """Whether a layer has an eigenvalue that is wanted and lasts."""
    return any(wanted(z) and abs(z) >= LASTING for layer in layers if layer for z in layer)


def _negative_or_not_real(z: complex) -> bool:
    return z.real < -TOLERANCE or abs(z.imag) > TOLERANCE


def _not_real(z: complex) -> bool:
    return abs(z.imag) > TOLERANCE


@cache
def _untrained_spectrum(job: Job) -> list[Spectrum | None]:
    """Return the eigenvalues of a job's model before training."""
    with torch.random.fork_rng():
        torch.manual_seed(job.config.training.seed)
        model = SequenceModel(job.config.model)
    (layers,) = _spectra([{"spectrum": sampled_spectrum(job.config, model)}])
    return layers


def trained_claims(settings: Settings, results: Results) -> list[Claim]:
    """Check the claims on trained models."""
    return [
        _trained_theorem_1(settings, results),
        _trained_theorem_2(settings, results),
        _trained_theorem_3(settings, results),
        *_trained_theorem_6(settings, results),
        _trained_section_3_3(settings, results),
        _trained_proposition_1(settings, results),
    ]


def _trained_theorem_1(settings: Settings, results: Results) -> Claim:
    found = list(parity_entries(settings).values())
    return _eigenvalues_needed(
        Claim("Theorem 1", PARITY, "eigenvalues of trained models of parity on a test batch", ""),
        found,
        results,
        evaluated("40-256"),
        _negative_or_not_real,
        "solve 40-256",
    )


def _trained_theorem_2(settings: Settings, results: Results) -> Claim:
    length = Z3.lengths(settings)[1]  # twice the training length
    found = [e for model, e in counting_entries(settings).items() if model.layers == 1]
    how = "eigenvalues of trained one-layer models of Z3, with one and two factors per token"
    return _eigenvalues_needed(
        Claim("Theorem 2", COUNTING, how, ""),
        found,
        results,
        sequence_accuracy(length),
        _not_real,
        f"count at length {length}",
    )


def _eigenvalues_needed(
    claim: Claim,
    entries: Sequence[Entry],
    results: Results,
    score: Score,
    wanted: Callable[[complex], bool],
    solve: str,
) -> Claim:
    """Return the claim with a verdict: every model that solves the task has such an eigenvalue.

    Beside it stands how many others have one: the models that do not solve the task, and those in
    [-1,1] before training. The check says little if most of them do.
    """
    done = [r for entry in entries for r in entry.done(results) if r.get("spectrum")]
    if not done:
        return replace(claim, verdict=NOT_MEASURED)
    has: dict[bool, list[bool]] = {True: [], False: []}  # by whether the task is solved
    for result, layers in zip(done, _spectra(done), strict=True):
        has[(score(result) or 0.0) >= SOLVED].append(_lasts(layers, wanted))
    every = [job for entry in entries for job in entry.reported_jobs(results)]
    wide = [job for job in every if job.config.model.pattern[0].allow_neg_eigval]
    untrained = sum(_lasts(_untrained_spectrum(job), wanted) for job in wide)
    right, others = has[True], has[False]
    numbers = (
        f"{sum(right)} of {len(right)} models that {solve} have such an eigenvalue (modulus at "
        f"least {LASTING:g}); of the {len(others)} models that do not, {sum(others)} have it; "
        f"before training, {untrained} of {len(wide)} models in [-1,1] have it"
        f"{without_result(results, *entries)}"
    )
    if not right:
        total = sum(len(entry.seeds) for entry in entries)
        return replace(claim, verdict=f"{NOT_REACHED}: 0 of {total} models {solve}; {numbers}")
    return replace(claim, verdict=verdict(all(right), numbers))


def _trained_theorem_3(settings: Settings, results: Results) -> Claim:
    found = {m: e for m, e in counting_entries(settings).items() if m.layers == 1 and m.factors > 1}
    how = "trained models of Z3 with one layer and two factors per token"
    return _solvable(Claim("Theorem 3", GROUPS, how, ""), Z3, found, settings, results)


def _trained_theorem_6(settings: Settings, results: Results) -> list[Claim]:
    two = {m: e for m, e in counting_entries(settings).items() if m.layers == 2}
    rows = {
        "from random weights": {m: e for m, e in two.items() if not m.compiled},
        "started from the construction, which counts before training": {
            m: e for m, e in two.items() if m.compiled
        },
    }
    return [
        _solvable(
            Claim("Theorem 6", TWO_LAYERS, f"trained models of Z3 with two layers, {how}", ""),
            Z3, found, settings, results,
        )
        for how, found in rows.items()
    ]  # fmt: skip


def _trained_section_3_3(settings: Settings, results: Results) -> Claim:
    """Check models of the recipe s5, if the folder has its runs; none is run for this page."""
    found = {m: e for m, e in s5.entries(settings)[s5.FOUR].items() if m.mixer == "delta_net"}
    layers = sorted({model.layers for model in found})
    how = (
        f"trained DeltaNet with {', '.join(map(str, layers[:-1]))} or {layers[-1]} layers on S5 "
        "with 4 tokens per element (runs of the recipe s5)"
    )
    return _solvable(Claim("Section 3.3", REFLECTIONS, how, ""), s5.FOUR, found, settings, results)


def _solvable(
    claim: Claim,
    problem: Problem,
    entries: Mapping[Model, Entry],
    settings: Settings,
    results: Results,
) -> Claim:
    """Return the claim with a verdict: it holds if some model in [-1,1] solves the task.

    No training can refute that a task is solvable. Models in [0,1] are counted beside as a control.
    """
    trained, twice = problem.lengths(settings)[:2]
    wide = [entry for model, entry in entries.items() if model.neg]
    narrow = [entry for model, entry in entries.items() if not model.neg]

    def solved(length: str, entries: Sequence[Entry]) -> int:
        score = sequence_accuracy(length)
        return sum((score(r) or 0.0) >= SOLVED for e in entries for r in e.done(results))

    if not any(entry.reported(results) for entry in entries.values()):
        return replace(claim, verdict=NOT_MEASURED)
    all_wide, all_narrow = (sum(len(entry.seeds) for entry in es) for es in (wide, narrow))
    control = f", {solved(twice, narrow)} of {all_narrow} in [0,1]" if narrow else ""
    found = solved(twice, wide)
    numbers = (
        f"{found} of {all_wide} models in [-1,1] solve it at length {twice}{control}; at the "
        f"training length {trained}, {solved(trained, wide)} of {all_wide} in [-1,1]"
        f"{without_result(results, *entries.values())}"
    )
    return replace(claim, verdict=f"{'holds' if found else NOT_REACHED}: {numbers}")


def _trained_proposition_1(settings: Settings, results: Results) -> Claim:
    found = [*parity_entries(settings).values(), *counting_entries(settings).values()]
    done = [r for entry in found for r in entry.done(results) if r.get("spectrum")]
    moduli = [abs(z) for layers in _spectra(done) for layer in layers if layer for z in layer]
    most = max(moduli, default=0.0)
    return Claim(
        "Proposition 1",
        "no eigenvalue of a product of generalised Householder matrices exceeds modulus 1",
        "eigenvalues of all trained models of this page on a test batch; layers guarantee it for "
        "all weights, so this checks the implementation",
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
    checks = [claim for claim in claims if not claim.verdict.startswith(ILLUSTRATION)]
    held = sum(claim.verdict.startswith("holds") for claim in checks)
    summary = [f"{held} of {len(checks)} checks hold."]
    for words, text in (
        (REFUTED, "Refuted"),
        (NOT_REACHED, "Not reached by any model that was trained"),
        (NOT_MEASURED, "Not measured"),
    ):
        names = [f"{c.name} ({c.how})" for c in checks if c.verdict.startswith(words)]
        summary += [f"{text}: {'; '.join(names)}."] if names else []
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
        notes=_notes(settings),
        facts=facts("theorems", settings, jobs(settings, results), results),
        configs={
            f"{c.column}, {c.title}": c.reported_jobs(results)[0].config.to_json() for c in found
        },
    )  # fmt: skip


def _notes(settings: Settings) -> list[str]:
    notes = [
        "The statements are those of the paper's final version, in short. Trained models can "
        "refute a claim about all models, or show that a task can be learned; they prove no "
        "theorem. A proof of a compiled network visits every state. Theorem 5 is the "
        "decomposition of Krohn and Rhodes, which Theorem 4 uses.",
        "Theorems 1 and 2 say that every model needs certain eigenvalues. A compiled network that "
        "has them is an illustration and no check.",
        f"A model solves its task if its score is at least {SOLVED}. An eigenvalue counts if its "
        f"modulus is at least {LASTING:g}: smaller ones fade within the training lengths, and "
        "untrained models have them, too. The verdict also counts such eigenvalues in models that "
        "do not solve the task, and before training; the more of these, the weaker the check. "
        "Models in [0,1] cannot have one, and layers with one factor per token cannot have a "
        "non-real one. The results hold a sample of each layer's eigenvalues on a test batch, "
        "without token or head.",
    ]
    if settings.scale == "paper":
        notes.append(
            "Parity: the small models of `statetrack demo` at this scale, too; the paper's own "
            "models of parity are in the recipe chomsky."
        )
    return notes


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
