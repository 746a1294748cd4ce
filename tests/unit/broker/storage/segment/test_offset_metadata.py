"""Offsets with their positions."""

import pytest

from warmlog_broker.storage.segment.offset_metadata import LogOffsetMetadata as At


def test_only_offsets_with_known_positions_are_on_the_same_segment() -> None:
    message_only = At(1)
    assert message_only.is_message_only
    assert At(1, 4, 1).is_on_same_segment_as(At(5, 4, 2))
    for other in (At(5, 4, 2), message_only):
        assert not message_only.is_on_same_segment_as(other)
        assert not other.is_on_same_segment_as(message_only)


def test_bytes_between_two_positions_are_counted_within_one_segment_only() -> None:
    assert At(40, 10, 100).bytes_after(At(15, 10, 5)) == 95
    for other in (At(15, 11, 5), At(15)):
        with pytest.raises(ValueError, match="are not in one segment"):
            At(40, 10, 100).bytes_after(other)
