"""Regular expressions against Python's `re`, and what is refused."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statetrack.automata import from_regex
from statetrack.errors import UserError


def words(alphabet: str, longest: int) -> list[str]:
    return ["".join(w) for n in range(longest + 1) for w in itertools.product(alphabet, repeat=n)]


PATTERNS = [
    "(ab)*", "a*b*", "(a|b)*abb", "a{2,3}b", "a{2}", "(ab){,2}", "(a|bb){1,}", "a?b+a?", "[ab]*a",
    "[a-b]b", "a.b", ".*aba.*", "()", "(()|a)b", "((a))*", "(a|b|ab)(b)?", "a{1}b{0,1}", "b{,1}a",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_re_agrees(pattern: str) -> None:
    dfa = from_regex(pattern, "ab")
    for word in words("ab", 7):
        assert dfa.accepts(word) == bool(re.fullmatch(pattern, word)), word


@pytest.mark.parametrize(
    ("pattern", "alphabet"),
    [
        ("[(][)]", "()"),
        ("[(+]*[)]", "()+"),
        ("a-1,", ",-1a"),
        ("[-a]+", "-a"),
        ("[+-]", "+-"),
        ("[a-]b", "-ab"),
        ("[a^]", "^a"),
        ("[-a-b]", "-ab"),
        ("[.*]a", "*.a"),
        ("1{1,2}", "1"),
        ("<=|\u00e9", "<=\u00e9"),
    ],
)
def test_symbols_that_look_like_syntax(pattern: str, alphabet: str) -> None:
    dfa = from_regex(pattern)
    assert dfa.alphabet == tuple(sorted(alphabet))
    for word in words(alphabet, 4):
        assert dfa.accepts(word) == bool(re.fullmatch(pattern, word)), word


def extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    repeat = st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,2}", "{1,3}", "{,2}"])
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda xy: f"({xy[0]}|{xy[1]})"),
        st.tuples(inner, repeat).map(lambda xr: f"({xr[0]}){xr[1]}"),
    )


patterns = st.recursive(
    st.sampled_from(["a", "b", ".", "[ab]", "[a-b]", "a+", "b?", "()"]), extend, max_leaves=6
)


@given(patterns)
def test_re_agrees_on_drawn_patterns(pattern: str) -> None:
    dfa = from_regex(pattern, "ab")
    accepted = {word for word in words("ab", 6) if dfa.accepts(word)}
    assert accepted == {word for word in words("ab", 6) if re.fullmatch(pattern, word)}


@given(patterns, patterns)
def test_intersection(one: str, other: str) -> None:
    dfa = from_regex(f"({one})&({other})", "ab")
    for word in words("ab", 5):
        both = re.fullmatch(one, word) and re.fullmatch(other, word)
        assert dfa.accepts(word) == bool(both), word


def test_an_intersection_of_three() -> None:
    dfa = from_regex(".*a.*&.*b.*&..", "abc")
    assert [word for word in words("abc", 3) if dfa.accepts(word)] == ["ab", "ba"]


def test_the_alphabet_is_that_of_the_literals() -> None:
    assert from_regex("(b|a){2,3}").alphabet == ("a", "b")
    assert from_regex("z.[x-y]").alphabet == ("x", "y", "z")


def test_a_given_alphabet_keeps_its_order_and_widens_the_dot() -> None:
    dfa = from_regex("a.", ["b", "a", "c"])
    assert dfa.alphabet == ("b", "a", "c")
    assert [word for word in words("abc", 2) if dfa.accepts(word)] == ["aa", "ab", "ac"]


def test_the_empty_pattern() -> None:
    dfa = from_regex("", "a")
    assert [word for word in words("a", 3) if dfa.accepts(word)] == [""]


REFUSED = {
    r"a\d": r"'\\' is not supported at position 2",
    "^a": "'^' is not supported at position 1",
    "a$": "'$' is not supported at position 2",
    "a b": "' ' is not supported at position 2",
    "a\n": r"'\n' is not supported at position 2",
    "[a b]": "a set with ' ' in it is not supported at position 1",
    "[[:alpha:]]": "a set with '[' in it is not supported at position 1",
    r"[\d]": "a set with",
    "[^a]": "a set that does not look like [abc] or [a-c] at position 1",
    "[]": "a set that does not look like",
    "[ab": "a set that does not look like",
    "[c-a]": "the range 'c-a' runs backwards",
    "(?=a)b": "'?' has nothing to repeat",
    "(?:a)": "'?' has nothing to repeat",
    "*a": "'*' has nothing to repeat",
    "a**": "'*' has nothing to repeat (twice over needs parentheses) at position 3",
    "a*?": "'?' has nothing to repeat",
    "a|*": "'*' has nothing to repeat",
    "(a|)": "an empty alternative",
    "(|a)": "an empty alternative",
    "a||b": "an empty alternative",
    "|": "an empty alternative",
    "a&": "an empty alternative",
    "a|b&a": "& and | side by side need parentheses at position 4",
    "a{0}": "'{0}' must allow at least one",
    "a{,0}": "'{,0}' must allow at least one",
    "a{3,2}": "'{3,2}' must allow at least one and not end before it begins",
    "a{,}": "'{,}' is not a repetition",
    "a{9999999999}": "is not a repetition",
    "a{b}": "'{' is not supported",
    "a{-1}": "'{' is not supported",
    "a}": "'}' is not supported",
    "a]": "']' is not supported",
    "(a": "'(' is not closed at position 1",
    "a)": "')' closes nothing at position 2",
}


@pytest.mark.parametrize("pattern", REFUSED, ids=ascii)
def test_unsupported_syntax(pattern: str) -> None:
    with pytest.raises(UserError, match=re.escape(REFUSED[pattern])) as error:
        from_regex(pattern)
    message = str(error.value)
    assert message.startswith(f"regex {pattern!r}: ")
    assert message.endswith("[abc], [a-c], . and parentheses")


@pytest.mark.parametrize("pattern", ["", ".", "()", ".*"])
def test_an_empty_alphabet(pattern: str) -> None:
    with pytest.raises(UserError, match="needs an alphabet of at least one symbol"):
        from_regex(pattern)


def test_bad_alphabets() -> None:
    with pytest.raises(UserError, match="'c' is not in the alphabet a, b"):
        from_regex("abc", "ab")
    with pytest.raises(UserError, match="single characters; got 'ab'"):
        from_regex("a", ["a", "ab"])
    with pytest.raises(UserError, match="'a' is in the alphabet twice"):
        from_regex("a", "aba")


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("a{2001}", "2,001"),
        ("((a{100}){10}){3}", "3,000"),
        ("(a|b){1001}", "2,002"),
        ("(a{50}){1,}&a{50}", "2,500"),
        ("[!-\U000fffff]", "1,048,542"),
        ("a{999999999}", "999,999,999"),
    ],
    ids=ascii,
)
def test_too_large(pattern: str, size: str) -> None:
    with pytest.raises(UserError, match=f"too large: {size} symbols"):
        from_regex(pattern)


def test_a_dfa_that_would_be_too_large() -> None:
    with pytest.raises(UserError, match="more than 10,000 states"):
        from_regex("(a|b)*a(a|b){40}")
