"""Batches as Kafka's clients read them: rows as they are stored, columns converted to rows one batch at a time.

A batch keeps its offsets, producer fields, times and codec. How large it is as rows is known only after the conversion,
so that stops at the first batch that would exceed the limit of the response, as a read does.
"""

from collections.abc import Callable, Sequence

from warmlog_broker.storage.segment.file_records import FileSlice
from warmlog_protocol.batch import HEADER_BYTES, MAGIC_COLUMNS, read_header
from warmlog_protocol.errors import CorruptBatch

HEADERS_A_TURN = 64
"""How many headers of batches are read in the event loop, each in 2 µs, to see that there are no columns."""
Pieces = list[FileSlice | bytes]


def may_have_columns(slices: Sequence[FileSlice]) -> bool:
    """Return whether any of these batches has columns, or there are too many to say. They are in the page cache.

    What was found to be rows is not looked at again.
    """
    left = HEADERS_A_TURN
    for piece in slices:
        position = 0
        while piece.may_have_columns and position + HEADER_BYTES <= piece.size_bytes:
            if not left:
                return True
            left -= 1
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


def in_rows(slices: Sequence[FileSlice], limit_bytes: int, convert: Callable[[FileSlice], bytes]) -> Pieces:
    """In a thread: return the batches as rows, at least the first one and of the others what is within `limit_bytes`.

    `convert` returns a columnar one as rows.
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
                rows = None
                if header.magic == MAGIC_COLUMNS:
                    rows = convert(piece.slice(position, header.size_bytes))
                size_bytes += header.size_bytes if rows is None else len(rows)
                if size_bytes > limit_bytes and (pieces or position):
                    return _with_run(pieces, piece, start, position)
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
