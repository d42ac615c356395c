"""Tasks as text: what a language model reads, and the answer that continues it.

The sequences that a task samples are put into plain English or Python where the task allows, and
are written as tokens otherwise. The answer is the task's own (`Task.solve`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from string import ascii_lowercase
from typing import Any, NamedTuple

import numpy as np

from statetrack.tasks import Task
from statetrack.tasks.arithmetic import ModularArithmetic, ModularArithmeticBrackets
from statetrack.tasks.board import Board
from statetrack.tasks.boxes import Boxes
from statetrack.tasks.navigation import CycleNavigation
from statetrack.tasks.parity import Parity
from statetrack.tasks.programs import Programs
from statetrack.tasks.uniform_string import UniformString
from statetrack.tasks.word_problem import GroupWordProblem

PEOPLE = ("Ann", "Bob", "Carl", "Dora", "Eve", "Fred", "Gina", "Hans")
OBJECTS = ("apple", "book", "coin", "drum", "egg", "flag", "glove", "hat")
LETTERS = "ABCDEFGHI"
COMPASS = {"N": "north", "E": "east", "S": "south", "W": "west"}
BOX_TOKENS, PROGRAM_TOKENS = 3, 7  # tokens of a statement, the average rounded
OMITTED = ("PAD", "BOS")  # tokens that are left out of the text


class Question(NamedTuple):
    """A text, and the answer that follows it after a blank."""

    context: str
    answer: str
    asked: str = ""  # the subject of the question, such as a person, if the task has several


def task_length(task: Task, steps: int) -> int:
    """Return the length, as the task counts it, of sequences of `steps` steps.

    A step is a symbol, a number, a move, a swap or an element. In boxes and programs it is a
    statement, and sequences have `steps` of them on average. In other tasks `steps` is the length.
    """
    if isinstance(task, UniformString):
        return steps + 1  # its length counts the answer
    if isinstance(task, ModularArithmetic):
        return 2 * steps + 1  # operators, = and the answer
    if isinstance(task, Boxes):
        return BOX_TOKENS * steps + 2  # the question has two tokens
    if isinstance(task, Programs):
        return PROGRAM_TOKENS * steps + 2
    return steps


def write_question(
    task: Task, words: Sequence[str], answer: str, rng: np.random.Generator
) -> Question:
    """Write a sequence of a task as a question in plain English or Python.

    Args:
        task: The task.
        words: The tokens of the sequence, up to the one whose answer is asked for.
        answer: This answer, as the task names it.
        rng: Chooses details of the text, such as the person that is asked about.
    """
    words = [word for word in words if word not in OMITTED]
    for family, write in WRITERS.items():
        if isinstance(task, family):
            return write(task, words, answer, rng)
    return _tokens(task, words, answer, rng)


def _tokens(task: Task, words: list[str], answer: str, _: np.random.Generator) -> Question:
    return Question(f"Task: {task.about}.\nInput: {' '.join(words)}\nAnswer:", answer)


def _parity(_: Parity, words: list[str], answer: str, __: np.random.Generator) -> Question:
    rule = "A lamp is off. Each 1 flips its switch, each 0 leaves it as it is."
    return Question(f"{rule}\n{' '.join(words)}\nThe lamp is now", "on" if answer == "1" else "off")


def _cycle(
    task: CycleNavigation, words: list[str], answer: str, _: np.random.Generator
) -> Question:
    last = task.cycle_size - 1
    rule = (
        f"A robot stands at position 0 of a circle with positions 0 to {last}. A step forward from "
        f"{last} leads to 0, a step back from 0 leads to {last}."
    )
    return Question(f"{rule}\n{' '.join(words)}\nThe robot is now at position", answer)


def _arithmetic(
    task: ModularArithmetic | ModularArithmeticBrackets,
    words: list[str],
    answer: str,
    _: np.random.Generator,
) -> Question:
    return Question(f"Compute modulo {task.modulus}.\n{' '.join(words)}", answer)


def _boxes(task: Boxes, words: list[str], answer: str, rng: np.random.Generator) -> Question:
    """Write the statements and the last question; earlier questions have no answer in the text."""
    if task.entities > len(OBJECTS) or task.boxes > len(LETTERS):
        return _tokens(task, words, answer, rng)
    things = {f"entity{i}": OBJECTS[i] for i in range(task.entities)}
    names = {f"box{i}": f"box {LETTERS[i]}" for i in range(task.boxes)}
    lines = [f"{_listed([f'the {name}' for name in things.values()])} are in box A."]
    for before, word, after in zip(words, words[1:], words[2:], strict=False):
        if before == "swap":
            lines.append(f"The contents of {names[word]} and {names[after]} trade places.")
        elif before in things and word in names:
            lines.append(f"The {things[before]} goes into {names[word]}.")
    asked = things[words[-1]]
    lines.append(f"The {asked} is now in box")
    text = "\n".join(line[:1].upper() + line[1:] for line in lines)
    return Question(text, names[answer][-1], asked)


def _board(task: Board, words: list[str], answer: str, rng: np.random.Generator) -> Question:
    if task.pieces > 1:
        return _tokens(task, words, answer, rng)
    right, top = ascii_lowercase[task.width - 1], task.height
    rule = (
        f"A robot stands on square a1 of a board with columns a to {right} (west to east) and rows "
        f"1 to {top} (south to north). A move over the edge has no effect."
    )
    moves = ", ".join(COMPASS[word] for word in words)
    return Question(f"{rule}\nIt moves {moves}.\nIt is now on square", answer)


def _program(task: Programs, words: list[str], answer: str, _: np.random.Generator) -> Question:
    variables = task.vocab[1 : 1 + task.variables]
    *statements, question = " ".join(words).split(" ; ")
    lines = [f"{' = '.join(variables)} = 0"]
    for statement in statements:
        guard, colon, assignment = statement.rpartition(" : ")
        variable, value = assignment.split(" = ")
        if " " in value:  # a sign
            value = f"({re.sub('^- ', '-', value)}) % {task.modulus}"
        lines.append(f"{guard}{colon.strip()} {variable} = {value}".strip())
    asked = question.removesuffix(" ?")
    lines.append(f"print({asked})  # prints")
    return Question("\n".join(lines), answer, asked)


def _group(
    task: GroupWordProblem, words: list[str], answer: str, rng: np.random.Generator
) -> Question:
    """Write elements as rearrangements of a row of letters: (a * b)(i) = a(b(i))."""
    permutations = task.group.permutations
    if re.fullmatch("Z[0-9]+", task.name):
        return Question(f"Compute modulo {task.group.order}.\n{' + '.join(words)} =", answer)
    if permutations is None or permutations.shape[1] > len(LETTERS):
        return _tokens(task, words, answer, rng)
    steps, row = permutations[[int(word) for word in words]], permutations[int(answer)]
    if task.name.endswith("_only_swaps") and len(row) <= len(PEOPLE):
        return _swaps(steps, row, rng)
    rule = (
        f"The letters {' '.join(LETTERS[: len(row)])} stand in a row. Each line of numbers "
        "rearranges the row: it lists the places from which the letters are taken, first to last."
    )
    rules = "\n".join(" ".join(str(place + 1) for place in step) for step in steps)
    asked = int(rng.integers(len(row)))
    text = f"{rule}\n{rules}\nThe letter at place {asked + 1} is now"
    return Question(text, LETTERS[row[asked]], str(asked))


def _swaps(steps: Any, row: Any, rng: np.random.Generator) -> Question:
    """Write transpositions [T, points] as swaps of objects between people; ask for one's object."""
    people, objects = PEOPLE[: len(row)], OBJECTS[: len(row)]
    held = [f"{name} holds the {thing}" for name, thing in zip(people, objects, strict=True)]
    lines = [f"{_listed(held)}."]
    for step in steps:
        moved = [people[i] for i in np.flatnonzero(step != np.arange(len(row)))]
        lines.append(f"{' and '.join(moved)} swap." if moved else "Nobody swaps.")
    asked = int(rng.integers(len(row)))
    lines.append(f"{people[asked]} now holds the")
    return Question("\n".join(lines), objects[row[asked]], people[asked])


def _listed(parts: Sequence[str]) -> str:
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


WRITERS: dict[type[Task], Callable[[Any, list[str], str, np.random.Generator], Question]] = {
    Parity: _parity,
    CycleNavigation: _cycle,
    ModularArithmetic: _arithmetic,
    ModularArithmeticBrackets: _arithmetic,
    Boxes: _boxes,
    Board: _board,
    Programs: _program,
    GroupWordProblem: _group,
}
