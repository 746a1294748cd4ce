"""An offset together with the place where it lies: which segment, and at which byte of it.

Message-only metadata knows the offset alone. The place lets a read be bounded, and unread bytes be counted, without
searching an index.
"""

from typing import NamedTuple

UNKNOWN = -1


class LogOffsetMetadata(NamedTuple):
    """`position` is in the file of the segment whose base offset is `segment_base_offset`; both -1 when unknown."""

    offset: int
    segment_base_offset: int = UNKNOWN
    position: int = UNKNOWN

    @property
    def is_message_only(self) -> bool:
        return self.segment_base_offset == UNKNOWN

    def is_on_older_segment_than(self, other: "LogOffsetMetadata") -> bool:
        """Whether it lies in an earlier segment than `other`; False when either place is unknown."""
        if self.is_message_only or other.is_message_only:
            return False
        return self.segment_base_offset < other.segment_base_offset

    def is_on_same_segment_as(self, other: "LogOffsetMetadata") -> bool:
        """Whether both lie in one segment; False when either place is unknown."""
        if self.is_message_only or other.is_message_only:
            return False
        return self.segment_base_offset == other.segment_base_offset

    def bytes_after(self, other: "LogOffsetMetadata") -> int:
        """How many bytes lie between `other` and this one, in one segment; ValueError for different segments."""
        if not self.is_on_same_segment_as(other):
            raise ValueError(f"{self} and {other} do not lie in one segment")
        return self.position - other.position
