"""Where ranges can be cut, as the broker answers: pieces between stored batches, with their bytes and their times."""

from collections.abc import Sequence
from typing import NamedTuple

from warmlog.ranges.offset_range import OffsetRange
from warmlog_protocol.messages import FoundSplit


class Piece(NamedTuple):
    """Stored batches one after another, up to the offset `end`: a range may be cut there."""

    end: int
    size_bytes: int


class SizedRange(NamedTuple):
    """A range and the pieces that it consists of. The last one ends where the range does."""

    range: OffsetRange
    pieces: tuple[Piece, ...]

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.pieces)


def sized_ranges(planned: OffsetRange, splits: Sequence[FoundSplit]) -> list[SizedRange]:
    """What is left to read of `planned`: pieces in which no record can lie within its times are left out.

    Several ranges where some in the middle are; none where all are. Offsets behind the last split are kept.
    """
    splits = list(splits)
    if (splits[-1].end_offset if splits else planned.start) < planned.end:
        splits.append(FoundSplit(planned.end, 0))
    runs: list[tuple[int, list[Piece]]] = []
    start = planned.start
    for split in splits:
        if not _is_outside(planned, split):
            if not runs or runs[-1][1][-1].end != start:
                runs.append((start, []))
            runs[-1][1].append(Piece(split.end_offset, split.size_bytes))
        start = split.end_offset
    return [SizedRange(planned._replace(start=start, end=run[-1].end), tuple(run)) for start, run in runs]


def _is_outside(planned: OffsetRange, split: FoundSplit) -> bool:
    """Whether it is known that no record of the split lies within the times of the range."""
    is_too_old = (
        planned.from_ms is not None and split.max_timestamp_ms is not None and split.max_timestamp_ms < planned.from_ms
    )
    is_too_young = (
        planned.until_ms is not None
        and split.min_timestamp_ms is not None
        and split.min_timestamp_ms >= planned.until_ms
    )
    return is_too_old or is_too_young
