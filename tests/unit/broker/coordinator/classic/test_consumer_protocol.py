"""Subscriptions and assignments of Kafka's consumers: read and written, and never an error."""

from hypothesis import given
from hypothesis import strategies as st

from warmlog_broker.coordinator.classic.consumer_protocol import (
    MOST_NAMES,
    assignment,
    partitions_of,
    subscribed_topics,
    subscription,
    topics_of,
)
from warmlog_broker.coordinator.classic.state import Member, Rebalance

NAMES = st.text(max_size=20)


@given(st.lists(st.tuples(NAMES, st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5)), max_size=5))
def test_an_assignment_is_read_as_it_was_written(partitions: list[tuple[str, list[int]]]) -> None:
    assert partitions_of(assignment(partitions)) == partitions


@given(st.lists(NAMES, max_size=5))
def test_a_subscription_is_read_as_it_was_written(topics: list[str]) -> None:
    assert topics_of(subscription(topics)) == topics


@given(st.binary(max_size=60) | st.binary(max_size=20).map(lambda data: b"\0\1\x7f\xff\xff\xff" + data))
def test_what_cannot_be_read_is_no_error(data: bytes) -> None:
    topics_of(data)
    partitions_of(data)


def test_counts_that_no_consumer_has_cost_nothing() -> None:
    backwards = b"\0\0\x7f\xff\xff\xff\0\2ab\xff\xff\xff\xfe"  # the entry would be read again and again
    assert partitions_of(backwards) == []
    assert topics_of(b"\0\0\x00\x7f\xff\xff" + b"\0\0" * 0x7FFFFF) == []
    assert partitions_of(assignment([("a", range(MOST_NAMES)), ("b", [1])])) == []


def test_what_is_cut_off_is_empty() -> None:
    whole = assignment([("a", [1, 2])])
    assert [partitions_of(whole[:size]) for size in range(len(whole) - 4)] == [[]] * (len(whole) - 4)


def test_bytes_as_kafka_writes_them() -> None:
    # ConsumerProtocolSubscription v1 with one topic, no user data, one owned partition; Assignment v1
    subscribed = b"\0\1\0\0\0\1\0\3abc\xff\xff\xff\xff\0\0\0\1\0\3abc\0\0\0\1\0\0\0\5"
    assert topics_of(subscribed) == ["abc"]
    assert partitions_of(b"\0\1\0\0\0\1\0\3abc\0\0\0\2\0\0\0\0\0\0\0\1\xff\xff\xff\xff") == [("abc", [0, 1])]


def test_topics_of_members_that_are_no_consumers_are_not_known() -> None:
    member = Member("m", "", "", "", 1, 1, (("range", subscription(["a", "b"])),))
    assert subscribed_topics(Rebalance(protocol_type="consumer", members={"m": member})) == {"a", "b"}
    assert subscribed_topics(Rebalance(protocol_type="connect", members={"m": member})) == set()
