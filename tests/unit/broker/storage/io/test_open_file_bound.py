"""However many segments there are, and whatever is done with them, no more files are open or mapped than allowed."""

from pathlib import Path

import pytest

from unit.broker.storage.log_room import START_MS, TINY, make_batch, read_values
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.log.validation import check_batch

LIMIT = 20
LOGS = 6
SEGMENTS = 18


def files_in_use(directory: Path) -> tuple[int, int]:
    """How many descriptors and how many maps of files below `directory` this process has."""
    descriptors = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except FileNotFoundError:
            continue
        descriptors += target.startswith(str(directory))
    maps = sum(str(directory) in line for line in Path("/proc/self/maps").read_text().splitlines())
    return descriptors, maps


class Rooms:
    """Logs that share one bound."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.open_files = OpenFiles(LIMIT)
        self.most_descriptors = self.most_maps = 0
        self.logs = [self.open(number) for number in range(LOGS)]

    def open(self, number: int) -> Log:
        key = TopicPartition("flights", number)
        directory = self.root / key.directory_name
        return Log.open(directory, key=key, config=TINY, open_files=self.open_files, now_ms=START_MS)

    def append(self, log: Log) -> None:
        batch = check_batch(make_batch(b"v" * 50), 1 << 20)
        log.appender.append_as_leader(batch, leader_epoch=0, now_ms=START_MS)
        self.look()

    def flush(self, log: Log) -> None:
        plan = log.flusher.prepare()
        if plan is not None:
            plan.run()
            log.flusher.mark_flushed(plan)
        del plan
        log.bounds.raise_high_watermark(log.recovery_point)

    def look(self) -> None:
        descriptors, maps = files_in_use(self.root)
        self.most_descriptors = max(self.most_descriptors, descriptors)
        self.most_maps = max(self.most_maps, maps)


@pytest.fixture
def rooms(tmp_path: Path) -> Rooms:
    made = Rooms(tmp_path)
    for log in made.logs:
        while len(log.local.segments) < SEGMENTS:
            made.append(log)
            made.flush(log)
    return made


def test_reading_and_appending_everywhere_stays_within_the_bound(rooms: Rooms) -> None:
    assert sum(len(log.local.segments) for log in rooms.logs) > 5 * LIMIT
    for _ in range(2):
        for log in rooms.logs:
            for offset in range(0, log.log_end_offset, 3):
                assert log.reader.read(offset, 1, bound="log_end").slices
                rooms.look()
        for log in rooms.logs:
            rooms.append(log)
            rooms.flush(log)
    # A map that is not written to any more keeps a descriptor of its own (mmap duplicates it), and counts as one.
    assert rooms.most_descriptors <= LIMIT
    assert rooms.most_maps <= LIMIT
    assert rooms.open_files.open_count <= LIMIT


def test_rolls_that_nobody_has_flushed_pass_the_bound_and_a_flush_meets_it_again(rooms: Rooms) -> None:
    log = rooms.logs[0]
    while len(log.local.segments) < SEGMENTS + 2 * LIMIT:
        rooms.append(log)
    assert rooms.open_files.open_count > LIMIT
    for each in rooms.logs:
        rooms.flush(each)
    for each in rooms.logs:
        each.reader.read(0, 1)
    assert rooms.open_files.open_count <= LIMIT
    assert len(read_values(log)) == log.log_end_offset


def test_a_start_opens_nothing_and_a_stop_opens_nothing_that_was_not_used(rooms: Rooms, tmp_path: Path) -> None:
    from warmlog_broker.storage.directory.data_dir import StoredState

    ends = [(log.offsets, log.close()) for log in rooms.logs]
    assert files_in_use(tmp_path) == (0, 0)
    logs = [
        Log.open(
            tmp_path / TopicPartition("flights", number).directory_name,
            key=TopicPartition("flights", number),
            config=TINY,
            open_files=OpenFiles(1),
            now_ms=START_MS,
            stored=StoredState(offsets, end),
        )
        for number, (offsets, end) in enumerate(ends)
    ]
    assert files_in_use(tmp_path) == (0, 0)
    assert all(log.recovery_report.was_clean for log in logs)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*.*index")}
    for log in logs:
        log.close()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*.*index")} == before
