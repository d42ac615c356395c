"""The state-tracking pack: tasks of ours as multiple-choice tasks of lm-eval."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from statetrack.config import at_least
from statetrack.errors import UserError
from statetrack.files import plain_name, whole_folder
from statetrack.lm.harness.folder import GROUP, Index, NewTask, TaskAbout, write_tasks
from statetrack.lm.harness.forms import Question, task_length, write_question
from statetrack.memory import check_memory
from statetrack.tasks import Task, generator, make_task
from statetrack.tasks.chomsky import TERMINATOR, ChomskyTask

PACK_TASKS = (
    "parity", "cycle_navigation", "S5_only_swaps", "boxes", "board", "programs", "Z5", "A5",
)  # fmt: skip
PACK_LENGTHS = (4, 8, 16, 32)
MAX_CHOICES = 16  # of a question; if there are more answers, the wrong choices are sampled
WORD_BYTES = 400  # of memory per token of a question, those drawn to balance answers included
ROUNDS = 16  # to balance answers, at most so many times the wanted number of sequences are drawn


def write_pack(
    out: Path,
    tasks: Sequence[str] = PACK_TASKS,
    *,
    lengths: Sequence[int] = PACK_LENGTHS,
    samples: int = 200,
    shots: int = 0,
    seed: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> Index:
    """Write lm-eval tasks, one for each task and length, and a group of all: `statetrack`.

    The questions of a task are distinct, so short lengths may have fewer than `samples`. The
    answers to questions about the same subject (a person, an object, a variable) are balanced as
    far as the task allows. The chance level in the index is the accuracy of always giving the most
    frequent of these answers, or that of guessing if it is higher.

    Args:
        out: A new folder.
        tasks: Names of tasks, as `make_task` takes them.
        lengths: Steps of a question: symbols, moves, swaps, elements or, on average, statements.
        samples: Questions of each task and length, at most.
        shots: Solved examples before each question; they are the same for all questions of a task,
            and none of them is asked.
        seed: Of the sequences.
        progress: Called with a text that names the task and the length.

    Raises:
        UserError: A length is too short for a task, or has too few distinct questions.
    """
    at_least("the number of samples", samples, 1)
    at_least("the number of shots", shots, 0)
    if not tasks or not lengths:
        raise UserError("a pack needs at least one task and one length")
    made = [make_task(name) for name in dict.fromkeys(tasks)]
    steps = list(dict.fromkeys(lengths))
    for task in made:
        for length in steps:
            at_least("a length", length, 1)
            size = task_length(task, length)
            task.check_lengths(size, size)
            needed = WORD_BYTES * (samples + shots) * task.input_size(size)
            check_memory(needed, f"a pack with {samples:,} questions of length {length:,}")

    def write() -> Iterator[NewTask]:
        taken: Counter[str] = Counter()
        for task in made:
            stem = f"{GROUP}_{plain_name(task.name)}"
            taken[stem] += 1
            stem += f"-{taken[stem]}" if taken[stem] > 1 else ""
            for length in steps:
                progress(f"writing {task.name} at length {length}")
                yield _new_task(task, length, f"{stem}_{length}", samples, shots, seed)

    with whole_folder(out) as folder:
        return write_tasks(folder, "pack", write(), group=GROUP)


def draw_questions(task: Task, length: int, count: int, rng: np.random.Generator) -> list[Question]:
    """Draw at most `count` distinct questions, with answers as balanced as the task allows."""
    found: dict[tuple[str, str], list[Question]] = defaultdict(list)
    seen: set[str] = set()
    for _ in range(ROUNDS):
        for question in _sample(task, length, count, rng):
            if question.context not in seen:
                seen.add(question.context)
                found[question.asked, question.answer].append(question)
        quota = -(-count // max(1, len(found)))
        if sum(min(len(questions), quota) for questions in found.values()) >= count:
            break
    in_turn = [pair for key in sorted(found) for pair in enumerate(found[key])]
    in_turn.sort(key=lambda pair: pair[0])  # the first of every key, then the second, ...
    chosen = [question for _, question in in_turn[:count]]
    return [chosen[i] for i in rng.permutation(len(chosen))]


def best_constant(questions: Sequence[Question]) -> float:
    """Return the accuracy of giving the most frequent answer for each subject of a question."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for question in questions:
        counts[question.asked][question.answer] += 1
    return sum(max(counter.values()) for counter in counts.values()) / len(questions)


def _sample(task: Task, length: int, count: int, rng: np.random.Generator) -> Iterator[Question]:
    """Ask for the last answer of each sequence.

    In tasks of the Chomsky suite with several outputs a random one is asked for; their targets are
    classes, not tokens.
    """
    batch = task.sample(rng, np.full(count, task_length(task, length)))
    asked = task.scored(batch.targets)
    names, order = task.vocab, np.arange(1.0, 1 + asked.shape[1])
    if isinstance(task, ChomskyTask):
        names, order = tuple(map(str, range(task.classes))), rng.random(asked.shape)
        if task.terminated:
            asked &= batch.targets != TERMINATOR
    rows = np.flatnonzero(asked.any(1))
    for row, at in zip(rows, (asked * order)[rows].argmax(1), strict=True):
        words = [task.vocab[token] for token in batch.tokens[row, : at + 1]]
        yield write_question(task, words, names[batch.targets[row, at]], rng)


def _new_task(task: Task, length: int, name: str, samples: int, shots: int, seed: int) -> NewTask:
    rng = generator(seed, "test", length)
    questions = draw_questions(task, length, samples + shots, rng)
    answers = sorted({question.answer for question in questions})
    if len(answers) < 2 or len(questions) <= shots:
        raise UserError(
            f"{task.name} at length {length} has {len(questions)} distinct questions with "
            f"{len(answers)} answers: too few for {shots} shots and a test"
        )
    documents = [_document(question, answers, rng) for question in questions]
    asked = documents[shots:]
    chance = max(best_constant(questions[shots:]), 1 / len(asked[0]["choices"]))
    about = TaskAbout(name, task.name, len(asked), length, chance)
    config = {
        "tag": name.rpartition("_")[0],
        "output_type": "multiple_choice",
        "test_split": "test",
        "num_fewshot": shots,
        "doc_to_text": "context",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": 1, "chance": chance, "length": length, "source": task.name},
    }
    splits = {"test": asked}
    if shots:
        config |= {"fewshot_split": "shots", "fewshot_config": {"sampler": "first_n"}}
        splits["shots"] = documents[:shots]
    return NewTask(about, config, splits)


def _document(
    question: Question, answers: Sequence[str], rng: np.random.Generator
) -> dict[str, Any]:
    others = [answer for answer in answers if answer != question.answer]
    if len(answers) > MAX_CHOICES:
        drawn = rng.choice(len(others), MAX_CHOICES - 1, replace=False)
        others = [others[i] for i in drawn]
    choices = sorted([question.answer, *others])
    answer = choices.index(question.answer)
    return {"context": question.context, "choices": choices, "answer": answer}
