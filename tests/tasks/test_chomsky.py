"""The Chomsky hierarchy suite: what is drawn, what is asked, and what counts."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statetrack.errors import UserError
from statetrack.tasks import IGNORE, FiniteDataset, make_task
from statetrack.tasks.chomsky import ChomskyTask
from statetrack.tasks.chomsky_regular import EvenPairs
from tests.tasks.formal_reference import CHOMSKY, Row
from tests.tasks.test_sampling import chi_square

NAMES = list(CHOMSKY)
each_task = pytest.mark.parametrize("name", NAMES)
LENGTHS = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 40, 41, 100, 101])


def make(name: str) -> ChomskyTask:
    task = make_task(f"chomsky/{name}")
    assert isinstance(task, ChomskyTask)
    return task


def inputs(task: ChomskyTask, tokens: np.ndarray) -> list[Row]:
    """The rows without OUT and PAD."""
    return [[token for token in row if token < task.out] for row in tokens.tolist()]


def draw(name: str, count: int, length: int) -> list[Row]:
    task = make(name)
    return inputs(task, task.sample(np.random.default_rng(0), np.full(count, length)).tokens)


def check(task: ChomskyTask, name: str, rows: list[Row]) -> None:
    """Compare solve on a padded batch of tapes with the reference, and what is scored."""
    answers = [CHOMSKY[name](row) for row in rows]
    sizes = [len(row) + len(answer) for row, answer in zip(rows, answers, strict=True)]
    tokens = np.full((len(rows), max(sizes) + 1), task.pad)
    targets = np.full_like(tokens, IGNORE)
    scored = np.zeros(tokens.shape, dtype=bool)
    for i, (row, answer) in enumerate(zip(rows, answers, strict=True)):
        tokens[i, : sizes[i]] = row + [task.out] * len(answer)
        targets[i, len(row) : sizes[i]] = answer
        counted = answer.index(2) + 1 if task.terminated else len(answer)
        scored[i, len(row) : len(row) + counted] = True
    np.testing.assert_array_equal(task.solve(tokens), targets)
    np.testing.assert_array_equal(task.scored(targets), scored)


# --- right answers


@each_task
def test_samples(name: str) -> None:
    task = make(name)
    lengths = np.tile(LENGTHS, 12)
    tokens, targets, returned = task.sample(np.random.default_rng(0), lengths)
    np.testing.assert_array_equal(returned, lengths)
    np.testing.assert_array_equal(targets, task.solve(tokens))
    rows = inputs(task, tokens)
    check(task, name, rows)
    for row, line, asked, length in zip(rows, tokens.tolist(), targets, lengths, strict=True):
        odd = length - (length % 2 == 0)
        assert len(row) == (odd if name == "modular_arithmetic" else length)
        answer = CHOMSKY[name](row)
        size = len(row) + len(answer)
        assert size == task.input_size(length)
        pads = [task.pad] * (len(line) - size)
        assert line == row + [task.out] * len(answer) + pads
        assert asked[len(row) : size].tolist() == answer
        assert (asked[: len(row)] == IGNORE).all()
        assert (asked[size:] == IGNORE).all()


def lists(symbols: int) -> st.SearchStrategy[Row]:
    return st.lists(st.integers(0, symbols - 1), min_size=1, max_size=40)


def numbers() -> st.SearchStrategy[Row]:
    pair = st.tuples(lists(2), lists(2)).map(lambda two: [*two[0], 2, *two[1]])
    return pair | st.lists(st.integers(0, 1), min_size=1, max_size=2)


@st.composite
def stacks(draw: st.DrawFn) -> Row:
    actions = st.lists(st.sampled_from([2, 2, 3, 4]), max_size=30)
    return draw(lists(2)) + draw(actions)


@st.composite
def gaps(draw: st.DrawFn) -> Row:
    half = draw(lists(2))
    row = half + half
    row[draw(st.integers(0, len(row) - 1))] = 2
    return row + draw(st.sampled_from([[], [3]]))


@st.composite
def flat(draw: st.DrawFn) -> Row:
    row = [draw(st.integers(0, 4))]
    for op, digit in draw(st.lists(st.tuples(st.integers(5, 7), st.integers(0, 4)), max_size=30)):
        row += [op, digit]
    return row


@st.composite
def brackets(draw: st.DrawFn, operators: Row, ends: tuple[int, int], size: int = 4) -> Row:
    """An expression; `ends` are the ids of the brackets."""
    shape = draw(st.integers(0, 4 if size else 3))
    if shape < 4:
        row = [6] * (shape % 2) + [draw(st.integers(0, 4))]
        return [ends[0], *row, ends[1]] if shape > 1 else row
    left, right = (draw(brackets(operators, ends, size - 1)) for _ in range(2))
    return [ends[0], *left, draw(st.sampled_from(operators)), *right, ends[1]]


@st.composite
def equations(draw: st.DrawFn) -> Row:
    row = draw(brackets([5, 6], (7, 8)))
    right = eval("".join("01234+-()"[token] for token in row)) % 5
    row[draw(st.sampled_from([i for i, token in enumerate(row) if token < 5]))] = 9
    return [*row, 10, right]


INPUTS: dict[str, st.SearchStrategy[Row]] = {
    "even_pairs": lists(2),
    "parity_check": lists(2),
    "cycle_navigation": lists(3),
    "modular_arithmetic": flat(),
    "stack_manipulation": stacks(),
    "reverse_string": lists(2),
    "modular_arithmetic_brackets": brackets([5, 6, 7], (8, 9)),
    "modular_arithmetic_brackets_nomult": brackets([5, 6], (8, 9)),
    "solve_equation": equations(),
    "odds_first": lists(2),
    "duplicate_string": lists(2),
    "missing_duplicate_string": gaps(),
    "binary_addition": numbers(),
    "binary_multiplication": numbers(),
    "compute_sqrt": lists(2),
    "bucket_sort": lists(5),
}


@each_task
@settings(max_examples=30)
@given(st.data())
def test_any_input(name: str, data: st.DataObject) -> None:
    rows = data.draw(st.lists(INPUTS[name], min_size=1, max_size=4))
    check(make(name), name, rows)


@pytest.mark.parametrize("name", ["binary_addition", "binary_multiplication", "compute_sqrt"])
def test_long_numbers(name: str) -> None:
    check(make(name), name, draw(name, 3, 1000))


# --- what is drawn


Inputs = set[tuple[int, ...]]


def strings(symbols: int) -> list[Inputs]:
    return [set(product(range(symbols), repeat=length)) for length in (1, 2, 3)]


BITS = strings(2)
BRACKETS: list[Inputs] = [
    {(d,) for d in range(5)},
    {(6, d) for d in range(5)},
    {(8, d, 9) for d in range(5)},
]
NUMBERS: list[Inputs] = [{(0,)}, {(0, 0), (1, 0), (0, 1)}, {(1, 2, 1)}]

# every input of lengths 1, 2 and 3
SHORT: dict[str, list[Inputs]] = {
    "even_pairs": BITS,
    "parity_check": BITS,
    "cycle_navigation": strings(3),
    "modular_arithmetic": [
        {(d,) for d in range(5)},
        {(d,) for d in range(5)},
        set(product(range(5), (5, 6, 7), range(5))),
    ],
    "stack_manipulation": [
        BITS[0],
        set(product((0, 1), (2, 3, 4))),
        set(product((0, 1), (0, 1, 2, 3, 4), (2, 3, 4))),
    ],
    "reverse_string": BITS,
    "modular_arithmetic_brackets": BRACKETS,
    "modular_arithmetic_brackets_nomult": BRACKETS,
    "solve_equation": [{(0,)}, {(0, 0)}, {(9, 10, d) for d in range(5)}],
    "odds_first": BITS,
    "duplicate_string": BITS,
    "missing_duplicate_string": [
        {(1,)},
        {(0, 2), (1, 2), (2, 0), (2, 1)},
        {(0, 2, 3), (1, 2, 3), (2, 0, 3), (2, 1, 3)},
    ],
    "binary_addition": NUMBERS,
    "binary_multiplication": NUMBERS,
    "compute_sqrt": [every - {(0,) * n} for n, every in enumerate(BITS, 1)],
    "bucket_sort": strings(5),
}


@each_task
@pytest.mark.parametrize("length", [1, 2, 3])
def test_every_short_input_is_drawn(name: str, length: int) -> None:
    counts = Counter(map(tuple, draw(name, 5000, length)))
    assert set(counts) == SHORT[name][length - 1]
    if len(counts) > 1 and name != "stack_manipulation":
        assert chi_square(np.array(list(counts.values()))) < 5


@pytest.mark.parametrize(
    ("name", "symbols"),
    [
        ("even_pairs", 2),
        ("parity_check", 2),
        ("cycle_navigation", 3),
        ("reverse_string", 2),
        ("odds_first", 2),
        ("duplicate_string", 2),
        ("bucket_sort", 5),
    ],
)
def test_strings_are_uniform(name: str, symbols: int) -> None:
    drawn = np.array(draw(name, 4000, 20))
    for symbol in range(symbols):
        share = (drawn == symbol).mean(0)
        assert abs(share - 1 / symbols).max() < 0.04  # five standard deviations


def test_stacks_are_uniform() -> None:
    rows = draw("stack_manipulation", 5000, 12)
    sizes = [sum(token < 2 for token in row) for row in rows]
    counts = np.bincount(sizes)[1:]
    assert len(counts) == 11
    assert chi_square(counts) < 3
    tokens = np.bincount(np.ravel(rows))
    assert chi_square(tokens[:2]) < 8
    assert chi_square(tokens[2:]) < 5
    for row, size in zip(rows, sizes, strict=True):
        assert max(row[:size]) < 2 <= min(row[size:])


@pytest.mark.parametrize("length", [14, 15])
def test_gaps_are_uniform(length: int) -> None:
    rows = draw("missing_duplicate_string", 5000, length)
    counts = np.bincount([row.index(2) for row in rows])
    assert len(counts) == 14
    assert chi_square(counts) < 3
    for row in rows:
        assert (row[14:] == [3]) == (length == 15)
        assert all(a == b or 2 in (a, b) for a, b in zip(row[:7], row[7:14], strict=True))
        assert row.count(2) == 1


@pytest.mark.parametrize("name", ["binary_addition", "binary_multiplication"])
def test_operands_are_uniform(name: str) -> None:
    rows = draw(name, 9000, 7)
    splits = np.bincount([row.index(2) for row in rows])[1:]
    assert len(splits) == 5
    assert chi_square(splits) < 4
    for size, values in ((1, 1), (2, 3), (3, 7)):
        first = Counter(tuple(row[:size]) for row in rows if row.index(2) == size)
        last = Counter(tuple(row[-size:]) for row in rows if row.index(2) == 6 - size)
        for counts in (first, last):
            assert len(counts) == values
            assert values == 1 or chi_square(np.array(list(counts.values()))) < 5


def test_which_digit_is_x() -> None:
    rows = draw("solve_equation", 4000, 17)
    body = 15
    seen, expected, variance = np.zeros((3, body))
    for row in rows:
        places = [i for i, token in enumerate(row[:body]) if token < 5 or token == 9]
        assert sum(token == 9 for token in row) == 1
        seen[row.index(9)] += 1
        for before, place in zip([places[-1] - body, *places], places, strict=False):
            share = (place - before) / body
            expected[place] += share
            variance[place] += share * (1 - share)
    assert (abs(seen - expected) <= 5 * variance**0.5 + 1e-9).all()


def test_the_share_of_answer_0() -> None:
    rng = np.random.default_rng(0)
    for name, zeros in (
        ("modular_arithmetic_brackets", 0.302),
        ("modular_arithmetic_brackets_nomult", 0.2),
        ("solve_equation", 0.2),
    ):
        targets = make(name).sample(rng, rng.integers(37, 254, 6000)).targets
        assert abs((targets[targets != IGNORE] == 0).mean() - zeros) < 0.03


# --- what is what


@each_task
def test_tapes(name: str) -> None:
    task = make(name)
    assert task.vocab[task.out :] == ("OUT", "PAD")
    assert len(task.vocab) == max(task.out + 2, task.classes)
    assert task.chance == 1 / task.classes
    batch = task.sample(np.random.default_rng(0), np.array([3, 9, 30]))
    assert batch.targets.max() < task.classes
    assert task.metric == ("token" if (batch.targets != IGNORE).sum() > 3 else "answer")


def test_a_class_knows_its_name() -> None:
    assert EvenPairs() == make("even_pairs")
    assert EvenPairs().name == "chomsky/even_pairs"


def test_odds_first_counts_from_0() -> None:
    tokens = np.array([[1, 0, 1, 0, 1, 2, 2, 2, 2, 2]])
    assert make("odds_first").solve(tokens)[0, 5:].tolist() == [0, 0, 1, 1, 1]


def test_what_follows_the_terminator_is_not_scored() -> None:
    task = make("stack_manipulation")
    targets = task.solve(np.array([[0, 1, 2, 2, 2, 5, 5, 5, 5, 5, 5]]))  # pops all
    assert targets.tolist() == [[-1] * 5 + [2, 0, 0, 0, 0, 0]]
    assert task.scored(targets).tolist() == [[False] * 5 + [True] + [False] * 5]


@each_task
def test_a_finite_set(name: str) -> None:
    data = FiniteDataset(make(name), "train", 0, 20, 10, batch_size=5)
    assert len({tuple(row) for row in data.tokens.tolist()}) == 20
    assert (data.batch(0).targets != IGNORE).any(1).all()


# --- mistakes


@each_task
@pytest.mark.parametrize("length", [0, -3])
def test_lengths_that_will_not_do(name: str, length: int) -> None:
    with pytest.raises(UserError, match=f"the length of chomsky/{name} must be at least 1"):
        make(name).sample(np.random.default_rng(0), np.array([4, length]))


@each_task
def test_there_are_no_options(name: str) -> None:
    with pytest.raises(UserError, match="unknown key 'supervision' in task"):
        make_task(f"chomsky/{name}", supervision="dense")


@pytest.mark.parametrize("name", ["chomsky/", "chomsky/parity", "chomsky", "Chomsky/even_pairs"])
def test_unknown_names(name: str) -> None:
    with pytest.raises(UserError, match=f"unknown task '{name}'"):
        make_task(name)


@pytest.mark.parametrize(
    "row",
    [[0, 1], [0, 1, 2], [0, 2, 2, 1], [2], [2, 0, 2], [0, 1, 2, 2, 2], [0, 1, 2, 3, 2]],
    ids=str,
)
def test_tapes_that_will_not_do(row: Row) -> None:
    with pytest.raises(UserError, match="reverse_string: an input and as many OUT"):
        make("reverse_string").solve(np.array([row]))


@pytest.mark.parametrize("row", [[9, 5, 9, 10, 1], [1, 10, 1], [9, 5, 1]], ids=str)
def test_equations_that_will_not_do(row: Row) -> None:
    with pytest.raises(UserError, match="solve_equation: an equation has one x and one ="):
        make("solve_equation").solve(np.array([[*row, 11]]))


@each_task
def test_padding_and_empty_batches(name: str) -> None:
    task = make(name)
    assert (task.solve(np.full((2, 5), task.pad)) == IGNORE).all()
    for shape in [(2, 0), (0, 3), (0, 0)]:
        assert task.solve(np.empty(shape, dtype=np.int64)).shape == shape
    batch = task.sample(np.random.default_rng(0), np.array([6, 9]))
    padded = np.vstack([batch.tokens, np.full_like(batch.tokens[:1], task.pad)])
    np.testing.assert_array_equal(task.solve(padded)[:2], batch.targets)
