"""One partition of a consumer: its position, what was fetched ahead, and what is delivered next.

`position` is the offset that the user gets next; `fetch_offset`, never below it, is fetched next; between them are the
chunks: what one Fetch response brought for this partition, read in place, batch by batch.

Both have the leader epoch of the batch before them, -1 while that is unknown. By it the broker notices that the log was
truncated since, as by a power cut on a topic with write.caching (`diverged`).
"""

from collections import deque

from warmlog.errors import CorruptBatch, LogTruncated, WarmlogError
from warmlog.records.batch import Batch
from warmlog.records.fetched import FetchedBatches
from warmlog.records.verdict import MAX_OFFSET
from warmlog_protocol.batch import BatchHeader, RecordBatch, check_crc, read_header
from warmlog_protocol.messages import NO_LEADER_EPOCH, DivergingEpoch, FetchedPartition
from warmlog_transport.responses import TopicPartition

NO_LIMIT = MAX_OFFSET
Place = tuple[int, int]
"""An offset, and the leader epoch of what was read before it."""


class PartitionReader:
    """The state of one partition and what it delivers next. Does no I/O and never waits."""

    def __init__(
        self, topic: str, partition: int, topic_id: bytes, *, verify_crc: bool, max_decompressed_bytes: int
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.new_topic_id: bytes | None = None
        """The id of the topic that has the name now, if it was recreated; the next `seek` goes over to it."""
        self.position = 0
        self.began = NO_LIMIT
        """The lowest offset that it was told to read from."""
        self.epoch = NO_LEADER_EPOCH
        self.fetch_offset = 0
        self.fetch_epoch = NO_LEADER_EPOCH
        self.until = NO_LIMIT
        self.high_watermark = -1
        self.buffered_bytes = 0
        self.error: WarmlogError | None = None
        self.damage_end = -1
        """Where the damage ends that the error tells of, as far as that is known."""
        self.generation = 0
        self.is_fetching = False
        self.paused_until = 0.0
        self.is_held = False
        """Whether the user has paused it."""
        self.is_uncommitted = False
        """Whether something was delivered since the last commit by hand; not that of the last read, see its cursor."""
        self.failing_since: float | None = None
        self._chunks: deque[FetchedBatches] = deque()
        self._taken: tuple[FetchedBatches, int] | None = None
        self._verify_crc = verify_crc
        self._max_decompressed_bytes = max_decompressed_bytes

    @property
    def tp(self) -> TopicPartition:
        return self.topic, self.partition

    @property
    def next_topic_id(self) -> bytes:
        """The id of the topic that it reads after a seek."""
        return self.new_topic_id or self.topic_id

    @property
    def has_something(self) -> bool:
        """Whether there is data, an error to raise, or a gap to pass before `until`."""
        is_wanted = self.position != self.until  # beyond `until` the start was wrong, which an error says
        return bool(self._chunks) or (is_wanted and (self.error is not None or self._is_in_gap))

    @property
    def is_at_end(self) -> bool:
        return self.position >= self.until

    @property
    def _is_in_gap(self) -> bool:
        """Whether everything fetched is delivered and `position` is still below `fetch_offset`."""
        return not self._chunks and self.position < min(self.fetch_offset, self.until)

    def wants_data(self, room_bytes: int) -> bool:
        """Whether to fetch: no fetch is in flight, and at most `room_bytes` wait to be read."""
        return (
            not self.is_fetching
            and not self.is_held
            and self.error is None
            and self.buffered_bytes <= room_bytes
            and self.fetch_offset < self.until
        )

    def seek(self, offset: int, epoch: int = NO_LEADER_EPOCH) -> None:
        """Continue from `offset`; what was fetched ahead, or is in flight, is dropped.

        `epoch` is the leader epoch of what was read before `offset`, or a newer one under which that still existed.
        """
        self.position, self.epoch = offset, epoch
        self.began = min(self.began, offset)
        if self.new_topic_id is not None:
            self.topic_id, self.new_topic_id, self.began = self.new_topic_id, None, offset
        self.drop_ahead()

    def diverged(self, end: DivergingEpoch) -> None:
        """The log was truncated at `end`, below `fetch_offset`.

        An error if the user has had everything; else what was only fetched ahead is dropped and fetched again.
        """
        if self.fetch_offset != self.position:
            self.drop_ahead()
            return
        self.error = LogTruncated(self.topic, self.partition, self.position, end.end_offset)

    def drop_ahead(self) -> None:
        """Continue from `position`: what was fetched ahead, or is in flight, is dropped."""
        self.fetch_offset, self.fetch_epoch = self.position, self.epoch
        self.generation += 1
        self.error = None
        self.damage_end = -1
        self._taken = None
        self._chunks.clear()
        self.buffered_bytes = 0

    def add(self, fetched: FetchedPartition, payload: memoryview) -> None:
        """Keep what a Fetch brought from `fetch_offset` on, without an incomplete last batch."""
        if not payload and fetched.next_offset <= self.fetch_offset:  # as most are of a request for many partitions
            self.high_watermark = fetched.high_watermark
            return
        chunk = FetchedBatches(fetched, payload, self.fetch_offset, self.fetch_epoch)
        self.high_watermark = chunk.high_watermark
        self.fetch_offset, self.fetch_epoch = chunk.next_offset, chunk.next_epoch
        self.error = chunk.error or self.error
        if chunk.unread_bytes:
            self._chunks.append(chunk)
            self.buffered_bytes += chunk.unread_bytes

    def take(self) -> Batch | None:
        """Return the next batch for the user; None if nothing more is here or `until` is reached.

        Moves `position` after it. A batch that cannot be read is the `error`, and `fetch_offset` is where it begins.
        """
        while self._chunks and self.position < self.until:
            chunk = self._chunks[0]
            start = chunk.position
            header = chunk.next_header()
            assert header is not None
            if header.base_offset >= self.until:
                self._move(self.until, header)
                break
            record_batch = self._read(chunk, header)
            if record_batch is None:
                return None
            self._taken = (chunk, start)
            if header.next_offset <= self.until:
                self._advance(chunk, header.size_bytes)
            batch = self._deliver(chunk, record_batch)
            if batch is not None:
                return batch
        if self._is_in_gap:
            self.position = min(self.fetch_offset, self.until)
            self.epoch = self.fetch_epoch
        if self.is_at_end and self.fetch_offset > self.position:
            self.drop_ahead()
        return None

    def put_back(self, place: Place) -> None:
        """Continue within the batch taken last, or before it: then it is fetched again, as after a truncation."""
        self.position, self.epoch = place
        taken, self._taken = self._taken, None
        if taken is None or read_header(taken[0].view, taken[1]).base_offset > self.position:
            self.drop_ahead()
            return
        chunk, position = taken
        if not self._chunks or self._chunks[0] is not chunk:
            self._chunks.appendleft(chunk)
        self.buffered_bytes += chunk.position - position
        chunk.position = position

    def _read(self, chunk: FetchedBatches, header: BatchHeader) -> RecordBatch | None:
        record_batch = RecordBatch(header, chunk.bytes_of(header), self._max_decompressed_bytes)
        if self._verify_crc:
            try:
                check_crc(header, record_batch.buffer)
            except CorruptBatch as error:
                self.seek(max(self.position, header.base_offset))
                self.error = error
                self.damage_end = header.next_offset if chunk.is_followed(header) else -1
                return None
        return record_batch

    def _move(self, position: int, header: BatchHeader) -> None:
        """Move `position` forward; `header` is of the batch before it, or of the first one after it."""
        if position > self.position:
            self.position, self.epoch = position, header.partition_leader_epoch

    def _advance(self, chunk: FetchedBatches, size_bytes: int) -> None:
        chunk.position += size_bytes
        self.buffered_bytes -= size_bytes
        if not chunk.unread_bytes:
            self._chunks.popleft()

    def _deliver(self, chunk: FetchedBatches, record_batch: RecordBatch) -> Batch | None:
        """What the user sees of the batch, if anything; moves `position` after it in any case."""
        position = self.position
        self._move(min(record_batch.next_offset, self.until), record_batch.header)
        if chunk.is_hidden(record_batch) or record_batch.next_offset <= position or not record_batch.record_count:
            return None
        batch = Batch(
            self.topic,
            self.partition,
            record_batch,
            high_watermark=max(chunk.high_watermark, self.high_watermark),
            from_offset=position,
            until_offset=self.until,
        )
        return batch if batch.is_whole or len(batch) else None
