"""Regular languages against plain Python: words are texts, and a language is a predicate on them.

States of the minimal DFA are worked out here as Myhill and Nerode do: two words lead to the same
state if the same suffixes make members of them; states are numbered in the order of their first
words, short ones first.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from statetrack.errors import UserError
from statetrack.tasks import IGNORE, Task, make_task
from statetrack.tasks.languages import MAX_STATES, NAMED, named_language

Predicate = Callable[[str], bool]
SUFFIX = 4  # long enough to tell apart the states of every language here


def no_odd_zeros_after_odd_ones(word: str) -> bool:
    odd_ones = False
    for symbol, group in groupby(word):
        odd = len(list(group)) % 2 == 1
        if symbol == "0" and odd and odd_ones:
            return False
        odd_ones |= symbol == "1" and odd
    return True


def balanced(word: str, most: int = 3) -> bool:
    depth = 0
    for symbol in word:
        depth += 1 if symbol == "(" else -1
        if not 0 <= depth <= most:
            return False
    return depth == 0


def at_the_end(word: str, fields: int = 5) -> bool:
    place = 0
    for symbol in word:
        place = min(place + 1, fields - 1) if symbol == "R" else max(place - 1, 0)
    return place == fields - 1


def one_is_stored(word: str) -> bool:
    writes = [symbol for symbol in word if symbol != "i"]
    return bool(writes) and writes[-1] == "w"


def matches(pattern: str) -> Predicate:
    return lambda word: re.fullmatch(pattern, word) is not None


LANGUAGES: dict[str, tuple[str, Predicate]] = {
    "tomita1": ("01", lambda word: set(word) <= {"1"}),
    "tomita2": ("01", lambda word: word == "10" * (len(word) // 2)),
    "tomita3": ("01", no_odd_zeros_after_odd_ones),
    "tomita4": ("01", lambda word: "000" not in word),
    "tomita5": ("01", lambda word: word.count("0") % 2 == word.count("1") % 2 == 0),
    "tomita6": ("01", lambda word: (word.count("0") - word.count("1")) % 3 == 0),
    "tomita7": ("01", lambda word: [s for s, _ in groupby("0" + word)] in map(list, RUNS)),
    "flip_flop": ("eiw", one_is_stored),
    "dyck1_depth3": ("()", balanced),
    "dyck1_depth1": ("()", lambda word: balanced(word, 1)),
    "gridworld5": ("LR", at_the_end),
    "gridworld2": ("LR", lambda word: at_the_end(word, 2)),
    **{
        f"regex:{pattern}": (alphabet, matches(pattern))
        for pattern, alphabet in [
            ("(ab)*", "ab"),
            ("(a|b)*abb", "ab"),
            ("a*b", "ab"),
            ("a?b+|ba", "ab"),
            ("(a.){1,2}b*", "ab"),
            ("b{2,3}", "b"),
            ("[a-c]*ca?", "abc"),
            ("(ab|c)*", "abc"),
        ]
    },
}
RUNS = ("0", "01", "010", "0101")

# the number of yy, modulo 2
JSON_DFA = {
    "alphabet": ["yy", "x"],
    "start": "even",
    "accepting": ["odd"],
    "transitions": {
        "odd": {"yy": "even", "x": "odd"},
        "even": {"yy": "odd", "x": "same"},
        "same": {"yy": "odd", "x": "even"},  # is even: minimisation merges them
    },
}


def words(alphabet: str, longest: int) -> Iterator[str]:
    for length in range(longest + 1):
        for word in product(alphabet, repeat=length):
            yield "".join(word)


def longest(alphabet: str) -> int:
    return {1: 8, 2: 8, 3: 5}[len(alphabet)]


@cache
def reference(name: str) -> dict[str, dict[str, Any]]:
    """By word: the names of its classes; there is no answer for what is no prefix any more."""
    alphabet, member = LANGUAGES[name]
    member = cache(member)
    suffixes = list(words(alphabet, SUFFIX))
    numbers: dict[tuple[bool, ...], int] = {}

    def alive(word: str) -> bool:
        return any(member(word + suffix) for suffix in suffixes)

    answers = {}
    for word in words(alphabet, longest(alphabet)):
        state = tuple(member(word + suffix) for suffix in suffixes)
        legal = " ".join(symbol for symbol in alphabet if alive(word + symbol))
        answers[word] = {
            "state": f"q{numbers.setdefault(state, len(numbers))}",
            "membership": "accept" if member(word) else "reject",
            "next_symbols": f"{{{legal}}}" if alive(word) else None,
        }
    return answers


def encode(task: Task, some: list[str]) -> np.ndarray:
    width = max(map(len, some))
    rows = [[task.vocab.index(s) for s in w] + [task.pad] * (width - len(w)) for w in some]
    return np.array(rows, dtype=np.int64)


def decode(task: Task, tokens: np.ndarray) -> list[str]:
    names = ["" if i == task.pad else name for i, name in enumerate(task.vocab)]
    return ["".join(names[token] for token in row) for row in tokens.tolist()]


def draw(task: Task, count: int, length: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Words and the names of their last answers."""
    batch = task.sample(np.random.default_rng(seed), np.full(count, length))
    return decode(task, batch.tokens), [task.vocab[i] for i in batch.targets[:, -1]]


# every symbol may come next at any time, or, in tomita1, but one
ONE_ANSWER = {
    *("tomita1", "tomita5", "tomita6", "flip_flop", "gridworld5", "gridworld2"),
    *("regex:(a|b)*abb", "regex:[a-c]*ca?"),
}
each_case = pytest.mark.parametrize(
    ("name", "predict"),
    [
        (name, predict)
        for name in LANGUAGES
        for predict in ("state", "membership", "next_symbols")
        if predict != "next_symbols" or name not in ONE_ANSWER
    ],
)
each_language = pytest.mark.parametrize("name", LANGUAGES)
each_predict = pytest.mark.parametrize("predict", ["state", "membership", "next_symbols"])
each_supervision = pytest.mark.parametrize("supervision", ["last", "dense"])


def test_tomita3_is_the_complement_of_its_regex() -> None:
    not_in = re.compile("((0|1)*0)*1(11)*(0(0|1)*1)*0(00)*(1(0|1)*)*")
    for word in words("01", 8):
        assert no_odd_zeros_after_odd_ones(word) == (not_in.fullmatch(word) is None)


def test_tomita7_is_its_regex() -> None:
    for word in words("01", 8):
        assert LANGUAGES["tomita7"][1](word) == matches("0*1*0*1*")(word)


@each_language
def test_membership_of_every_short_word(name: str) -> None:
    alphabet, member = LANGUAGES[name]
    dfa = make_task(name).automaton()
    assert dfa is not None
    assert "".join(dfa.alphabet) == alphabet
    for word in words(alphabet, longest(alphabet)):
        assert dfa.accepts(word) == member(word), word


@pytest.mark.parametrize("name", sorted(ONE_ANSWER))
def test_one_answer_only(name: str) -> None:
    assert len({by["next_symbols"] for by in reference(name).values()} - {None}) == 1
    with pytest.raises(UserError, match=re.escape(f"{name} has one answer only")):
        make_task(name, predict="next_symbols")


@each_case
@each_supervision
def test_targets(name: str, predict: str, supervision: str) -> None:
    """All short words in one batch, so padding too."""
    task = make_task(name, predict=predict, supervision=supervision)
    answers = {word: by[predict] for word, by in reference(name).items()}
    some = [word for word in answers if word and answers[word]]
    targets = task.solve(encode(task, some))
    for word, row in zip(some, targets.tolist(), strict=True):
        read = range(1, len(word) + 1)
        expected = [answers[word[:t]] for t in read]
        if supervision == "last":
            expected[:-1] = [None] * (len(word) - 1)
        got = [None if target == IGNORE else task.vocab[target] for target in row]
        assert got == expected + [None] * (len(row) - len(word)), word


@each_case
def test_classes_and_chance(name: str, predict: str) -> None:
    task = make_task(name, predict=predict)
    expected = {by[predict] for by in reference(name).values()} - {None}
    assert set(task.classes) == expected
    assert task.vocab == ("PAD", *LANGUAGES[name][0], *task.classes)
    assert task.pad == 0
    assert task.chance == 1 / len(expected)
    assert (task.min_length, task.input_size(7)) == (1, 7)


@pytest.mark.parametrize(
    ("name", "states"),
    [
        ("flip_flop", 2),
        ("dyck1_depth1", 3),
        ("dyck1_depth3", 5),
        ("dyck1_depth40", 42),
        ("gridworld2", 2),
        ("gridworld5", 5),
        (f"gridworld{MAX_STATES}", MAX_STATES),
        *((f"tomita{n}", states) for n, states in enumerate([2, 3, 5, 4, 4, 3, 5], 1)),
    ],
)
def test_numbers_of_states(name: str, states: int) -> None:
    assert len(make_task(name).classes) == states


def test_the_state_of_dyck_is_the_depth() -> None:
    task = make_task("dyck1_depth3", supervision="dense")
    targets = task.solve(encode(task, ["()(())((()))", "((((", "())(()"]))
    # the sink, by ")", is found before depth 2
    depths = {0: "q0", 1: "q1", "out": "q2", 2: "q3", 3: "q4"}
    expected = [
        [1, 0, 1, 2, 1, 0, 1, 2, 3, 2, 1, 0],
        [1, 2, 3, "out"],
        [1, 0, "out", "out", "out", "out"],
    ]
    for row, depth in zip(targets, expected, strict=True):
        assert [task.vocab[t] for t in row[: len(depth)]] == [depths[d] for d in depth]


def test_the_state_of_the_gridworld_is_the_place() -> None:
    task = make_task("gridworld5", supervision="dense")
    targets = task.solve(encode(task, ["LRRLRRRRRLLLLLLR"]))[0]
    places = [int(task.vocab[t][1:]) for t in targets]
    assert places == [0, 1, 2, 1, 2, 3, 4, 4, 4, 3, 2, 1, 0, 0, 0, 1]


def test_flip_flop_keeps_the_last_write() -> None:
    task = make_task("flip_flop", supervision="dense")
    targets = task.solve(encode(task, ["iwiieiewwi"]))[0]
    assert [task.vocab[t] for t in targets] == [f"q{bit}" for bit in map(int, "0111000111")]


def test_no_symbols() -> None:
    task = make_task("tomita1")
    with pytest.raises(UserError, match="tomita1: the input has tokens that are no symbols"):
        task.solve(np.array([[1, 2, 3]]))
    assert (task.solve(np.zeros((2, 5))) == IGNORE).all()
    for shape in ((2, 0), (0, 3)):
        assert task.solve(np.empty(shape, dtype=np.int64)).shape == shape


def test_a_dfa_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "my dfa.json"
    file.write_text(json.dumps(JSON_DFA))
    state = make_task(f"dfa:{file}", supervision="dense")
    member = make_task(f"dfa:{file}", supervision="dense", predict="membership")
    assert state.vocab == ("PAD", "yy", "x", "q0", "q1")  # minimal: even and same are one
    assert member.vocab == ("PAD", "yy", "x", "reject", "accept")
    tokens = np.random.default_rng(0).integers(1, 3, (50, 9))
    for row, states, members in zip(tokens, state.solve(tokens), member.solve(tokens), strict=True):
        odd = [sum(token == 1 for token in row[: t + 1]) % 2 for t in range(9)]
        assert [state.vocab[t] for t in states] == [f"q{n}" for n in odd]
        assert [member.vocab[t] for t in members] == [("reject", "accept")[n] for n in odd]


@pytest.mark.parametrize("symbol", ["PAD", "q0", "q1"])
def test_symbols_called_like_other_tokens(tmp_path: Path, symbol: str) -> None:
    """The tokens of a vocabulary all differ, or the file is refused."""
    file = tmp_path / "dfa.json"
    file.write_text(json.dumps(JSON_DFA).replace('"yy"', json.dumps(symbol)))
    try:
        vocab = make_task(f"dfa:{file}").vocab
    except UserError:
        return
    assert len(set(vocab)) == len(vocab)


def test_a_random_dfa_can_be_had_again() -> None:
    def automaton(name: str) -> Any:
        named_language.cache_clear()
        return make_task(name).automaton()

    first = automaton("random_dfa8_seed0")
    assert first == automaton("random_dfa8_seed0")
    assert first.alphabet == ("a", "b")
    assert 2 <= first.states <= 8
    others = [automaton(f"random_dfa8_seed{seed}") for seed in (1, 2, 3)]
    assert len({first, *others, automaton("random_dfa9_seed0")}) == 5


def test_a_random_dfa_is_walked() -> None:
    task = make_task("random_dfa8_seed0", supervision="dense")
    dfa = task.automaton()
    assert dfa is not None
    table = dfa.delta.tolist()
    batch = task.sample(np.random.default_rng(0), np.full(20, 15))
    for word, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        state = dfa.start
        for token, target in zip(word, targets, strict=True):
            state = table[state][token - 1]
            assert task.vocab[target] == f"q{state}"


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


def test_answers_are_balanced_at_each_length() -> None:
    task = make_task("tomita2", predict="membership")
    lengths = np.tile([3, 8], 1500)
    batch = task.sample(np.random.default_rng(0), lengths)
    last = batch.targets[np.arange(3000), lengths - 1]
    names = np.array(task.vocab)[last]
    assert set(names[lengths == 3]) == {"reject"}  # no word of odd length is in (10)*
    assert_even(Counter(names[lengths == 8].tolist()), {"reject", "accept"})


@pytest.mark.parametrize("name", ["tomita4", "tomita5", "tomita7", "regex:(ab|c)*", "gridworld5"])
@pytest.mark.parametrize("predict", ["state", "membership"])
def test_words_are_uniform_given_the_answer(name: str, predict: str) -> None:
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


@each_predict
@each_supervision
@pytest.mark.parametrize("name", ["tomita7", "dyck1_depth3"])
def test_mixed_lengths_and_padding(name: str, predict: str, supervision: str) -> None:
    task = make_task(name, predict=predict, supervision=supervision)
    lengths = np.array([1, 8, 3, 8, 2, 5, 7, 1])
    batch = task.sample(np.random.default_rng(0), lengths)
    padding = np.arange(8) >= lengths[:, None]
    np.testing.assert_array_equal(batch.tokens == task.pad, padding)
    np.testing.assert_array_equal(batch.lengths, lengths)
    asked = np.arange(8) == lengths[:, None] - 1 if supervision == "last" else ~padding
    np.testing.assert_array_equal(batch.targets != IGNORE, asked)
    for word, target in zip(decode(task, batch.tokens), batch.targets, strict=True):
        answer = task.vocab[target[len(word) - 1]]
        assert answer == reference(name)[word][predict]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("regex:", {}, "regex '' needs an alphabet"),
        ("regex:a\\d", {}, "is not supported at position 2; supported: literals"),
        ("regex:(ab", {}, "'\\(' is not closed"),
        ("regex:[ab]*", {}, "one answer only for predict=state"),
        ("regex:[ab]*", {"predict": "membership"}, "one answer only for predict=membership"),
        ("regex:ab&b", {"predict": "membership"}, "one answer only for predict=membership"),
        ("regex:[ab]*", {"predict": "next_symbols"}, "one answer only for predict=next_symbols"),
        ("regex:ab&b", {"predict": "next_symbols"}, "one answer only for predict=next_symbols"),
        ("flip_flop", {"predict": "next_symbols"}, "one answer only for predict=next_symbols"),
        ("tomita1", {"predict": "next_symbols"}, "one answer only for predict=next_symbols"),
        ("dfa:/nowhere/at all.json", {}, "cannot read /nowhere/at all.json"),
        ("tomita1", {"predict": "future"}, "predict must be one of state, membership, next_sy"),
        ("tomita1", {"supervision": "all"}, "supervision must be one of last, dense; got 'all'"),
        ("random_dfa9999_seed0", {}, f"random_dfa9999_seed0 is too large: at most {MAX_STATES} "),
        (f"dyck1_depth{MAX_STATES + 1}", {}, "is too large"),
        (f"gridworld{MAX_STATES + 1}", {}, f"gridworld{MAX_STATES + 1} is too large"),
        ("tomita8", {}, "unknown task 'tomita8'"),
        ("tomita0", {}, "unknown task 'tomita0'"),
        ("dyck1_depth0", {}, "unknown task 'dyck1_depth0'"),
        ("gridworld1", {}, "unknown task 'gridworld1'"),
        ("random_dfa8", {}, "unknown task 'random_dfa8'"),
    ],
    ids=lambda value: str(value) if value else "",
)
def test_mistakes(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_task(name, **options)


def test_a_file_that_is_no_dfa(tmp_path: Path) -> None:
    file = tmp_path / "dfa.json"
    for text in ("{", "[]", json.dumps({**JSON_DFA, "start": "nowhere"})):
        file.write_text(text)
        with pytest.raises(UserError, match=re.escape(str(file))):
            make_task(f"dfa:{file}")
