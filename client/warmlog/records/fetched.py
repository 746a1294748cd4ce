"""What a Fetch response brought of one partition: which batches can be trusted, which are hidden, where damage ends.

Consumers and ranges read it in the same two steps. When a response arrives, `FetchedBatches` checks the headers against
each other, which says where to fetch next. When a batch is read, its CRC is checked.
"""

from collections.abc import Awaitable, Callable, Iterator

from warmlog.errors import ApiError, CorruptBatch, ErrorCode, UnreadableBatch, error_from_code
from warmlog_protocol.batch import (
    HEADER_BYTES,
    MAGIC_COLUMNS,
    BatchHeader,
    ControlType,
    RecordBatch,
    check_crc,
    read_header,
)
from warmlog_protocol.messages import FetchedPartition


def whole_headers(fetched: FetchedPartition, payload: memoryview, fetch_offset: int) -> Iterator[BatchHeader]:
    """The headers of the complete batches. Raises CorruptBatch at a batch that contradicts its neighbours.

    A base offset is the broker's, so no CRC covers it, and a header is used before its batch is verified: a wrong
    offset must not decide what is fetched next. The first batch holds `fetch_offset`, and each further one begins where
    the one before it ended; gaps are allowed only if offsets are not dense, or before rows that Kafka may have
    compacted. A batch after a gap counts once the batch after it agrees.
    """
    high_watermark, row_gaps_up_to = fetched.high_watermark, fetched.row_gaps_up_to
    position, expected = 0, fetch_offset
    held: BatchHeader | None = None  # a batch after a gap, until the next one confirms it
    while len(payload) - position >= HEADER_BYTES:
        try:
            header = read_header(payload, position)
        except CorruptBatch:
            if held is not None:
                yield held
            raise
        is_after = position == 0 or header.base_offset >= expected
        if held is not None and is_after:
            yield held
        is_gap = header.base_offset > expected
        is_impossible_gap = (
            is_gap
            and fetched.has_dense_offsets
            and (header.magic == MAGIC_COLUMNS or -1 < row_gaps_up_to < header.base_offset)
        )
        if not is_after or header.next_offset > high_watermark or is_impossible_gap:
            raise CorruptBatch(
                f"a batch of offsets {header.base_offset} to {header.last_offset}, where {expected} was expected and "
                f"the high watermark is {high_watermark}"
            )
        position += header.size_bytes
        if position > len(payload):
            return
        held = header if is_gap else None
        if held is None:
            yield header
        expected = header.next_offset
    if held is not None:
        yield held


class FetchedBatches:
    """The complete batches of one response, read one after another."""

    def __init__(self, fetched: FetchedPartition, payload: memoryview, fetch_offset: int, fetch_epoch: int) -> None:
        """`payload` is what a fetch from `fetch_offset` brought; `fetch_epoch` is of the batch before that."""
        self.high_watermark, self.leader_epoch = fetched.high_watermark, fetched.leader_epoch
        self.error: CorruptBatch | None = None
        """Why the batch at `next_offset` cannot be trusted, if so."""
        self.next_offset = fetch_offset
        """Where to fetch next: after the last batch, or after the gap that the broker reports."""
        self.next_epoch = fetch_epoch
        """The leader epoch of the batch before `next_offset`; after a gap, that of the leader."""
        self.position = 0
        """Where in `view` the next batch begins."""
        end = 0
        try:
            for header in whole_headers(fetched, payload, fetch_offset):
                end += header.size_bytes
                if header.next_offset > self.next_offset:
                    self.next_offset, self.next_epoch = header.next_offset, header.partition_leader_epoch
            if fetched.next_offset > self.next_offset:
                self.next_offset, self.next_epoch = fetched.next_offset, fetched.leader_epoch
        except CorruptBatch as error:
            self.error = error
        self.view = payload[:end]
        self._aborted = sorted(fetched.aborted_transactions, key=lambda transaction: -transaction.first_offset)
        """Those that begin later, the next one last."""
        self._aborting: set[int] = set()
        """The producers in the middle of one."""

    @property
    def unread_bytes(self) -> int:
        return len(self.view) - self.position

    def headers(self) -> list[BatchHeader]:
        headers, position = [], 0
        while position < len(self.view):
            headers.append(read_header(self.view, position))
            position += headers[-1].size_bytes
        return headers

    def next_header(self, from_offset: int = 0) -> BatchHeader | None:
        """Return the header of the next batch that ends after `from_offset`; None after the last one."""
        while self.position < len(self.view):
            header = read_header(self.view, self.position)
            if header.next_offset > from_offset:
                return header
            self.is_hidden(RecordBatch(header, self.bytes_of(header)))
            self.position += header.size_bytes
        return None

    def bytes_of(self, header: BatchHeader) -> memoryview:
        """Return the bytes of the next batch, whose header this is."""
        return self.view[self.position : self.position + header.size_bytes]

    def is_followed(self, header: BatchHeader) -> bool:
        """Whether a further batch confirms where the next one, which is damaged, ends: its header may say anything."""
        end = self.position + header.size_bytes
        return end < len(self.view) and read_header(self.view, end).base_offset == header.next_offset

    def is_hidden(self, batch: RecordBatch) -> bool:
        """Whether to hide `batch` from a reader of committed records, and control batches from all. Asked in order.

        An aborted transaction reaches from its first offset to its producer's next abort marker.
        """
        header = batch.header
        while self._aborted and self._aborted[-1].first_offset <= header.last_offset:
            self._aborting.add(self._aborted.pop().producer_id)
        if header.is_control:
            if batch.control_type is ControlType.ABORT:
                self._aborting.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._aborting


def error_in(fetched: FetchedPartition, fetch_offset: int) -> ApiError:
    """The error of a partition that could not be fetched: UnreadableBatch if the broker says where the damage ends.

    Brokers up to 0.1.0 do not say so.
    """
    if fetched.error_code != ErrorCode.CORRUPT_MESSAGE or fetched.next_offset <= fetch_offset:
        return error_from_code(fetched.error_code, fetched.error_message)
    return UnreadableBatch(fetched.error_message, fetched.topic, fetched.partition, fetch_offset, fetched.next_offset)


def first_header(fetched: FetchedPartition, payload: memoryview, fetch_offset: int) -> BatchHeader | None:
    """The header of the first batch of a fetch from `fetch_offset`; None if there is none to trust."""
    if fetched.error_code:
        return None
    try:
        return next(whole_headers(fetched, payload, fetch_offset), None)
    except CorruptBatch:
        return None


def is_intact(header: BatchHeader, payload: memoryview) -> bool:
    """Whether the first batch of `payload` has the CRC that its header says."""
    try:
        check_crc(header, payload[: header.size_bytes])
    except CorruptBatch:
        return False
    return True


async def next_readable(is_readable: Callable[[int], Awaitable[bool]], damaged: int, end: int) -> int:
    """Return the first offset after `damaged` that can be read, `end` if there is none before it.

    Asks about 2 log2(extent) times: in growing steps until an offset can be read, and then between the last two. Of
    several damaged places close together it may skip more than it must.
    """
    unreadable, step = damaged, 1
    while (candidate := min(unreadable + step, end)) < end and not await is_readable(candidate):
        unreadable, step = candidate, step * 2
    readable = candidate
    while readable - unreadable > 1:
        middle = (unreadable + readable) // 2
        if await is_readable(middle):
            readable = middle
        else:
            unreadable = middle
    return readable
