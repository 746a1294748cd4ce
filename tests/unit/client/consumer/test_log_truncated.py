"""A partition whose log is cut under its reader: what the user has, rolled back where told, is what the log holds."""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

import warmlog
from fetched_partition import fetched_partition
from unit.broker.storage.log_files import batch_of
from warmlog.consumer.partition_reader import NO_LIMIT, PartitionReader
from warmlog_broker.storage.directory.leader_epochs import LeaderEpochs
from warmlog_protocol.batch import read_header
from warmlog_protocol.messages import DivergingEpoch


class Log:
    """What a broker has: batches, of which compaction takes some, and the offsets at which leader epochs began."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.end_offset = self.synced_offset = 0
        self.epoch = 0
        self.epochs = LeaderEpochs([(0, 0)])
        self.number = 0

    def append(self, count: int) -> None:
        values = [f"{self.number}.{place}" for place in range(count)]
        self.number += 1
        self.batches.append(batch_of(values, offset=self.end_offset, leader_epoch=self.epoch))
        self.end_offset += count

    def cut(self, lost_batches: int) -> None:
        """An unclean start. What one has found is on the disk, and no later one takes it."""
        unsynced = [batch for batch in self.batches if read_header(batch).base_offset >= self.synced_offset]
        if lost := unsynced[max(0, len(unsynced) - lost_batches) :]:
            del self.batches[-len(lost) :]
            self.end_offset = read_header(lost[0]).base_offset
        self.synced_offset = self.end_offset
        self.epochs.truncate_from_end(self.end_offset)
        self.epoch += 1
        self.epochs.assign(self.epoch, self.end_offset)

    def compact(self, place: int) -> None:
        """Any batch but the last one that is on the disk goes."""
        synced = [batch for batch in self.batches if read_header(batch).base_offset < self.synced_offset]
        if place < len(synced) - 1:
            del self.batches[place]

    def answer(self, reader: PartitionReader, most_batches: int) -> None:
        """One Fetch."""
        if reader.error is not None:
            return
        found = self.epochs.divergence(reader.fetch_offset, reader.fetch_epoch, self.end_offset)
        if found is not None:
            reader.diverged(DivergingEpoch(*found))
            return
        there = [batch for batch in self.batches if read_header(batch).next_offset > reader.fetch_offset]
        reader.add(fetched_partition(self.end_offset), memoryview(b"".join(there[:most_batches])))


class User:
    """Reads, and goes on where the log was cut when it is told, without what it had from there on."""

    def __init__(self) -> None:
        self.log = Log()
        self.reader = PartitionReader("t", 0, b"", verify_crc=True, max_decompressed_bytes=1 << 20)
        self.had: dict[int, bytes | None] = {}
        self.is_compacted = False

    def append(self, count: int) -> None:
        self.log.append(count + 1)

    def cut(self, lost_batches: int) -> None:
        self.log.cut(lost_batches)

    def compact(self, place: int) -> None:
        self.log.compact(place)
        self.is_compacted = True

    def fetch(self, most_batches: int) -> None:
        self.log.answer(self.reader, most_batches + 1)

    def take(self, _: int) -> None:
        reader = self.reader
        batch = reader.take()
        if batch is not None:
            self.had.update(zip(batch.offsets, batch.values, strict=True))
        elif reader.error is not None:
            error, reader.error = reader.error, None
            assert isinstance(error, warmlog.LogTruncated)
            assert error.diverging_offset is not None
            assert error.offset == reader.position > error.diverging_offset
            assert self.is_compacted or max(self.had) >= error.diverging_offset, "of what it had nothing was cut"
            there, kept = self.records(), {}
            for offset, value in self.had.items():
                if offset < error.diverging_offset:
                    kept[offset] = value
                else:
                    assert there.get(offset) != value, f"a false alarm: {error}"
            self.had = kept
            reader.seek(error.diverging_offset)

    def take_and_put_back(self, count: int) -> None:
        """What reading record by record does when it goes on with batches."""
        batch = self.reader.take()
        if batch is not None and len(batch):
            kept = list(zip(batch.offsets, batch.values, strict=True))[:count]
            self.had.update(kept)
            self.reader.put_back((kept[-1][0] + 1 if kept else batch.base_offset, self.reader.epoch))

    def take_put_back_later(self, count: int) -> None:
        """The same, and a fetch comes back meanwhile."""
        batch = self.reader.take()
        if batch is not None and len(batch):
            self.fetch(count)
            self.reader.put_back((batch.base_offset, self.reader.epoch))

    def take_up_to(self, count: int) -> None:
        self.reader.until = self.reader.position + count
        self.take(0)
        self.reader.until = NO_LIMIT

    def records(self) -> dict[int, bytes | None]:
        """All that the log holds."""
        reader = PartitionReader("t", 0, b"", verify_crc=True, max_decompressed_bytes=1 << 20)
        reader.add(fetched_partition(self.log.end_offset), memoryview(b"".join(self.log.batches)))
        there: dict[int, bytes | None] = {}
        while (batch := reader.take()) is not None:
            there.update(zip(batch.offsets, batch.values, strict=True))
        return there


STEPS: list[Callable[[User, int], None]] = [
    *[User.append, User.fetch, User.take] * 3,
    *[User.cut, User.take_up_to] * 2,
    User.take_and_put_back,
    User.take_put_back_later,
    User.compact,
]


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3)), min_size=5, max_size=60))
@settings(max_examples=300, deadline=None)
def test_what_the_user_has_in_the_end_the_log_has(steps: list[tuple[Callable[[User, int], None], int]]) -> None:
    user = User()
    for step, number in steps:
        step(user, number)
    user.append(0)
    for _ in range(3 * len(steps)):
        user.fetch(3)
        user.take(0)
    assert {offset: value for offset, value in user.records().items() if user.had.get(offset) != value} == {}
    assert max(user.had) < user.log.end_offset


def test_a_position_in_a_gap_has_the_epoch_of_the_next_batch() -> None:
    """The last batch before the gap may be of an epoch that ended in it."""
    user = User()
    for _ in range(3):
        user.append(3)
        user.cut(0)
    user.compact(1)
    user.reader.until = 6
    user.fetch(3)
    user.take(0)
    user.take(0)
    assert user.reader.is_at_end
    user.reader.until = NO_LIMIT
    user.fetch(3)
    user.take(0)
    assert (sorted(user.had), user.reader.error) == ([0, 1, 2, 3, 8, 9, 10, 11], None)


def test_records_in_hand_when_the_log_is_cut_are_fetched_again_if_they_are_put_back() -> None:
    user = User()
    for _ in range(3):
        user.append(0)
    user.fetch(3)
    user.cut(1)
    assert user.reader.take() is not None
    user.fetch(3)
    user.reader.put_back((0, user.reader.epoch))
    for _ in range(3):
        user.fetch(3)
        user.take(0)
    assert (sorted(user.had), user.reader.error) == ([0, 1], None)
    user.append(0)
    user.fetch(3)
    user.take(0)
    assert user.had == user.records()


def test_what_was_only_fetched_ahead_is_forgotten_without_an_error() -> None:
    user = User()
    user.append(0)
    user.fetch(3)
    user.take(0)
    user.append(0)
    user.fetch(3)
    user.cut(1)
    user.append(1)
    user.fetch(3)
    assert user.reader.take() is None
    assert user.reader.error is None
    user.fetch(3)
    user.take(0)
    assert user.had == user.records()


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 30), st.sampled_from([-1, 7]))
def test_the_error_names_partition_offset_and_where_the_log_was_cut(offset: int, epoch: int, end: int) -> None:
    reader = PartitionReader("t", 5, b"", verify_crc=True, max_decompressed_bytes=1 << 20)
    reader.seek(offset, epoch)
    assert (reader.fetch_offset, reader.fetch_epoch) == (offset, epoch)
    reader.diverged(DivergingEpoch(0 if end >= 0 else -1, end))
    error = reader.error
    assert isinstance(error, warmlog.LogTruncated)
    assert isinstance(error, warmlog.OffsetOutOfRange)
    assert (error.topic, error.partition, error.offset) == ("t", 5, offset)
    assert error.diverging_offset == (end if end >= 0 else None)
    where = "at 7" if end >= 0 else "at an unknown offset"
    assert f"t-5: the log was cut {where} after it had been read up to {offset}, " in str(error)
    again = error.reworded("other words")
    assert (str(again), again.offset, again.diverging_offset) == ("other words", offset, error.diverging_offset)


def test_an_end_that_is_reached_does_not_make_the_epoch_forgotten() -> None:
    user = User()
    user.append(1)
    user.append(1)
    user.fetch(3)
    user.take_up_to(2)
    user.take_up_to(0)
    assert not user.reader.has_something
    assert (user.reader.fetch_offset, user.reader.fetch_epoch) == (2, 0)
