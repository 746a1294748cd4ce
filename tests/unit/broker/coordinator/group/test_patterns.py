"""Patterns of subscriptions: as `re.fullmatch`, but in linear time."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog_broker.coordinator.group.patterns import compile_pattern
from warmlog_protocol.errors import InvalidRegularExpression

atoms = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\.", r"\w", r"\d", "-", "[a-b.]", "[]a]"])
quantifiers = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{,2}", "{1,}", "*?", "+?", "??", "{1,2}?"])
expressions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join),
        inner.map("({})".format),
        inner.map("(?:{}|)".format),
        st.tuples(inner.map("({})".format), quantifiers).map("".join),
        st.tuples(atoms, quantifiers).map("".join),
    ),
    max_leaves=8,
)


@given(expressions, st.text("ab.-1]", max_size=8))
def test_what_is_accepted_means_the_same_as_in_re(pattern: str, name: str) -> None:
    assert compile_pattern(pattern).fullmatch(name) == bool(re.fullmatch(pattern, name))


@given(st.text(r"ab.*+?{}[]()|\^$,1-", max_size=8), st.text("ab.1", max_size=4))
def test_a_pattern_is_refused_or_means_the_same_as_in_re(pattern: str, name: str) -> None:
    try:
        compiled = compile_pattern(pattern)
    except InvalidRegularExpression:
        return
    assert compiled.fullmatch(name) == bool(re.fullmatch(pattern, name))


@pytest.mark.parametrize("pattern", ["^orders[.].*$", "orders\\..*", "^orders.*", "users|orders[.]eu$"])
def test_the_usual_patterns_match_whole_names(pattern: str) -> None:
    assert compile_pattern(pattern).fullmatch("orders.eu")
    assert not compile_pattern(pattern).fullmatch("old-orders.eu")


@pytest.mark.parametrize(
    "pattern",
    ["(", ")", "[", "*a", "a**", "a*+", "a{2}{3}", "a{3,2}", "a$b", "a^", "^*", "(?=a)", "(?i)a", r"(a)\1", r"\b", "\\",
     "(?P<n>a)", "[b-a]", "(((a{99}){99}){99}){99}", "(((){1000}){1000}){1000}", "a{9999}", "[[a]]"],
)  # fmt: skip
def test_what_is_wrong_too_large_or_not_supported_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRegularExpression, match="is not one that this broker takes"):
        compile_pattern(pattern)


@pytest.mark.parametrize(
    "pattern", ["(a*)*b", "(a|a)*b", "(.*)(.*)(.*)(.*)(.*)b", "(a?){40}a{40}b", "(" * 120 + ")" * 120]
)
def test_no_pattern_takes_long(pattern: str) -> None:
    started = time.process_time()
    assert not compile_pattern(pattern).fullmatch("a" * 249)
    assert time.process_time() - started < 1
