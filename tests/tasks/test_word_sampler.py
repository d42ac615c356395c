"""How words of automata are distributed."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from statetrack.errors import UserError
from statetrack.tasks import Task, make_task, word_sampler
from statetrack.tasks.languages import NAMED
from tests.tasks.regular_languages import LANGUAGES, draw, longest, reference, words


def possible(task: Task, length: int) -> set[str]:
    """The classes of words of a length, for predict=state and membership."""
    dfa = task.automaton()
    assert dfa is not None
    table = dfa.delta.tolist()
    states = {dfa.start}
    for _ in range(length):
        states = {target for state in states for target in table[state]}
    if task.predict == "membership":
        return {("reject", "accept")[int(dfa.accepting[state])] for state in states}
    return {f"q{state}" for state in states}


def assert_even(counts: Counter[str], expected: set[str]) -> None:
    """Every share within five standard deviations."""
    assert counts.keys() == expected
    share = 1 / len(expected)
    for name, count in counts.items():
        deviation = (share * (1 - share) / counts.total()) ** 0.5
        assert abs(count / counts.total() - share) <= 5 * deviation, name


@pytest.mark.parametrize("predict", ["state", "membership"])
@pytest.mark.parametrize("length", [1, 4, 13])
@pytest.mark.parametrize("name", ["regex:(ab)*", "regex:(ab|c)*", "regex:b{2,3}", *NAMED])
def test_answers_are_balanced(name: str, predict: str, length: int) -> None:
    task = make_task(name, predict=predict)
    assert_even(Counter(draw(task, 3000, length)[1]), possible(task, length))


@pytest.mark.parametrize("length", [500, 1200])
@pytest.mark.parametrize("name", ["tomita1", "tomita2", "tomita4", "tomita6", "dyck1_depth3"])
def test_answers_are_balanced_in_long_words(name: str, length: int) -> None:
    """Of 2^1200 words one is in tomita1."""
    task = make_task(name, predict="membership")
    assert_even(Counter(draw(task, 200, length)[1]), {"reject", "accept"})


@pytest.mark.parametrize(
    "name", ["random_dfa64_seed0", "random_dfa128_seed0", "regex:[a-z]*(cat|dog|mouse)[a-z]*"]
)
@pytest.mark.parametrize("predict", ["state", "membership"])
def test_answers_of_larger_automata_are_balanced(name: str, predict: str) -> None:
    task = make_task(name, predict=predict)
    assert_even(Counter(draw(task, 4000, 256)[1]), possible(task, 256))


def test_answers_are_balanced_in_very_long_words() -> None:
    task = make_task("tomita1", predict="membership")
    assert_even(Counter(draw(task, 30, 20_000)[1]), {"reject", "accept"})


@pytest.mark.parametrize("chunks", [1, 3])
def test_tables_are_bounded(chunks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the words, no more is kept; and what is kept does not change what is drawn."""
    lengths = np.array([700, 3, 256, 513, 90, 700])
    task = make_task("random_dfa8_seed0")
    expected = task.sample(np.random.default_rng(1), lengths)
    table = task._words._chunks[0].bounds.size
    monkeypatch.setattr(word_sampler, "CACHE_SIZE", chunks * table)
    task = make_task("random_dfa8_seed0")
    for length in (10, 5000):
        task.sample(np.random.default_rng(0), np.array([length]))
    assert len(task._words._chunks) <= chunks
    again = task.sample(np.random.default_rng(1), lengths)
    np.testing.assert_array_equal(again.tokens, expected.tokens)
    np.testing.assert_array_equal(again.targets, expected.targets)


def test_answers_are_balanced_at_each_length() -> None:
    task = make_task("tomita2", predict="membership")
    lengths = np.tile([3, 8], 1500)
    batch = task.sample(np.random.default_rng(0), lengths)
    last = batch.targets[np.arange(3000), lengths - 1]
    names = np.array(task.vocab)[last]
    assert set(names[lengths == 3]) == {"reject"}  # no word of odd length is in (10)*
    assert_even(Counter(names[lengths == 8].tolist()), {"reject", "accept"})


@pytest.mark.parametrize(
    "name", ["tomita4", "tomita5", "tomita7", "regex:(ab|c)*", "regex:[a-c]*ca?", "gridworld5"]
)
@pytest.mark.parametrize("predict", ["state", "membership"])
@pytest.mark.parametrize("steps", [2, 256])
def test_words_are_uniform_given_the_answer(
    name: str, predict: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one chunk of steps and in several."""
    monkeypatch.setattr(word_sampler, "STEPS", steps)
    task = make_task(name, predict=predict)
    length = 5
    by_answer: dict[str, Counter[str]] = {}
    for word, answer in zip(*draw(task, 20_000, length), strict=True):
        by_answer.setdefault(answer, Counter())[word] += 1
    for answer, counts in by_answer.items():
        expected = {w for w, by in reference(name).items() if len(w) == length}
        expected = {w for w in expected if reference(name)[w][predict] == answer}
        assert counts.keys() == expected
        mean = counts.total() / len(expected)
        chi_square = sum((n - mean) ** 2 / mean for n in counts.values())
        freedom = len(expected) - 1
        assert chi_square <= freedom + 5 * (2 * freedom) ** 0.5, answer


@pytest.mark.parametrize(
    "name", ["regex:(ab)*", "regex:(ab|c)*", "tomita2", "tomita3", "tomita4", "tomita7"]
)
def test_next_symbols_never_leave_the_prefixes(name: str) -> None:
    task = make_task(name, predict="next_symbols")
    some = draw(task, 1000, longest(LANGUAGES[name][0]))[0]
    assert all(reference(name)[word]["next_symbols"] for word in some)


@pytest.mark.parametrize("name", ["dyck1_depth3", "tomita4", "regex:(ab|c)*"])
@pytest.mark.parametrize("length", [1, 40])
def test_next_symbols_are_walked_by_what_may_follow(name: str, length: int) -> None:
    """Each symbol is one of those that the answer before it allows."""
    task = make_task(name, predict="next_symbols", supervision="dense")
    batch = task.sample(np.random.default_rng(0), np.full(300, length))
    for word, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        for target, symbol in zip(targets, word[1:], strict=False):
            assert task.vocab[symbol] in task.vocab[target][1:-1].split(" ")


@pytest.mark.parametrize(
    ("pattern", "length"), [("a*b", 6), ("(ab)*c", 6), ("a(b|c)d?|b*", 3), ("a+b{0,2}", 8)]
)
def test_next_symbols_where_a_word_can_be_at_its_end(pattern: str, length: int) -> None:
    """Nothing may come after b in a*b: such a word must not be drawn on."""
    task = make_task(f"regex:{pattern}", predict="next_symbols")
    dfa = task.automaton()
    assert dfa is not None
    alphabet = "".join(dfa.alphabet)
    for word in set(draw(task, 300, length)[0]):
        endings = (word + suffix for suffix in words(alphabet, 3))
        assert any(re.fullmatch(pattern, ending) for ending in endings), word


def test_next_symbols_of_a_finite_language_that_is_too_short() -> None:
    """No word of length 3 is a prefix of one in ab|ba; nothing right can be drawn."""
    task = make_task("regex:ab|ba", predict="next_symbols")
    assert set(draw(task, 50, 2)[0]) == {"ab", "ba"}
    with pytest.raises(UserError, match="length"):
        draw(task, 50, 3)


def test_answers_of_next_symbols_are_balanced() -> None:
    """Of the three prefixes one has the answer {)}, which comes as often as {( )}."""
    task = make_task("dyck1_depth3", predict="next_symbols")
    counts = Counter(draw(task, 4000, 3)[0])
    shares = {"(((": 1 / 2, "(()": 1 / 4, "()(": 1 / 4}
    assert counts.keys() == shares.keys()
    for word, share in shares.items():
        assert abs(counts[word] / 4000 - share) < 5 * (share * (1 - share) / 4000) ** 0.5
