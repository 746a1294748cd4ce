"""The log of one replica on a disk that can fail: what is not flushed may be lost, and what is flushed may rot."""

from random import Random
from typing import NamedTuple

from warmlog_broker.replication.alignment import Log
from warmlog_broker.storage.directory.leader_epochs import LeaderEpochs

NO_EPOCH = -1


class Entry(NamedTuple):
    """A batch of one record."""

    epoch: int
    producer: int
    sequence: int
    key: int | None = None
    is_tombstone: bool = False


class FakeDisk:
    """A log; `entries[offset]` is None before its start, and where compaction has removed something."""

    def __init__(self, topic_id: str, directory: str, start: int = 0) -> None:
        self.topic_id = topic_id
        self.directory = directory
        self.entries: list[Entry | None] = [None] * start
        self.start = self.flushed = self.high_watermark = start
        self.stored_high_watermark = start
        self.epochs = LeaderEpochs()
        self.truncations = 0
        self.removed_below = 0
        self.damaged: set[int] = set()
        self.is_known_damaged = False
        self.flush_offset: int | None = None
        """Up to where the flush goes that is under way."""
        self.hangs = False
        self.waits_for_base = False
        """Whether it is empty, and the first batch that it gets begins before its start."""
        self.copies = 0
        """How often it was told to append as a follower."""
        self.producers: dict[int, tuple[int, int]] = {}
        """The last sequence of each producer, and its offset."""

    @property
    def end(self) -> int:
        return len(self.entries)

    @property
    def bounds(self) -> Log:
        return Log(self.start, self.end, self.flushed, self.high_watermark, self.epochs.entries, self.truncations)

    def is_of(self, topic_id: str) -> bool:
        """Return whether the log is of this topic, and not of a deleted one of its name."""
        return self.topic_id == topic_id

    def copy(self) -> "FakeDisk":
        other = FakeDisk(self.topic_id, self.directory)
        other.__dict__.update(self.__dict__)
        other.entries, other.damaged, other.producers = list(self.entries), set(self.damaged), dict(self.producers)
        other.epochs = LeaderEpochs(list(self.epochs.entries))
        return other

    # What a broker does.

    def append(self, entry: Entry) -> int:
        """As a leader. Return the offset."""
        assert entry.epoch == self.epochs.latest_epoch, "a leader appends in the epoch that it has begun"
        self.entries.append(entry)
        self._replay(entry, self.end - 1)
        return self.end - 1

    def append_copy(self, entries: list[Entry | None]) -> None:
        """As a follower."""
        for entry in entries:
            self.entries.append(entry)
            if entry is not None and entry.epoch != NO_EPOCH:
                assert entry.epoch >= self.epochs.latest_epoch, "a batch of an older epoch is refused"
                self.epochs.assign(entry.epoch, self.end - 1)
            if entry is not None:
                self._replay(entry, self.end - 1)

    def _replay(self, entry: Entry, offset: int) -> None:
        self.producers[entry.producer] = (entry.sequence, offset)

    def _replay_all(self) -> None:
        self.producers.clear()
        for offset, entry in enumerate(self.entries):
            if entry is not None:
                self._replay(entry, offset)

    def begin_epoch(self, epoch: int) -> None:
        self.epochs.assign(epoch, self.end)

    def cut(self, end: int) -> None:
        """Durably."""
        assert end <= self.end
        del self.entries[end:]
        self.epochs.truncate_from_end(end)
        self._after_cut(end)

    def empty(self, start: int, removed_below: int, *, waits_for_base: bool) -> None:
        """Durably; the log begins at `start` then."""
        self.entries = [None] * start
        self.epochs = LeaderEpochs()
        self.damaged, self.is_known_damaged = set(), False
        self.start, self.waits_for_base = start, waits_for_base
        self.removed_below = max(self.removed_below, removed_below)
        self._after_cut(start)
        self.flushed = self.high_watermark = self.stored_high_watermark = start

    def _after_cut(self, end: int) -> None:
        self.flushed = min(self.flushed, end)
        self.high_watermark = min(self.high_watermark, end)
        self.stored_high_watermark = min(self.stored_high_watermark, end)
        self.truncations += 1
        self._replay_all()

    def raise_start(self, start: int) -> None:
        assert start <= self.high_watermark, "records that are not committed are not deleted"
        for offset in range(self.start, start):
            self.entries[offset] = None
        self.start = max(self.start, start)
        self.epochs.truncate_from_start(self.start)

    def compact(self) -> dict[int, int]:
        """Remove tombstones that are committed, with the values before them; return their offsets and keys."""
        limit = min(self.high_watermark, self.flushed) - 2
        removed: dict[int, int] = {}
        for offset in range(self.start, limit):
            entry = self.entries[offset]
            if entry is not None and entry.is_tombstone and entry.key is not None:
                gone = [
                    at for at in range(self.start, offset + 1) if (each := self.entries[at]) and each.key == entry.key
                ]
                if all(self._is_followed(at, limit) for at in gone):
                    for at in gone:
                        self.entries[at] = None
                    removed[offset] = entry.key
        self.removed_below = max(self.removed_below, *(offset + 1 for offset in removed), 0)
        return removed

    def _is_followed(self, offset: int, limit: int) -> bool:
        """Return whether its producer has a later batch that is committed: the last one tells its sequence."""
        entry = self.entries[offset]
        return any(each and entry and each.producer == entry.producer for each in self.entries[offset + 1 : limit])

    # What happens to it.

    def crash(self, random: Random) -> None:
        """Lose some of what is not flushed. What is below the checkpoint of the high watermark is there."""
        self.flush_offset, self.hangs = None, False
        del self.entries[random.randint(self.flushed, self.end) :]

    def recover(self, max_epoch: int) -> None:
        """Open the log after a stop: a batch of an epoch above `max_epoch` is taken for damage, and cut."""
        for offset in range(self.start, self.end):
            entry = self.entries[offset]
            if entry is not None and entry.epoch > max_epoch:
                del self.entries[offset:]
                break
        self.is_known_damaged = self.is_known_damaged or bool(self.damaged)
        epochs = [each for each in self.epochs.entries if each.start_offset < self.end]
        self.epochs = LeaderEpochs([(each.epoch, each.start_offset) for each in epochs])
        self.flushed = self.end
        self.high_watermark = min(self.stored_high_watermark, self.end)
        self.truncations += 1
        self._replay_all()
