"""Entities in boxes, against a dictionary of sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statetrack.errors import UserError
from statetrack.tasks import IGNORE, Task, make_task


def answers(texts: list[str], entities: int, boxes: int) -> list[str | None]:
    """The answer at every token; None where nothing is asked."""
    contents: dict[str, set[str]] = {f"box{i}": set() for i in range(boxes)}
    contents["box0"] = {f"entity{i}" for i in range(entities)}
    out: list[str | None] = []
    words = iter(texts)
    for word in words:
        if word == "swap":
            a, b = next(words), next(words)
            contents[a], contents[b] = contents[b], contents[a]
            out += [None, None, None]
        elif word == "?":
            entity = next(words)
            out += [None, next(box for box, inside in contents.items() if entity in inside)]
        elif word == ".":
            out += [None]
        else:
            for inside in contents.values():
                inside.discard(word)
            contents[next(words)].add(word)
            out += [None, None]
    return out


def check(task: Task, tokens: np.ndarray, targets: np.ndarray) -> None:
    for row, found in zip(tokens, targets, strict=True):
        texts = [task.vocab[token] for token in row if token != task.pad]
        expected = answers(texts, task.entities, task.boxes)
        expected += [None] * (len(row) - len(texts))
        assert [None if t == IGNORE else task.vocab[t] for t in found] == expected


@given(st.data(), st.integers(1, 5), st.integers(2, 5))
def test_solve(data: st.DataObject, entities: int, boxes: int) -> None:
    task = make_task("boxes", entities=entities, boxes=boxes)
    entity = st.sampled_from([f"entity{i}" for i in range(entities)])
    box = st.sampled_from([f"box{i}" for i in range(boxes)])
    statement = st.one_of(
        st.tuples(entity, box),
        st.tuples(st.just("?"), entity),
        st.tuples(st.just("swap"), box, box),  # even of a box with itself
        st.just((".",)),
    )
    rows = data.draw(st.lists(st.lists(statement, max_size=15), min_size=1, max_size=4))
    texts = [[word for words in row for word in words] for row in rows]
    tokens = np.zeros((len(rows), max(map(len, texts)) + data.draw(st.integers(0, 2))), dtype=int)
    for i, row in enumerate(texts):
        tokens[i, : len(row)] = [task.vocab.index(word) for word in row]
    check(task, tokens, task.solve(tokens))


VARIANTS: list[dict[str, Any]] = [
    {},
    {"swaps": False},
    {"entities": 1, "boxes": 2},
    {"entities": 1, "boxes": 2, "swaps": False},
    {"entities": 30, "boxes": 20},
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_samples(options: dict[str, Any]) -> None:
    task = make_task("boxes", **options)
    batch = task.sample(np.random.default_rng(0), np.array([*range(2, 30), 200, 3, 2]))
    check(task, batch.tokens, batch.targets)
    for tokens, length in zip(batch.tokens, batch.lengths, strict=True):
        texts = [task.vocab[token] for token in tokens[:length]]
        assert texts[-2] == "?"
        assert texts[-1].startswith("entity")
        dotted = length == 3 if task.swaps else length % 2 == 1
        assert texts.count(".") == dotted
        assert not dotted or texts[-3] == "."


@pytest.mark.parametrize("length", range(2, 12))
@pytest.mark.parametrize("swaps", [True, False])
def test_batches_of_one_short_length(length: int, swaps: bool) -> None:
    task = make_task("boxes", swaps=swaps)
    batch = task.sample(np.random.default_rng(0), np.full(50, length))
    assert batch.tokens.shape == (50, length)
    assert (batch.tokens != task.pad).all()
    check(task, batch.tokens, batch.targets)


def test_a_story() -> None:
    task = make_task("boxes")
    text = "entity1 box2 ? entity1 swap box0 box2 ? entity1 ? entity3 entity3 box1 ? entity3"
    tokens = np.array([[task.vocab.index(word) for word in text.split()]])
    found = [task.vocab[target] for target in task.solve(tokens)[0] if target != IGNORE]
    assert found == ["box2", "box0", "box2", "box1"]


def test_swaps_can_be_left_out() -> None:
    lengths = np.full(200, 40)
    task = make_task("boxes", swaps=False)
    swap = task.vocab.index("swap")
    assert swap not in task.sample(np.random.default_rng(0), lengths).tokens
    assert swap in make_task("boxes").sample(np.random.default_rng(0), lengths).tokens


def test_the_mix_of_statements() -> None:
    task = make_task("boxes")
    tokens = task.sample(np.random.default_rng(0), np.full(2000, 200)).tokens[:, :-2]
    swaps = (tokens == task.vocab.index("swap")).sum()
    questions = (tokens == task.vocab.index("?")).sum()
    puts = (2000 * 198 - 3 * swaps - 2 * questions) / 2
    shares = np.array([swaps, questions, puts]) / (swaps + questions + puts)
    assert abs(shares - 1 / 3).max() < 0.01


def test_a_swap_is_of_two_different_boxes() -> None:
    task = make_task("boxes", boxes=4)
    tokens = task.sample(np.random.default_rng(0), np.full(2000, 60)).tokens
    i, t = np.nonzero(tokens == task.vocab.index("swap"))
    a, b = tokens[i, t + 1] - 8, tokens[i, t + 2] - 8
    counts = np.bincount(4 * a + b, minlength=16).reshape(4, 4)
    assert (np.diag(counts) == 0).all()
    assert abs(counts[~np.eye(4, dtype=bool)] / len(i) * 12 - 1).max() < 0.1


@pytest.mark.parametrize("options", [{}, {"swaps": False}, {"entities": 8, "boxes": 5}], ids=str)
def test_last_answers_and_entities_are_uniform(options: dict[str, Any]) -> None:
    task = make_task("boxes", **options)
    batch = task.sample(np.random.default_rng(0), np.full(4000, 150))
    shares = np.bincount(batch.targets[:, -1])[-task.boxes :] / 4000 * task.boxes
    assert abs(shares - 1).max() < 0.15
    shares = np.bincount(batch.tokens[:, -1])[4:] / 4000 * task.entities
    assert len(shares) == task.entities
    assert abs(shares - 1).max() < 0.25


def test_vocabulary() -> None:
    task = make_task("boxes", entities=2, boxes=2)
    assert task.vocab == ("PAD", ".", "?", "swap", "entity0", "entity1", "box0", "box1")
    assert task.chance == 1 / 2
    assert task.min_length == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"entities": 0}, "entities must lie in 1..*; got 0"),
        ({"boxes": 1}, "boxes must lie in 2..*; got 1"),
        ({"boxes": "3"}, "boxes must be a whole number; got '3'"),
        ({"swaps": 1}, "swaps must be true or false; got 1"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_options_that_will_not_do(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_task("boxes", **options)
