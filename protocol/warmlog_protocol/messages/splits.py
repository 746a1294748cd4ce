"""FindSplits, warmlog's own: where ranges of offsets can be cut between batches."""

from msgspec import field

from warmlog_protocol.messages.base import Int32, Int64, Message, PartitionResult


class FindSplitsPartition(Message, frozen=True):
    """A range, its end exclusive. Parts that are not in the log, or may not be read yet, are left out silently."""

    topic: str
    partition: Int32
    start_offset: Int64
    end_offset: Int64
    topic_id: bytes | None = None


class FindSplitsRequest(Message, frozen=True):
    """Ask where ranges can be cut between batches, about every `target_bytes`.

    `max_scan_ms` limits how long headers are read for the splits' timestamps; with 0 there are none.
    """

    partitions: list[FindSplitsPartition]
    target_bytes: Int64
    max_scan_ms: Int32 = 0


class FoundSplit(Message, frozen=True):
    """Consecutive batches, from the end of the split before, or the start of the range, up to `end_offset`.

    `size_bytes` is their size in the log. No record is older than `min_timestamp_ms` or newer than `max_timestamp_ms`;
    None if that is not known.
    """

    end_offset: int
    size_bytes: int
    min_timestamp_ms: int | None = None
    max_timestamp_ms: int | None = None


class FoundSplits(PartitionResult, frozen=True):
    """The splits of one range, in order. The last one ends where the range does, unless there are no batches there."""

    splits: list[FoundSplit] = field(default_factory=list)


class FindSplitsResponse(Message, frozen=True):
    """One result for each range, in the order of the request."""

    partitions: list[FoundSplits]
