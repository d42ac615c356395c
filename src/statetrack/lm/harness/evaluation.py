"""Score language models with lm-evaluation-harness, through its own functions."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import lm_eval
from lm_eval.api.task import Task
from lm_eval.models.huggingface import HFLM

from statetrack.config import at_least
from statetrack.errors import UserError
from statetrack.lm.harness.folder import TaskAbout
from statetrack.lm.harness.selection import Selection
from statetrack.lm.load import LanguageModel

BOOTSTRAPS = 1000  # resamples for the standard error of a perplexity


class Score(NamedTuple):
    """One metric of one task; shares are in 0..1."""

    task: str
    metric: str
    value: float | None  # None if it is not finite
    error: float | None  # standard error
    chance: float | None
    documents: int


class ModelScores(NamedTuple):
    """The scores of one model."""

    model: str
    scores: list[Score]
    shortened: dict[str, int]  # requests, by task, that were too long and lost their beginning


def evaluate_model(
    model: LanguageModel,
    selection: Selection,
    *,
    limit: int | None = None,
    batch_size: int = 16,
    max_length: int | None = None,
) -> ModelScores:
    """Evaluate a model on tasks.

    Args:
        model: The model with its tokenizer.
        selection: The tasks.
        limit: Only the first documents of each task.
        batch_size: Requests at a time.
        max_length: Tokens that the model reads at most; by default what its configuration says,
            or 2048.

    Raises:
        UserError: The model has no tokenizer, or a number is out of range.
    """
    at_least("the batch size", batch_size, 1)
    for what, number in (("the limit", limit), ("the greatest length", max_length)):
        if number is not None:
            at_least(what, number, 1)
    if model.tokenizer is None:
        raise UserError(f"{model.name} has no tokenizer.json: it does not read text")
    with _quiet():
        tasks = selection.manager.load([task.name for task in selection.tasks])["tasks"]
        harness = HFLM(
            pretrained=model.model,
            tokenizer=model.tokenizer,
            backend="causal",
            batch_size=batch_size,
            max_length=max_length,
        )
        found = lm_eval.simple_evaluate(
            model=harness,
            tasks=list(tasks.values()),
            limit=limit,
            bootstrap_iters=BOOTSTRAPS,
            log_samples=False,
        )
    counts = {name: shortened_requests(harness, task) for name, task in tasks.items()}
    return ModelScores(
        model.name,
        [score for about in selection.tasks for score in read_scores(about, found)],
        {name: count for name, count in counts.items() if count},
    )


def read_scores(about: TaskAbout, found: dict[str, Any]) -> Iterator[Score]:
    """Read the metrics of a task from what lm-eval returns: keys are "METRIC,FILTER"."""
    numbers = found["results"][about.name]
    documents = found["n-samples"][about.name]["effective"]
    for key, value in numbers.items():
        metric, comma, filter_name = key.partition(",")
        if comma and not metric.endswith("_stderr"):
            error = numbers.get(f"{metric}_stderr,{filter_name}")
            chance = about.chance if metric.startswith("acc") else None
            yield Score(about.name, metric, _finite(value), _finite(error), chance, documents)


def shortened_requests(harness: HFLM, task: Task) -> int:
    """Count the requests of a task that are longer than the model reads."""
    texts: Sequence[str] = [
        "".join(request.args)
        for request in task.instances
        if request.request_type == "loglikelihood"
    ]
    lengths = map(len, harness.tokenizer(list(texts))["input_ids"]) if texts else ()
    return sum(length > harness.max_length + 1 for length in lengths)  # the last is not read


def _finite(value: Any) -> float | None:
    """Return a number; None for lm-eval's "N/A" and for what is not finite."""
    return float(value) if isinstance(value, float | int) and math.isfinite(value) else None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide lm-eval's log below errors, and move what it prints to standard error.

    Its bootstrap then runs in this process: a pool costs more than the few resamples.
    """
    logger = logging.getLogger("lm_eval")
    level, pool = logger.level, os.environ.get("DISABLE_MULTIPROC")
    logger.setLevel(logging.ERROR)
    os.environ["DISABLE_MULTIPROC"] = "1"
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        logger.setLevel(level)
        if pool is None:
            del os.environ["DISABLE_MULTIPROC"]
