"""Whether the batches of one answer can be where they are.

The base offset of a batch is the broker's, so its CRC does not cover it: only the batches beside it bear it out.
"""

from collections.abc import Iterator

from warmlog_protocol.batch import HEADER_BYTES, MAGIC_COLUMNS, BatchHeader, read_header
from warmlog_protocol.errors import CorruptBatch


def whole_headers(
    payload: memoryview, high_watermark: int, fetch_offset: int, *, is_dense: bool
) -> Iterator[BatchHeader]:
    """The headers of the batches that are all there. CorruptBatch at one that cannot be where it is.

    A header is not verified before its batch is read, and what follows is fetched before that: an offset that makes no
    sense must not lead there. The first batch holds `fetch_offset`, and each further one begins where the one before it
    ended; only where offsets are not dense there may be gaps. A batch behind a gap is not believed when the next one
    contradicts it.
    """
    position, expected = 0, fetch_offset
    held: BatchHeader | None = None  # a batch behind a gap, until the next one bears it out
    while len(payload) - position >= HEADER_BYTES:
        header = _header_or_none(payload, position)
        is_after = header is not None and (position == 0 or header.base_offset >= expected)
        if held is not None and (is_after or header is None):
            yield held
        if header is None:
            read_header(payload, position)
            return
        is_gap = header.base_offset > expected
        if not is_after or header.next_offset > high_watermark or (is_gap and is_dense and _is_columns(header)):
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


def _is_columns(header: BatchHeader) -> bool:
    """Whether warmlog made it: what Kafka wrote may have been compacted there."""
    return header.magic == MAGIC_COLUMNS


def _header_or_none(payload: memoryview, position: int) -> BatchHeader | None:
    try:
        return read_header(payload, position)
    except CorruptBatch:
        return None
