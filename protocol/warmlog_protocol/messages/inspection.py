"""Warmlog's own requests for people who look at a broker: its state, its partitions' files, a search in an index."""

from msgspec import field

from warmlog_protocol.messages.base import Int32, Int64, Message, PartitionResult


class DescribeStatusRequest(Message, frozen=True):
    """Ask for the state of the broker, and for what it has counted since it was started."""


class TopicCounts(Message, frozen=True):
    """What was appended to a topic and sent to its readers since the start of the broker."""

    name: str
    appended_records: int
    appended_bytes: int
    fetched_bytes: int


class FlushCounts(Message, frozen=True):
    """How long the flushes of a data directory took.

    `counts` has one number more than `bounds_us`, which are upper bounds, inclusive and ascending: the last one counts
    the flushes that took longer than all of them.
    """

    path: str
    bounds_us: list[int]
    counts: list[int]


class DescribeStatusResponse(Message, frozen=True):
    """The state. `problems` has a sentence for each thing that is wrong; `is_ready` is whether clients are served.

    `time_ms` is the broker's clock, `connections_limit` the most that may be open.
    """

    is_ready: bool
    problems: list[str]
    time_ms: int
    connections: int
    connections_limit: int
    requests_in_flight: int
    flushes: list[FlushCounts]
    topics: list[TopicCounts]


class InspectedPartition(Message, frozen=True):
    """A partition that is asked about."""

    topic: str
    partition: Int32


class DescribePartitionsRequest(Message, frozen=True):
    """Ask for the offsets and sizes of partitions, and for at most `max_segments` of the segments of each."""

    partitions: list[InspectedPartition]
    max_segments: Int32 = 0


class SegmentDescription(Message, frozen=True):
    """One segment of a log. `index_entries` of one that is not open is how many its index file has room for."""

    base_offset: int
    size_bytes: int
    index_entries: int


class DescribedPartition(PartitionResult, frozen=True):
    """A partition: offsets are exclusive ends, except `log_start_offset`. `segments` has the newest ones, in order."""

    log_start_offset: int = -1
    last_stable_offset: int = -1
    high_watermark: int = -1
    log_end_offset: int = -1
    size_bytes: int = -1
    segment_count: int = 0
    segments: list[SegmentDescription] = field(default_factory=list)


class DescribePartitionsResponse(Message, frozen=True):
    """One result for each partition, in the order of the request."""

    partitions: list[DescribedPartition]


class TraceIndexRequest(Message, frozen=True):
    """Ask which slots of the offset index two searches for `offset` read: in the segment that holds it.

    If that has no entries, it is the newest one before it that has some. The offset -1 means the last entry.
    """

    topic: str
    partition: Int32
    offset: Int64 = -1


class IndexSearch(Message, frozen=True):
    """One search: its name, the slots that it read in their order, and the last slot that is not above the target.

    `lower` is -1 if there is none.
    """

    name: str
    slots: list[int]
    lower: int


class TraceIndexResponse(Message, frozen=True):
    """The index of the segment at `base_offset`, and both searches for `offset`."""

    base_offset: int
    offset: int
    entries: int
    entry_bytes: int
    warm_entries: int
    searches: list[IndexSearch]
