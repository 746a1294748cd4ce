"""Which leader epoch began at which offset of a log, and its file `leader-epoch-checkpoint`.

An ordered map from epoch to start offset, strictly rising in both. An epoch's end offset is the start of the next one,
or the log end offset for the latest. A follower, or a consumer after a change of leaders, finds with it where its
history diverges from the leader's.

The file has the head of `offset_checkpoint` and lines `epoch start-offset`; it is never empty. The flush that makes the
batches of a new epoch durable writes it. It can be rebuilt from the batches, which carry their epochs.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from warmlog_broker.storage.config import MAX_INT32
from warmlog_broker.storage.directory.offset_checkpoint import malformed, pack_lines, read_lines
from warmlog_protocol.batch.header import NO_LEADER_EPOCH, NO_OFFSET
from warmlog_protocol.errors import StorageError

EPOCHS_NAME = "leader-epoch-checkpoint"


def pack_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    return pack_lines(f"{epoch} {start_offset}" for epoch, start_offset in epochs)


def read_epochs(path: Path) -> list[tuple[int, int]]:
    """Read the pairs of epoch and start offset in `path`, both rising.

    FileNotFoundError if there is no file, StorageError if it is malformed.
    """
    epochs: list[tuple[int, int]] = []
    if path.stat().st_size == 0:
        raise StorageError(f"{path}: expected version and count, found an empty file")
    for number, line in read_lines(path):
        fields = line.split()
        try:
            epoch, start_offset = map(int, fields)
        except ValueError:
            raise malformed(path, number, "epoch and start offset", line) from None
        last_epoch, last_offset = epochs[-1] if epochs else (-1, -1)
        if not last_epoch < epoch < MAX_INT32 or start_offset <= last_offset:  # the next epoch must be an i32 too
            expected = f"an epoch from {last_epoch + 1} to {MAX_INT32 - 1} that begins after offset {last_offset}"
            raise malformed(path, number, expected, line)
        epochs.append((epoch, start_offset))
    return epochs


class EpochStart(NamedTuple):
    """The offset of the first batch written under `epoch`."""

    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """The first offset after the batches of `epoch` and all before it; (-1, -1) if that is not known."""

    epoch: int
    end_offset: int


UNKNOWN_EPOCH_END = EpochEnd(NO_LEADER_EPOCH, NO_OFFSET)


class LeaderEpochs:
    """The leader epochs of one log, in memory."""

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        """`entries` are those of the file."""
        self._entries = [EpochStart(*entry) for entry in entries or ()]
        self._stored = self.entries
        self.has_unwritten_changes = False
        self.latest_epoch = NO_LEADER_EPOCH
        """The newest epoch known; -1 without any. A plain field: every append reads it."""
        self._note_latest()

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        return tuple(self._entries)

    def has_found_below(self, end_offset: int) -> bool:
        """Whether an epoch begins before `end_offset` that the file did not have when it was read."""
        return any(entry.start_offset < end_offset for entry in self._entries if entry not in self._stored)

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` begins at `start_offset`. Newer entries that contradict it are removed.

        No effect if `epoch` is already the latest and began at or before `start_offset`.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"epoch {epoch} from offset {start_offset}: neither may be negative")
        entries = self._entries
        if entries and entries[-1].epoch == epoch and start_offset >= entries[-1].start_offset:
            return
        while entries and (entries[-1].epoch >= epoch or entries[-1].start_offset >= start_offset):
            entries.pop()
        entries.append(EpochStart(epoch, start_offset))
        self._changed()

    def learn(self, epoch: int, base_offset: int, max_epoch: int | None) -> None:
        """Note the epoch of a batch of the log; one above `max_epoch`, the newest, is damage and ignored."""
        if epoch > self.latest_epoch and (max_epoch is None or epoch <= max_epoch):
            self.assign(epoch, base_offset)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """Where `epoch`, or the newest known one below it, ends."""
        if not 0 <= epoch <= self.latest_epoch:
            return UNKNOWN_EPOCH_END
        end_offset = log_end_offset
        for entry in reversed(self._entries):
            if entry.epoch <= epoch:
                return EpochEnd(entry.epoch, end_offset)
            end_offset = entry.start_offset
        return EpochEnd(epoch, end_offset)

    def divergence(self, offset: int, epoch: int, log_end_offset: int) -> EpochEnd | None:
        """Where this log diverges from one whose batch before `offset` is of `epoch`; None if not before `offset`.

        (-1, -1) if `epoch` is newer than all that are known. An epoch that is missing here is no divergence: compaction
        may have removed all its batches before the epochs were collected from the batches.
        """
        if epoch < 0:
            return None
        end = self.end_offset_for(epoch, log_end_offset)
        return end if end.end_offset < offset else None

    def epoch_at(self, offset: int) -> int:
        """The epoch under which the batch at `offset` was written; -1 if that is not known."""
        return next((epoch for epoch, start in reversed(self._entries) if start <= offset), NO_LEADER_EPOCH)

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove the epochs that began at or after `end_offset`; no effect below 0."""
        if end_offset < 0 or not self._entries or self._entries[-1].start_offset < end_offset:
            return
        self._entries = [entry for entry in self._entries if entry.start_offset < end_offset]
        self._changed()

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove the epochs that ended before `start_offset`; the one that holds it now begins there."""
        entries = self._entries
        past = [entry for entry in entries if entry.start_offset <= start_offset]
        if start_offset < 0 or not past or past[-1].start_offset == start_offset == entries[0].start_offset:
            return
        self._entries = [EpochStart(past[-1].epoch, start_offset), *entries[len(past) :]]
        self._changed()

    def clear(self) -> None:
        if self._entries:
            self._entries = []
            self._changed()

    def take_changes(self) -> tuple[EpochStart, ...] | None:
        """The entries, if they have changed since the last call: the caller writes them to the file."""
        if not self.has_unwritten_changes:
            return None
        self.has_unwritten_changes = False
        return self.entries

    def _changed(self) -> None:
        self.has_unwritten_changes = True
        self._note_latest()

    def _note_latest(self) -> None:
        self.latest_epoch = self._entries[-1].epoch if self._entries else NO_LEADER_EPOCH
