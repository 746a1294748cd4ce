"""Taking new segments in old ones' place, so that a crash at any moment leaves either the old ones or the new ones.

The new segments' files end in `.cleaned` and are on disk. Then, each step made durable before the next::

    announce   .cleaned becomes .swap, the greatest base offset first: as long as any .cleaned is left, the set is not
               complete and means nothing
    exchange   the log reads from the new segments; the old ones' files end in .deleted, to be unlinked later
    finish     .swap becomes nothing: the names are the final ones

Kafka syncs the directory once, at the end. With a sync after each step only the renames within one step rely on a file
system that keeps their order (as ext4, xfs and btrfs do). The owner's thread takes the steps; `sync` may run in any
other, so that nobody waits for the disk.

At a start (`finish_swaps`): if there is a `.cleaned`, every `.swap` from its base offset on belongs to an unfinished
set and goes, then the `.cleaned` themselves. For each `.log.swap` that is left, the old files within its offsets go;
then every `.swap` gets its final name. Last, what ends in `.deleted` goes.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from warmlog_broker.storage.io.durable_files import sync_directory
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.record.batch_scan import DamagedLog
from warmlog_broker.storage.record.file_records import FileRecords
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_broker.storage.segment.segment_files import KINDS, LOG_KIND
from warmlog_broker.storage.segment.segments import LogSegments

logger = logging.getLogger(__name__)

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
DELETED_SUFFIX = ".deleted"

Retire = Callable[[LogSegment, bool], None]
"""Takes an old segment's files away; the bool says whether its producer snapshot stays, for a new one's sake."""


class Replacement:
    """One set of new segments that is on its way into a log. Made by the owner's thread, which takes the steps."""

    def __init__(
        self,
        segments: LogSegments,
        new: Sequence[LogSegment],
        old: Sequence[LogSegment],
        *,
        directory: Path,
        retire: Retire,
    ) -> None:
        """Announces the set; `sync`, then `advance`, and so on until that returns True.

        ValueError when the old segments are not, or not any more, what the log has. OSError when the disk refuses: the
        new segments are gone then, and the old ones as they were. After a failure of `advance` only a restart can tell.
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
    def is_done(self) -> bool:
        return not self._steps

    @property
    def old_base_offsets(self) -> list[int]:
        return [segment.base_offset for segment in self._old]

    def sync(self) -> None:
        """Makes the last step durable. In any thread; OSError when the disk refuses."""
        sync_directory(self.directory)

    def advance(self) -> bool:
        """Takes the next step, the last one having been synced; True when it was the last. OSError from the disk."""
        if self._steps:
            self._steps.pop(0)()
        return self.is_done

    def complete(self) -> None:
        """Takes all steps that are left, here and now; on return everything is durable."""
        while not self.is_done:
            self.sync()
            self.advance()
        self.sync()

    def close_handles(self) -> None:
        """Lets go of the new segments' files; they stay as they are."""
        for segment in self._new:
            segment.close_handles()

    def _announce(self) -> None:
        ours = {segment.base_offset for segment in self._new}
        for path in self.directory.glob(f"*{LOG_KIND}{CLEANED_SUFFIX}"):
            if int(path.name[:20]) not in ours:
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


def finish_swaps(directory: Path, names: Sequence[str], open_files: OpenFiles) -> bool:
    """Does at a start what a crash has left undone; `names` are the directory's files. False when there was nothing.

    On return it is durable. Whatever ended in one of the three suffixes is gone or has its final name.
    """
    deleted = [name for name in names if name.endswith(DELETED_SUFFIX)]
    cleaned = sorted(name for name in names if name.endswith(CLEANED_SUFFIX) and name[:20].isdecimal())
    swaps = sorted(name for name in names if name.endswith(SWAP_SUFFIX) and name[:20].isdecimal())
    if not (deleted or cleaned or swaps):
        return False
    if cleaned:
        unfinished = [name for name in swaps if _base_offset(name) >= _base_offset(cleaned[0])]
        _remove_unfinished(directory, unfinished, cleaned)
        swaps = [name for name in swaps if name not in unfinished]
    if swaps:
        for name in swaps:
            if name.endswith(LOG_KIND + SWAP_SUFFIX):
                _remove_replaced(directory, name, names, open_files)
        sync_directory(directory)
        # The .log first: as long as that ends in .swap, whatever has its final name is taken for an old file's.
        for name in sorted(swaps, key=lambda name: (not name.endswith(LOG_KIND + SWAP_SUFFIX), name)):
            logger.warning("%s gets its final name: a crash came before", directory / name)
            (directory / name).replace(directory / name.removesuffix(SWAP_SUFFIX))
        sync_directory(directory)
    for name in deleted:
        (directory / name).unlink(missing_ok=True)
    sync_directory(directory)
    return True


def _remove_unfinished(directory: Path, swaps: Sequence[str], cleaned: Sequence[str]) -> None:
    """The `.swap` files go before the `.cleaned` that say that they mean nothing."""
    for names in (swaps, cleaned):
        for name in names:
            logger.warning("%s belongs to a compaction that was not finished and is removed", directory / name)
            (directory / name).unlink()
        sync_directory(directory)


def _remove_replaced(directory: Path, swap_name: str, names: Sequence[str], open_files: OpenFiles) -> None:
    """Unlinks the old files whose base offset lies within what the new segment holds."""
    path = directory / swap_name
    first_offset = _base_offset(swap_name)
    next_offset = first_offset + 1  # an emptied segment still stands for its own base offset
    records = FileRecords.open_read_only(path, open_files)
    try:
        for header, _ in records.batches():
            next_offset = max(next_offset, header.next_offset)
    except DamagedLog as error:
        logger.error("a new segment is damaged: %s", error)
    finally:
        records.close_handles()
    for name in names:
        is_of_segment = len(name) > 20 and name[:20].isdecimal() and name[20:] in KINDS
        if is_of_segment and first_offset <= _base_offset(name) < next_offset:
            logger.warning("%s is removed: %s stands in its place", directory / name, swap_name)
            (directory / name).unlink(missing_ok=True)


def _base_offset(name: str) -> int:
    return int(name[:20])
