"""An offset with its segment and its position there.

Message-only metadata has the offset alone. With the position, a read can be bounded and unread bytes can be counted
without an index lookup.
"""

from typing import NamedTuple

from warmlog_protocol.batch.header import NO_OFFSET

NO_POSITION = -1


class LogOffsetMetadata(NamedTuple):
    """`position` is in the file of the segment with that base offset; both are -1 if unknown."""

    offset: int
    segment_base_offset: int = NO_OFFSET
    position: int = NO_POSITION

    @property
    def is_message_only(self) -> bool:
        return self.segment_base_offset == NO_OFFSET

    def is_on_same_segment_as(self, other: "LogOffsetMetadata") -> bool:
        """Whether both are in one segment; False if either position is unknown."""
        if self.is_message_only or other.is_message_only:
            return False
        return self.segment_base_offset == other.segment_base_offset

    def bytes_after(self, other: "LogOffsetMetadata") -> int:
        """The number of bytes from `other` to this one, in one segment; ValueError for different segments."""
        if not self.is_on_same_segment_as(other):
            raise ValueError(f"{self} and {other} are not in one segment")
        return self.position - other.position
