"""Batches as Kafka's clients read them: rows as they are stored, columns converted to rows one batch at a time.

A batch keeps its offsets, producer fields, times and codec. How large it is as rows is known only after the conversion,
so that stops at the first batch that would exceed the limit of the response, as a read does.
"""

from collections.abc import Callable, Iterator, Sequence

from warmlog_broker.storage.segment.file_records import FileSlice
from warmlog_protocol.batch import HEADER_BYTES, MAGIC_COLUMNS, read_header
from warmlog_protocol.errors import CorruptBatch

HEADERS_A_TURN = 64
"""How many headers of batches a fetch reads in the event loop, each in 2 µs, to see that there are no columns."""
Pieces = list[FileSlice | bytes]


def with_columns(partitions: Sequence[Sequence[FileSlice]]) -> list[int]:
    """Return the indexes of partitions with batches of columns, or whose headers cannot be read or are too many.

    The batches are in the page cache. What was found to be rows is not looked at again.
    """
    left = iter(range(HEADERS_A_TURN))
    found = []
    for index, slices in enumerate(partitions):
        try:
            if _may_have_columns(slices, left):
                found.append(index)
        except OSError:
            found.append(index)
    return found


def _may_have_columns(slices: Sequence[FileSlice], left: Iterator[int]) -> bool:
    """Return whether any of these batches has columns, or there are none `left` that may be looked at."""
    for piece in slices:
        position = 0
        while piece.may_have_columns and position + HEADER_BYTES <= piece.size_bytes:
            if next(left, None) is None:
                return True
            try:
                header = read_header(piece.slice(position, HEADER_BYTES).pread())
            except CorruptBatch:
                return False  # as it is: the client checks it
            if header.magic == MAGIC_COLUMNS:
                return True
            position += header.size_bytes
        note_rows([piece.slice(0, position)] if position <= piece.size_bytes else [])
    return False


def note_rows(pieces: Sequence[FileSlice | bytes]) -> None:
    """Note, in the event loop, that these batches have rows, unless some had to be converted."""
    for piece in pieces:
        if isinstance(piece, bytes):
            return
        piece.note_rows()


def in_rows(
    slices: Sequence[FileSlice],
    limit_bytes: int,
    convert: Callable[[FileSlice], bytes],
    *,
    min_one_batch: bool = True,
    is_over: Callable[[], bool] = lambda: False,
) -> Pieces:
    """In a thread: return the batches as rows, as far as they are within `limit_bytes`.

    The first one is returned in any case if `min_one_batch`. `convert` returns a columnar one as rows; once the request
    `is_over`, no more are converted.
    A batch that is damaged, or cut off by the end of the slices, ends it; CorruptBatch if a damaged one is the first.
    """
    pieces: Pieces = []
    size_bytes = 0
    for piece in slices:
        position = start = 0
        try:
            while position + HEADER_BYTES <= piece.size_bytes:
                header = read_header(piece.slice(position, HEADER_BYTES).pread())
                end = position + header.size_bytes
                if end > piece.size_bytes:
                    break
                if is_over() or (size_bytes >= limit_bytes and not min_one_batch):
                    return _with_run(pieces, piece, start, position)
                rows = None
                if header.magic == MAGIC_COLUMNS:
                    rows = convert(piece.slice(position, header.size_bytes))
                size_bytes += header.size_bytes if rows is None else len(rows)
                if size_bytes > limit_bytes and not min_one_batch:
                    return _with_run(pieces, piece, start, position)
                min_one_batch = False
                if rows is not None:
                    pieces = [*_with_run(pieces, piece, start, position), rows]
                    start = end
                position = end
        except CorruptBatch:
            if not pieces and not position:
                raise
            return _with_run(pieces, piece, start, position)
        pieces = _with_run(pieces, piece, start, position)
    return pieces


def _with_run(pieces: Pieces, piece: FileSlice, start: int, end: int) -> Pieces:
    """Return `pieces` and the neighbouring batches of rows from `start` to `end`."""
    return [*pieces, piece.slice(start, end - start)] if end > start else pieces
