"""Replace segments by new ones, so that after a crash the log has either all old ones or all new ones.

The new segments' files end in `.cleaned` and are on disk. Then, each step made durable before the next::

    announce   .cleaned becomes .swap, the greatest base offset first: the set is complete once no .cleaned is left
    exchange   the log reads from the new segments; the old ones' files end in .deleted, to be unlinked later
    finish     the suffix .swap is removed

Kafka syncs the directory once, at the end. With a sync after each step only the renames within one step rely on a file
system that keeps their order (as ext4, xfs and btrfs do). The owner's thread takes the steps; `sync` may run in another
thread.

At a start (`finish_swaps`): if there is a `.cleaned`, every `.swap` from its base offset on is of an unfinished set and
is removed, then the `.cleaned` themselves. For each `.log.swap` that is left, the old files within its offsets are
removed; then every `.swap` gets its final name. Last, files that end in `.deleted` are removed.
"""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from warmlog_broker.storage.io.durable_files import sync_directory
from warmlog_broker.storage.io.open_files import OpenFile
from warmlog_broker.storage.segment.file_records import DamagedLog, chain
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_broker.storage.segment.segment_files import KINDS, LOG_KIND, split_name
from warmlog_broker.storage.segment.segments import LogSegments

logger = logging.getLogger(__name__)

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
DELETED_SUFFIX = ".deleted"


class Replacement:
    """One set of new segments that replaces old ones. Created by the owner's thread, which takes the steps."""

    def __init__(
        self,
        segments: LogSegments,
        new: Sequence[LogSegment],
        old: Sequence[LogSegment],
        *,
        directory: Path,
        retire: Callable[[LogSegment, bool], None],
    ) -> None:
        """Announce the set. Then call `sync` and `advance` until that returns True.

        `retire` removes an old segment's files; the bool tells whether to keep its producer snapshot for a new segment.
        ValueError if the old segments are not segments of the log (any more). OSError if the disk refuses: the new
        segments are then removed and the old ones unchanged. After a failure of `advance` the log must be reopened.
        """
        if not new or any(segments.get(segment.base_offset) is not segment for segment in old):
            raise ValueError(f"{directory}: {list(old)} are not segments of this log")
        self.directory = directory
        self._segments = segments
        self._new = sorted(new, key=lambda segment: segment.base_offset)
        self._old = list(old)
        self._retire = retire
        self._steps = [self._exchange, self._finish]
        self._announce()

    @property
    def old_base_offsets(self) -> list[int]:
        return [segment.base_offset for segment in self._old]

    def sync(self) -> None:
        """Make the last step durable. In any thread; OSError if the disk refuses."""
        sync_directory(self.directory)

    def advance(self) -> bool:
        """Take the next step, after the last one was synced; True if it was the last. OSError from the disk."""
        if self._steps:
            self._steps.pop(0)()
        return not self._steps

    def close_handles(self) -> None:
        for segment in self._new:
            segment.close_handles()

    def _announce(self) -> None:
        ours = {segment.base_offset for segment in self._new}
        for path in self.directory.glob(f"*{LOG_KIND}{CLEANED_SUFFIX}"):
            if split_name(path.name)[0] not in ours:
                raise ValueError(f"{path} is left over from another set")
        try:
            for segment in reversed(self._new):
                segment.change_suffix(CLEANED_SUFFIX, SWAP_SUFFIX)
        except OSError:
            for segment in reversed(self._new):
                segment.delete()
            raise

    def _exchange(self) -> None:
        bases = {segment.base_offset for segment in self._new}
        for segment in self._old:
            self._segments.remove(segment.base_offset)
            self._retire(segment, segment.base_offset in bases)
        for segment in self._new:
            self._segments.add(segment)

    def _finish(self) -> None:
        for segment in self._new:
            segment.change_suffix(SWAP_SUFFIX, "")


def finish_swaps(directory: Path, names: Sequence[str]) -> bool:
    """Complete or undo, after a crash, what it interrupted; `names` are the directory's files. False if nothing.

    Durable on return. Every file that ended in one of the three suffixes is gone or has its final name.
    """
    deleted = [name for name in names if name.endswith(DELETED_SUFFIX)]
    cleaned = sorted(name for name in names if name.endswith(CLEANED_SUFFIX) and split_name(name)[1])
    swaps = sorted(name for name in names if name.endswith(SWAP_SUFFIX) and split_name(name)[1])
    if not (deleted or cleaned or swaps):
        return False
    if cleaned:
        unfinished = [name for name in swaps if name[:20] >= cleaned[0][:20]]
        for removed in (unfinished, cleaned):  # the .swap before the .cleaned, which mark them as unfinished
            for name in removed:
                logger.warning("%s belongs to an unfinished compaction and is removed", directory / name)
                (directory / name).unlink()
            sync_directory(directory)
        swaps = [name for name in swaps if name not in unfinished]
    if swaps:
        for name in swaps:
            if name.endswith(LOG_KIND + SWAP_SUFFIX):
                _remove_replaced(directory, name, names)
        sync_directory(directory)
        # The .log first: as long as it ends in .swap, any file with a final name counts as an old one.
        for name in sorted(swaps, key=lambda name: (not name.endswith(LOG_KIND + SWAP_SUFFIX), name)):
            logger.warning("%s gets its final name after a crash", directory / name)
            (directory / name).replace(directory / name.removesuffix(SWAP_SUFFIX))
        sync_directory(directory)
    for name in deleted:
        (directory / name).unlink(missing_ok=True)
    sync_directory(directory)
    return True


def _remove_replaced(directory: Path, swap_name: str, names: Sequence[str]) -> None:
    """Unlink the old files whose base offset is in the range of the new segment."""
    path = directory / swap_name
    first_offset, _ = split_name(swap_name)
    next_offset = first_offset + 1  # an empty segment still covers its own base offset
    file = OpenFile(str(path), os.O_RDONLY)
    try:
        for header, _ in chain(file, path, 0, file.size_bytes):
            next_offset = max(next_offset, header.next_offset)
    except DamagedLog as error:
        logger.error("a new segment is damaged: %s", error)
    for name in names:
        base_offset, kind = split_name(name)
        if kind in KINDS and first_offset <= base_offset < next_offset:
            logger.warning("%s is removed: %s replaces it", directory / name, swap_name)
            (directory / name).unlink(missing_ok=True)
