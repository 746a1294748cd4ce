"""Errors of the client, as they reach users in other processes."""

import copy
import pickle
from datetime import UTC, datetime

import pytest

import warmlog
import warmlog.errors

ERRORS = sorted(
    {
        item
        for module in (warmlog, warmlog.errors)
        for name in module.__all__
        if isinstance(item := getattr(module, name), type) and issubclass(item, BaseException)
    },
    key=lambda kind: kind.__name__,
)


def example(kind: type[BaseException]) -> BaseException:
    if kind is warmlog.UnreadableBatch:
        return warmlog.UnreadableBatch("CRC mismatch", topic="t", partition=3, base_offset=10, next_offset=20)
    if kind is warmlog.LogTruncated:
        return warmlog.LogTruncated("t", 3, 20, 12)
    if kind is warmlog.MembershipLost:
        return warmlog.MembershipLost(
            "etl", datetime(2026, 11, 20, 8, tzinfo=UTC), "expired", {("t", 3): range(10, 20)}
        )
    return kind("what went wrong")


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_public_error_survives_pickling(kind: type[BaseException], protocol: int) -> None:
    error = example(kind)
    for received in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error)):
        assert type(received) is kind
        assert (str(received), received.args) == (str(error), error.args)
        assert vars(received) == vars(error)


def test_an_error_with_another_message_keeps_its_fields_also_when_it_is_pickled() -> None:
    for kind in (warmlog.UnreadableBatch, warmlog.LogTruncated):
        error = example(kind)
        assert isinstance(error, (warmlog.UnreadableBatch, warmlog.LogTruncated))
        other = pickle.loads(pickle.dumps(error.reworded("in other words")))
        assert type(other) is kind
        assert str(other) == "in other words"
        assert vars(other) == vars(error)


def test_notes_on_an_error_and_on_the_same_with_another_message_stay_apart() -> None:
    for kind in (warmlog.UnreadableBatch, warmlog.LogTruncated):
        error = example(kind)
        assert isinstance(error, (warmlog.UnreadableBatch, warmlog.LogTruncated))
        error.add_note("about the first")
        other = error.reworded("in other words")
        other.add_note("about the second")
        assert error.__notes__ == ["about the first"]
        assert other.__notes__ == ["about the second"]


def test_a_lost_membership_says_since_when_and_what_is_handled_again() -> None:
    since = datetime(2026, 11, 20, 8, tzinfo=UTC)
    error = warmlog.MembershipLost(
        "etl", since, "its session expired", {("t", 3): range(10, 20), ("t", 1): range(7, 7)}
    )
    assert str(error) == (
        "no longer a member of group 'etl', of which it last heard at 2026-11-20 08:00:00 UTC: its session expired; "
        "not committed, so that others handle it again: t-3 from 10 to 19. Read on to join again"
    )
    assert (error.group, error.since) == ("etl", since)
    assert error.partitions == {("t", 3): range(10, 20), ("t", 1): range(7, 7)}
