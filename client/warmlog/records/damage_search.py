"""Where reading can go on behind what is damaged or lost: the broker says so, or the client tries."""

from collections.abc import Awaitable, Callable

from warmlog.errors import ApiError, CorruptBatch, ErrorCode, UnreadableBatch, error_from_code
from warmlog.records.fetched_batches import whole_headers
from warmlog_protocol.batch import BatchHeader, check_crc
from warmlog_protocol.messages import FetchedPartition


def error_in(fetched: FetchedPartition, fetch_offset: int) -> ApiError:
    """The error of a partition that could not be fetched: UnreadableBatch where the broker says how far that reaches.

    Brokers up to 0.1.0 do not say.
    """
    if fetched.error_code != ErrorCode.CORRUPT_MESSAGE or fetched.next_offset <= fetch_offset:
        return error_from_code(fetched.error_code, fetched.error_message)
    return UnreadableBatch(
        fetched.error_message,
        topic=fetched.topic,
        partition=fetched.partition,
        base_offset=fetch_offset,
        next_offset=fetched.next_offset,
    )


def first_header(fetched: FetchedPartition, payload: memoryview, fetch_offset: int) -> BatchHeader | None:
    """The header of the batch with which a fetch from `fetch_offset` on began; None if none can be believed."""
    if fetched.error_code:
        return None
    try:
        headers = whole_headers(payload, fetched.high_watermark, fetch_offset, is_dense=fetched.has_dense_offsets)
        return next(headers, None)
    except CorruptBatch:
        return None


def is_intact(header: BatchHeader, payload: memoryview) -> bool:
    """Whether the batch with which `payload` begins has the CRC that its header says."""
    try:
        check_crc(header, payload[: header.size_bytes])
    except CorruptBatch:
        return False
    return True


async def next_readable(is_readable: Callable[[int], Awaitable[bool]], damaged: int, end: int) -> int:
    """The first offset after `damaged` that can be read, `end` if there is none before it.

    Asks about 2 log2(extent) times: in growing steps until an offset can be read, and then between the last two.
    Damage is taken to be one stretch. Of several that lie close together it may skip more than it must.
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
