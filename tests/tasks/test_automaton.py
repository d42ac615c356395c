"""What automaton tasks ask, against plain Python; files and mistakes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from statetrack.errors import UserError
from statetrack.tasks import IGNORE, generator, make_task
from statetrack.tasks.languages import MAX_TASK_STATES
from tests.tasks.regular_languages import (
    LANGUAGES,
    ONE_ANSWER,
    decode,
    each_case,
    each_predict,
    each_supervision,
    encode,
    reference,
)

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


def test_no_symbols() -> None:
    task = make_task("tomita1")
    with pytest.raises(UserError, match="tomita1: the input has tokens that are no symbols"):
        task.solve(np.array([[1, 2, 3]]))
    assert (task.solve(np.zeros((2, 5), dtype=int)) == IGNORE).all()
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


def test_the_automaton_of_another_task() -> None:
    task = make_task("automaton:S5_only_swaps", supervision="dense")
    swaps = make_task("S5_only_swaps")
    dfa = swaps.automaton()
    assert dfa is not None
    assert dfa.outputs is not None
    assert task.vocab == ("PAD", *dfa.alphabet, *(f"q{i}" for i in range(120)))
    batch = swaps.sample(generator(0, "test", 0), [9])
    symbols = [dfa.alphabet.index(str(x)) for x in batch.tokens[0, 1:]]
    answers = task.solve(np.array([symbols]) + 1)[0] - 1 - len(dfa.alphabet)
    assert [dfa.outputs[q] for q in answers] == [str(x) for x in batch.targets[0, 1:]]


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
        ("automaton:boxes", {}, "the task boxes has no automaton: it is not regular, or too large"),
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
        ("dfa:/nowhere/at all.json", {}, "/nowhere/at all.json does not exist"),
        ("tomita1", {"predict": "future"}, "predict must be one of state, membership, next_sy"),
        ("tomita1", {"supervision": "all"}, "supervision must be one of last, dense; got 'all'"),
        ("random_dfa9999_seed0", {}, "random_dfa9999_seed0 is too large: at most 1,024 states"),
        (f"dyck1_depth{MAX_TASK_STATES + 1}", {}, "is too large"),
        (f"dyck1_depth{MAX_TASK_STATES - 1}", {}, "is too large: at most 1,024 states"),
        ("regex:(a|b)*a(a|b){10}", {}, "is too large: at most 1,024 states are supported"),
        (f"gridworld{MAX_TASK_STATES + 1}", {}, f"gridworld{MAX_TASK_STATES + 1} is too large"),
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
