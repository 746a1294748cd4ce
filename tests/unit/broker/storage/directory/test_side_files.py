"""Every file beside the logs: missing, empty, stale, damaged, or another partition's; after a clean stop and a crash.

Write, damage, expect: all records are read back, by offset, by time and as committed; appending goes on; and after
another crash all of it is there again.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from unit.broker.data_directories import open_directory
from unit.broker.storage.log_room import START_MS, TINY, make_batch, read_values
from unit.broker.storage.time_lookups import record_at
from warmlog_broker.storage.directory.data_dir import (
    CLEAN_MARKER_NAME,
    HIGH_WATERMARKS_NAME,
    LOG_STARTS_NAME,
    RECOVERY_POINTS_NAME,
)
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.log.validation import check_batch
from warmlog_protocol.batch import ControlType
from warmlog_protocol.errors import InconsistentTopicId

FLIGHTS = TopicPartition("flights", 0)
OTHER = TopicPartition("other", 0)
TOPIC_IDS = {FLIGHTS: UUID(int=1), OTHER: UUID(int=2)}

IN_PARTITION = (".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint", "partition.metadata")
IN_DIRECTORY = (RECOVERY_POINTS_NAME, LOG_STARTS_NAME, HIGH_WATERMARKS_NAME, CLEAN_MARKER_NAME)

WRITER, ABORTER = 1, 2
COUNT = 24
EPOCH_START = 12
ABORTED_AT = 5


class Home:
    """A data directory with two partitions, and what was done to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.epoch = 0
        self.logs: dict[TopicPartition, Log] = {}
        self.start()

    @property
    def log(self) -> Log:
        return self.logs[FLIGHTS]

    def start(self) -> None:
        self.directory = open_directory(self.path)
        for key in (FLIGHTS, OTHER):
            self.logs[key] = Log.open(
                self.directory.partition_path(key),
                key=key,
                config=TINY,
                open_files=OpenFiles(limit=64),
                now_ms=START_MS,
                topic_id=TOPIC_IDS[key],
                stored=self.directory.stored_state(key),
                max_leader_epoch=1,
            )
            self.logs[key].bounds.raise_high_watermark(self.logs[key].log_end_offset)

    def append(self, key: TopicPartition, value: bytes, *, sequence: int = -1, timestamp_ms: int = START_MS) -> int:
        producer = (WRITER, 0, sequence) if sequence >= 0 else None
        batch = make_batch(value, producer=producer, timestamp_ms=timestamp_ms)
        checked = check_batch(batch, TINY.max_message_bytes)
        return self.logs[key].appender.append_as_leader(checked, leader_epoch=self.epoch, now_ms=START_MS).first_offset

    def abort_transaction(self) -> None:
        """Two offsets: a record, and the marker that says that it never was."""
        guard = self.log.producers.start_verification(ABORTER, 0, START_MS)
        batch = make_batch(b"aborted", producer=(ABORTER, 0, 0), is_transactional=True)
        checked = check_batch(batch, TINY.max_message_bytes, may_be_transactional=True)
        self.log.appender.append_as_leader(checked, leader_epoch=self.epoch, now_ms=START_MS, guard=guard)
        self.log.appender.append_end_transaction(
            ABORTER, 1, ControlType.ABORT, 0, leader_epoch=self.epoch, now_ms=START_MS
        )

    def fill(self, first: int, end: int) -> None:
        """Offsets from `first` to `end` of the partition: each its own batch, its time and value by its offset."""
        while self.log.log_end_offset < end:
            offset = self.log.log_end_offset
            self.epoch = int(offset >= EPOCH_START)
            if offset == ABORTED_AT:
                self.abort_transaction()
            else:
                self.append(FLIGHTS, b"%d" % offset, sequence=sequence_at(offset), timestamp_ms=START_MS + offset)
        assert first < end

    def flush(self) -> None:
        for log in self.logs.values():
            plan = log.flusher.prepare()
            if plan is not None:
                plan.run()
                log.bounds.raise_high_watermark(log.flusher.mark_flushed(plan))

    def stop(self, *, is_clean: bool) -> None:
        self.flush()
        ends = {key: log.close() for key, log in self.logs.items()} if is_clean else {}
        self.directory.write_checkpoints({key: log.offsets for key, log in self.logs.items()})
        if is_clean:
            self.directory.mark_clean({key: end for key, end in ends.items() if end is not None})
        self.directory.close()

    def side_files(self, kind: str, key: TopicPartition = FLIGHTS) -> list[Path]:
        place = self.path if kind in IN_DIRECTORY else self.path / key.directory_name
        return sorted(path for path in place.iterdir() if path.name.endswith(kind))


def sequence_at(offset: int) -> int:
    """The writer's records stand at all offsets but the two of the transaction."""
    return offset if offset < ABORTED_AT else offset - 2


def stale(home: Home, path: Path) -> bytes | None:
    return home.path.with_name("stale").joinpath(path.relative_to(home.path)).read_bytes()


def foreign(home: Home, path: Path) -> bytes | None:
    """What another partition, or for the files of the whole directory another broker, has under such a name."""
    if path.parent == home.path:
        return path.read_bytes().replace(FLIGHTS.topic.encode(), b"unknown")
    suffix = path.name[20:] if path.name[:20].isdecimal() else path.name
    return home.side_files(suffix, OTHER)[0].read_bytes()


DAMAGES: dict[str, Callable[[Home, Path], bytes | None]] = {
    "missing": lambda home, path: None,
    "empty": lambda home, path: b"",
    "zeros": lambda home, path: bytes(path.stat().st_size),
    "garbage": lambda home, path: b"\xa5" * (path.stat().st_size + 3),
    "cut": lambda home, path: path.read_bytes()[:-3],
    "stale": stale,
    "foreign": foreign,
}


@pytest.fixture
def home(quick_path: Path) -> Iterator[Home]:
    """Stopped nowhere yet; beside it are its side files from when half of it was there."""
    home = Home(quick_path / "data")
    home.fill(0, COUNT // 2)
    for n in range(9):
        home.append(OTHER, b"other %d" % n * 3, timestamp_ms=START_MS + 100_000 * n)
    guard = home.logs[OTHER].producers.start_verification(ABORTER, 0, START_MS)
    theirs = make_batch(b"x", producer=(ABORTER, 0, 0), is_transactional=True)
    batch = check_batch(theirs, TINY.max_message_bytes, may_be_transactional=True)
    home.logs[OTHER].appender.append_as_leader(batch, leader_epoch=0, now_ms=START_MS, guard=guard)
    home.logs[OTHER].appender.append_end_transaction(ABORTER, 1, ControlType.ABORT, 0, leader_epoch=0, now_ms=START_MS)
    home.logs[OTHER].local.roll(START_MS)
    home.stop(is_clean=True)
    for path in home.path.rglob("*"):
        if path.is_file():
            copy = home.path.with_name("stale") / path.relative_to(home.path)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    home.start()
    home.fill(COUNT // 2, COUNT)
    yield home
    home.directory.close()


def check_whole(home: Home, count: int, *, knows_producers: bool = True, knows_aborted: bool = True) -> None:
    values = [b"%d" % n for n in range(count) if n not in (ABORTED_AT, ABORTED_AT + 1)]
    assert [value for value in read_values(home.log) if value in values] == values
    assert len(read_values(home.log)) == len(values) + 2, "and the aborted record with its marker"
    for offset in range(count):
        if offset not in (ABORTED_AT, ABORTED_AT + 1):
            record = record_at(home.log, START_MS + offset)
            assert record is not None
            assert (record.timestamp_ms, record.offset) == (START_MS + offset, offset)
    data = home.log.reader.read(ABORTED_AT, 10_000, bound="committed")
    assert not knows_aborted or [(aborted.producer_id, aborted.first_offset) for aborted in data.aborted] == [
        (ABORTER, ABORTED_AT)
    ]
    if knows_producers:
        last = home.log.log_end_offset - 1
        assert home.append(FLIGHTS, b"again", sequence=sequence_at(count - 1)) == count - 1
        assert home.log.log_end_offset == last + 1


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "crash"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", [*IN_PARTITION, *IN_DIRECTORY])
def test_whatever_happens_to_a_side_file_all_records_are_read_back_and_appending_goes_on(
    home: Home, kind: str, damage: str, is_clean: bool
) -> None:
    home.stop(is_clean=is_clean)
    paths = home.side_files(kind)
    assert paths or (kind == CLEAN_MARKER_NAME and not is_clean)
    contents = {path: DAMAGES[damage](home, path) for path in paths if damage != "stale" or _was_there(home, path)}
    for path, content in contents.items():
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
    if (kind, damage) == ("partition.metadata", "foreign"):
        with pytest.raises(InconsistentTopicId):
            home.start()
        return
    home.start()
    # An intact snapshot of another partition cannot be told from ours; and a missing transaction index may
    # never have existed: `log rebuild-index` rebuilds it.
    knows_producers = (kind, damage) != (".snapshot", "foreign")
    knows_aborted = (kind, damage) != (".txnindex", "missing")
    check_whole(home, COUNT, knows_producers=knows_producers, knows_aborted=knows_aborted)
    home.fill(COUNT, COUNT + 4)
    home.stop(is_clean=False)
    home.start()
    check_whole(home, COUNT + 4, knows_producers=knows_producers, knows_aborted=knows_aborted)


def _was_there(home: Home, path: Path) -> bool:
    return home.path.with_name("stale").joinpath(path.relative_to(home.path)).exists()
