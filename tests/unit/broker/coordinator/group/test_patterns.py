"""Patterns of subscriptions: what RE2 takes, as `re.fullmatch` for names of topics, within bounds."""

import re
import resource
import sys
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor_time import slowness
from unit.broker.coordinator.group.topics import Topics, run_steps
from warmlog_broker.coordinator.group.decisions.records import MemberValue
from warmlog_broker.coordinator.group.decisions.state import Member
from warmlog_broker.coordinator.group.decisions.subscriptions import Subscriptions
from warmlog_broker.coordinator.group.patterns import Patterns, compile_pattern, forget_compiled, matching, time_limit_s
from warmlog_broker.runtime.tasks import Slices
from warmlog_protocol.errors import InvalidRegularExpression

atoms = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\.", r"\w", r"\d", "-", "[a-b.]", "[]a]", "[{,2}]", r"\{,2}"])
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


@given(expressions, st.text("ab.-12", max_size=8))
def test_what_is_accepted_means_the_same_as_in_re(pattern: str, name: str) -> None:
    assert compile_pattern(pattern)(name) == bool(re.fullmatch(pattern, name))


@given(st.text(r"ab.*+?{}()|\^$,1-", max_size=8), st.text("ab.1", max_size=4))
def test_a_pattern_that_both_take_means_the_same(pattern: str, name: str) -> None:
    try:
        expected = bool(re.fullmatch(pattern, name))
        matches = compile_pattern(pattern)
    except (re.error, InvalidRegularExpression):
        return
    assert matches(name) == expected


@pytest.mark.parametrize(
    "pattern",
    ["^orders[.].*$", "orders\\..*", "^orders.*", "users|orders[.]eu$", "(?i)ORDERS.*", "o\\w+\\.(?P<x>eu|us)"],
)
def test_the_usual_patterns_match_whole_names(pattern: str) -> None:
    assert compile_pattern(pattern)("orders.eu")
    assert not compile_pattern(pattern)("old-orders.eu")


@pytest.mark.parametrize(
    "pattern",
    ["(", ")", "[", "*a", "a**", "a*+", "a{2}{3}", "a{3,2}", "(?=a)", "(?<!a)b", r"(a)\1", "\\", "[b-a]", "(?>a)",
     "(((a{99}){99}){99}){99}", "a{9999}", "größe|日本", "(" + "|" * 200 + "a){499}", "(.{1,200}a){4}"],
)  # fmt: skip
def test_what_is_wrong_too_large_or_not_supported_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRegularExpression, match="is not one that this broker takes"):
        compile_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["(a*)*b", "(a|a)*b", "(.*)(.*)(.*)(.*)(.*)b", "(a?){40}a{40}b", "(" * 120 + ")" * 120, "(.{1,16}){28}b",
     "(a|b)*a(a|b){240}x?.*", "(a?b?){200}(a|b){50}c"],
)  # fmt: skip
def test_a_name_takes_some_milliseconds_at_most(pattern: str) -> None:
    matches = compile_pattern(pattern)
    name = "ab" * 124
    matches(name)
    took_s = []
    for _ in range(5):
        started_s = time.thread_time()
        matches(name)
        took_s.append(time.thread_time() - started_s)
    assert min(took_s) < 0.01 * slowness()


def test_a_pattern_that_takes_long_with_many_names_is_refused_after_its_share() -> None:
    names = [f"{number:08b}".replace("0", "a").replace("1", "b") * 31 for number in range(256)] * 8
    began_s = time.thread_time()
    with pytest.raises(InvalidRegularExpression, match=r"it took 0\.\d+ s for the first \d+ names of topics"):
        run_steps(matching("(.{1,16}){28}b", names))
    assert time.thread_time() - began_s < 3 * time_limit_s(len(names))


def test_the_usual_patterns_take_a_small_part_of_their_time() -> None:
    names = [f"company.department-{number % 20}.system-{number}.events.v1" for number in range(5000)]
    began_s = time.thread_time()
    assert len(run_steps(matching(r"company\.department-7\..*", names))) == 250
    assert time.thread_time() - began_s < time_limit_s(len(names)) / 2


def test_patterns_leave_no_memory_behind() -> None:
    names = [f"{number:08b}".replace("0", "a").replace("1", "b") * 31 for number in range(64)]

    def match_some(first: int) -> None:
        for number in range(first, first + 100):
            matches = compile_pattern(f"(a|b)*a(a|b){{120}}(x{{{number}}})?.*")
            assert any(map(matches, names))
            forget_compiled()

    match_some(1)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    match_some(101)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 20_000


def test_a_broker_without_the_library_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(InvalidRegularExpression, match="google-re2 is not installed"):
        compile_pattern("a")


async def test_a_pattern_is_compared_once_with_each_topic_and_ends_with_its_last_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[str] = []

    def noted(pattern: str, names: Any) -> Any:
        compared.extend(names)
        return matching(pattern, names)

    monkeypatch.setattr("warmlog_broker.coordinator.group.patterns.matching", noted)
    topics = Topics(orders=1, users=1)
    subscriptions = Subscriptions(topics)
    patterns = Patterns(subscriptions, Slices())
    assert patterns.find("o.*") is None
    pattern = subscriptions.pattern("o.*")
    for _ in range(3):
        await patterns.match(pattern)
    assert patterns.find("o.*") is pattern
    assert compared == ["orders", "users"]
    topics.create("other", 1)
    topics.delete("users")
    subscriptions.changed(["other", "users"])
    assert sorted(topic.name for _, topic in subscriptions.topics(pattern.matched)) == ["orders"]
    await patterns.match(pattern)
    assert compared == ["orders", "users", "other"]
    assert sorted(topic.name for _, topic in subscriptions.topics(pattern.matched)) == ["orders", "other"]
    del pattern
    assert subscriptions.patterns() == []


async def test_a_pattern_that_was_forgotten_before_its_member_is_there_is_asked_for_again() -> None:
    asked: list[bool] = []
    subscriptions = Subscriptions(Topics(orders=1), on_unknown=lambda: asked.append(True))
    patterns = Patterns(subscriptions, Slices())
    known = subscriptions.pattern("o.*")
    await patterns.match(known)
    first = Member("a", MemberValue(pattern="o.*"))
    assert subscriptions.is_known(first)
    assert not asked
    del known, first
    late = Member("b", MemberValue(pattern="o.*"))
    assert not subscriptions.is_known(late)
    assert asked
    for each in subscriptions.patterns():
        await patterns.match(each)
    assert [topic.name for _, topic in subscriptions.topics(subscriptions.topics_of(late))] == ["orders"]


async def test_topics_that_come_and_go_while_a_pattern_is_compared_are_not_mixed_up() -> None:
    topics = Topics(orders=1, old=1, users=1)
    subscriptions = Subscriptions(topics)
    pattern = subscriptions.pattern("o.*")
    looked_at = [topic for _, topic in subscriptions.topics(pattern.unmatched)]
    topics.delete("old")
    topics.create("new", 1)
    subscriptions.changed(["old"])
    subscriptions.changed(["new"])  # has the bit of the one that is gone
    subscriptions.compared(pattern, looked_at, {"orders", "old"})
    assert [topic.name for _, topic in subscriptions.topics(pattern.matched)] == ["orders"]
    assert [topic.name for _, topic in subscriptions.topics(pattern.unmatched)] == ["new"]
