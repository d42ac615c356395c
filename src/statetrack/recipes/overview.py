"""The reports of several recipes, and a page with the findings of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from statetrack.recipes.recipe import Recipe, Results, Settings, facts, installed_recipes
from statetrack.report.document import Document, Table

SMOKE = (
    "Smoke test: the models are not trained enough to learn. Their numbers mean nothing; do not "
    "compare them with the paper's."
)


def make_documents(
    recipes: Sequence[Recipe], settings: Settings, results: Results
) -> list[Document]:
    """Make the report of each recipe; several are followed by an overview.

    A report begins with the number of its runs that failed, if there are any. At the scale `smoke`
    every report with trained models begins with a warning.

    Args:
        recipes: those to report on.
        settings: of the reproduction.
        results: of the runs that are done.
    """
    made = [_with_failures(recipe.document(settings, results)) for recipe in recipes]
    if len(made) > 1:
        made.append(_with_failures(_overview(recipes, made, settings, results)))
    if settings.scale != "smoke":
        return made
    return [replace(d, summary=[SMOKE, *d.summary]) if d.facts["seeds"] else d for d in made]


def _with_failures(document: Document) -> Document:
    """Begin the summary with the number of runs that failed, if there are any."""
    count = len(document.facts["failed"])
    if not count:
        return document
    text = f"{count:,} run{'s' if count > 1 else ''} failed; the facts below have the errors."
    return replace(document, summary=[text, *document.summary])


def _overview(
    recipes: Sequence[Recipe], documents: Sequence[Document], settings: Settings, results: Results
) -> Document:
    """Collect the findings of all reports, with their runs and CPU times."""
    jobs = {job.key: job for recipe in recipes for job in recipe.jobs(settings, results)}
    tuning = {seed for d in documents for seed in d.facts.get("tuning seeds", ())}
    found = facts("all", settings, list(jobs.values()), results, tuning)
    done = len(results.of(list(jobs.values()))) - len(found["failed"])
    if len(recipes) < len(installed_recipes()[0]):
        del found["command"]  # several
    return Document(
        name="overview",
        title=f"The paper, reproduced at scale {settings.scale}",
        summary=[
            f"{done:,} of {len(jobs):,} runs are done. The tables, figures and settings "
            "behind each finding are in the folder of its recipe."
        ],
        tables=[
            Table(
                "Findings",
                ["recipe", "finding"],
                [[document.name, text] for document in documents for text in document.summary],
                name="findings",
            ),
            Table(
                "Runs",
                ["recipe", "what", "runs", "CPU minutes"],
                [
                    [d.name, d.title, d.facts["runs"], f"{d.facts['CPU seconds'] / 60:.1f}"]
                    for d in documents
                ],
                "A run that several recipes share counts in each of them.",
                name="runs",
            ),
        ],
        facts=found,
    )
