"""Offsets with their places."""

import pytest

from warmlog_broker.storage.segment.offset_metadata import LogOffsetMetadata as At


def test_a_smaller_base_offset_means_an_older_segment() -> None:
    assert At(1, 0, 1).is_on_older_segment_than(At(5, 4, 2))
    assert not At(5, 4, 2).is_on_older_segment_than(At(1, 0, 1))
    assert not At(1, 0, 1).is_on_older_segment_than(At(1, 0, 1))


def test_nothing_is_said_about_an_offset_without_place() -> None:
    message_only = At(1)
    assert message_only.is_message_only
    for other in (At(5, 4, 2), message_only):
        assert not message_only.is_on_older_segment_than(other)
        assert not other.is_on_older_segment_than(message_only)
        assert not message_only.is_on_same_segment_as(other)


def test_bytes_between_two_places_are_counted_within_one_segment_only() -> None:
    assert At(40, 10, 100).bytes_after(At(15, 10, 5)) == 95
    for other in (At(15, 11, 5), At(15)):
        with pytest.raises(ValueError, match="do not lie in one segment"):
            At(40, 10, 100).bytes_after(other)
