"""Score language models with lm-evaluation-harness, through its own functions."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lm_eval
from lm_eval.api.instance import Instance
from lm_eval.api.task import Task
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import normalize_gen_kwargs
from tqdm import tqdm

from statetrack.config import at_least
from statetrack.errors import UserError
from statetrack.lm.harness.folder import TaskAbout
from statetrack.lm.harness.published import COLUMNS, ERRORS
from statetrack.lm.harness.selection import Selection
from statetrack.lm.load import LanguageModel, load_language_model

BOOTSTRAPS = 1000  # resamples for the standard error of a perplexity
SHOTS_SEED = 1234  # lm-eval's own default


class Score(NamedTuple):
    """One metric of one task; shares are in 0..1."""

    task: str
    metric: str
    value: float | None  # None if it is not finite
    error: float | None  # standard error
    chance: float | None
    documents: int

    @property
    def main(self) -> bool:
        """Whether this is the metric of the task in the paper's table, or else its accuracy."""
        wanted = [column.metric for column in COLUMNS if column.task == self.task]
        return self.metric in (wanted or ["acc"])

    @property
    def above_chance(self) -> bool:
        """Whether the value exceeds chance by more than ERRORS standard errors of guessing."""
        if not self.chance or self.value is None:  # a task without choices has no chance level
            return False
        error = math.sqrt(self.chance * (1 - self.chance) / self.documents)
        return self.value > self.chance + ERRORS * error


class ModelScores(NamedTuple):
    """The scores of one model."""

    model: str
    scores: list[Score]
    shortened: dict[str, int]  # requests, by task, that were too long and lost their beginning


def evaluate_checkpoints(
    checkpoints: Sequence[Path],
    selection: Selection,
    *,
    limit: int | None = None,
    batch_size: int = 16,
    max_length: int | None = None,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda text: None,
) -> list[ModelScores]:
    """Evaluate language models on tasks.

    Args:
        checkpoints: Folders, as `load_language_model` takes them; all are loaded once before the
            first is evaluated, to find errors early.
        selection: The tasks.
        limit: Evaluate only so many documents of each task, the first ones.
        batch_size: Requests at a time.
        max_length: The greatest number of tokens in a request; by default that of the model's
            configuration, or 2048.
        device: Where the models compute, as `TrainingConfig.device`.
        progress: Called before each task with a text that names it and the model.

    Raises:
        UserError: A model cannot be loaded or has no tokenizer, a number is out of range, or a task
            asks for longer answers than a model reads.
    """
    at_least("the batch size", batch_size, 1)
    for name, number in (("the limit", limit), ("the greatest length", max_length)):
        if number is not None:
            at_least(name, number, 1)
    checkpoints = list(dict.fromkeys(checkpoints))
    with _quiet():
        tasks = load_tasks(selection)
    names = [check_checkpoint(checkpoint, tasks, max_length) for checkpoint in checkpoints]
    done = []
    for checkpoint in checkpoints:
        model = load_language_model(checkpoint, device=device)
        if names.count(model.name) > 1:
            model = model._replace(name=str(checkpoint))
        done.append(
            evaluate_model(model, selection, limit, batch_size, max_length, progress, tasks)
        )
    return done


def check_checkpoint(checkpoint: Path, tasks: dict[str, Task], max_length: int | None) -> str:
    """Raise a UserError if a checkpoint cannot be evaluated, else return the model's name.

    Args:
        checkpoint: A folder, as `load_language_model` takes it.
        tasks: What it is evaluated on.
        max_length: The greatest number of tokens in a request.
    """
    model = load_language_model(checkpoint)
    if model.tokenizer is None:
        raise UserError(f"{checkpoint} has no tokenizer.json: it cannot read text")
    if model.tokenizer.bos_token_id is None and model.tokenizer.eos_token_id is None:
        raise UserError(f"{checkpoint} names neither a BOS nor an EOS token; lm-eval needs one")
    with _quiet():
        check_answers(model.name, make_harness(model, 1, max_length), tasks)
    return model.name


def evaluate_model(
    model: LanguageModel,
    selection: Selection,
    limit: int | None = None,
    batch_size: int = 16,
    max_length: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
    tasks: dict[str, Task] | None = None,
) -> ModelScores:
    """Evaluate a language model; see `evaluate_checkpoints`.

    `tasks` are those of the selection, checked for this model; if absent, they are loaded and
    checked.
    """
    with _quiet():
        harness = make_harness(model, batch_size, max_length)
        if tasks is None:
            tasks = load_tasks(selection)
            check_answers(model.name, harness, tasks)
        # not `lm_eval.simple_evaluate`: its other work takes longer than evaluating a small model
        scores: list[Score] = []
        for number, about in enumerate(selection.tasks, 1):
            progress(f"{model.name}: {about.name}, task {number} of {len(selection.tasks)}")
            found = lm_eval.evaluate(
                lm=harness,
                task_dict={"tasks": {about.name: tasks[about.name]}},
                limit=limit,
                bootstrap_iters=BOOTSTRAPS,
                log_samples=False,
            )
            scores += read_scores(about, found)
    counts = {name: shortened_requests(harness, task) for name, task in tasks.items()}
    return ModelScores(model.name, scores, {name: count for name, count in counts.items() if count})


def make_harness(model: LanguageModel, batch_size: int, max_length: int | None) -> HFLM:
    """Return a language model as lm-eval uses it."""
    return HFLM(
        pretrained=model.model,
        tokenizer=model.tokenizer,
        backend="causal",
        batch_size=batch_size,
        max_length=max_length,
    )


def load_tasks(selection: Selection) -> dict[str, Task]:
    """Load the tasks of a selection with their data, by name."""
    tasks = selection.manager.load([task.name for task in selection.tasks])["tasks"]
    for task in tasks.values():
        task.set_config(key="num_fewshot", value=task.get_config("num_fewshot") or 0)
        task.set_fewshot_seed(seed=SHOTS_SEED)
    return dict(tasks)


def check_answers(name: str, harness: HFLM, tasks: dict[str, Task]) -> None:
    """Raise a UserError if the answers to a task leave no room for its questions."""
    for task_name, task in tasks.items():
        if task.OUTPUT_TYPE != "generate_until":
            continue
        task.build_all_requests(limit=1)  # some tasks set the length in their requests only
        answer = max(_answer_length(harness, request) for request in task.instances)
        if answer >= harness.max_length:
            raise UserError(
                f"{name} reads at most {harness.max_length:,} tokens, and {task_name} reserves "
                f"{answer:,} for the answer: leave out the task, or give lm eval a greater "
                "--max-length"
            )


def _answer_length(harness: HFLM, request: Instance) -> int:
    """Return how many tokens a request reserves for its answer."""
    options = normalize_gen_kwargs(request.args[1], harness.max_gen_toks)
    return int(options["max_gen_toks"])


def read_scores(about: TaskAbout, found: dict[str, Any]) -> Iterator[Score]:
    """Read the metrics of a task from lm-eval's results, whose keys are "METRIC,FILTER"."""
    numbers = found["results"][about.name]
    documents = found["n-samples"][about.name]["effective"]
    for key, value in numbers.items():
        metric, comma, filter_name = key.partition(",")
        if comma and not metric.endswith("_stderr"):
            error = numbers.get(f"{metric}_stderr,{filter_name}")
            chance = about.chance if metric.startswith("acc") else None
            yield Score(about.name, metric, _finite(value), _finite(error), chance, documents)


def shortened_requests(harness: HFLM, task: Task) -> int:
    """Count the requests of a task that are longer than the model reads, and so are cut."""
    texts, limits = list[str](), list[int]()
    for request in task.instances:
        if request.request_type == "loglikelihood":
            texts.append("".join(request.args))
            limits.append(harness.max_length + 1)  # the last token is not read
        elif request.request_type == "generate_until":
            texts.append(request.args[0])
            limits.append(harness.max_length - _answer_length(harness, request))
    lengths = map(len, harness.tokenizer(texts)["input_ids"]) if texts else ()
    return sum(length > limit for length, limit in zip(lengths, limits, strict=True))


def _finite(value: Any) -> float | None:
    """Return a finite number; None for any other value, such as lm-eval's "N/A"."""
    return float(value) if isinstance(value, float | int) and math.isfinite(value) else None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide lm-eval's log below errors and its bars; move what it prints to standard error.

    Its bootstrap runs in this process: for so few resamples a pool of processes is slower.
    """
    logger = logging.getLogger("lm_eval")
    level, pool = logger.level, os.environ.get("DISABLE_MULTIPROC")
    logger.setLevel(logging.ERROR)
    os.environ["DISABLE_MULTIPROC"] = "1"
    bar = tqdm.__init__
    tqdm.__init__ = lambda self, *args, **options: bar(self, *args, **options | {"disable": True})
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        tqdm.__init__ = bar
        logger.setLevel(level)
        if pool is None:
            del os.environ["DISABLE_MULTIPROC"]
