"""Compaction and the tools: what it leaves verifies, and files to which other names lead stay what they are."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from unit.broker.storage.cleaner.compaction_room import CompactionRoom
from warmlog_broker.storage.directory.partition_files import pack_partition_metadata
from warmlog_broker.storage.verify.partition import verify_partition
from warmlog_broker.storage.verify.report import Report
from warmlog_broker.storage.verify.segment import Expectations
from warmlog_protocol.batch import encode_batch, read_batch, to_rows


@pytest.fixture
def room(quick_path: Path) -> Iterator[CompactionRoom]:
    room = CompactionRoom(quick_path)
    room.path("partition.metadata").write_bytes(pack_partition_metadata(UUID(int=7)))
    yield room
    room.log.fail("the test is over")


def findings_in(room: CompactionRoom) -> list[str]:
    report = Report()
    verify_partition(room.directory, Expectations(), report)
    return [str(finding) for finding in report.findings]


class Writers:
    """Producers 0 to 2 write now and then; 3 to 5 in transactions, some of which are aborted."""

    def __init__(self, room: CompactionRoom, seed: int) -> None:
        self._room = room
        self._chance = random.Random(seed)
        self._sequences = [0] * 6
        self._open: set[int] = set()

    def write(self, batches: int) -> None:
        chance, room = self._chance, self._room
        for _ in range(batches):
            room.now_ms += chance.randrange(20)
            producer = chance.randrange(6)
            if producer in self._open and chance.random() < 0.4:
                self._end(producer)
            else:
                self._put(producer)
            if chance.random() < 0.2:
                room.roll()
        for producer in sorted(self._open):
            self._end(producer)
        room.roll()

    def _end(self, producer: int) -> None:
        self._room.end_transaction(producer, commits=self._chance.random() < 0.6)
        self._open.discard(producer)

    def _put(self, producer: int) -> None:
        chance, room, sequence = self._chance, self._room, self._sequences[producer]
        count = chance.randrange(1, 4)
        is_transactional = producer >= 3
        _, epoch, sequence = room.after_markers((producer, 0, sequence))
        batch = encode_batch(
            [chance.choice([None, b"value"]) for _ in range(count)],
            keys=[b"k%d" % chance.randrange(9) for _ in range(count)],
            timestamps_ms=room.now_ms,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=is_transactional,
        )
        if chance.random() < 0.5:
            batch = to_rows(read_batch(batch))
        if is_transactional:
            room.append_bytes(batch, room.log.producers.start_verification(producer, epoch, room.now_ms))
            self._open.add(producer)
        else:
            room.append_bytes(batch)
        self._sequences[producer] += count


@pytest.mark.parametrize("seed", range(6))
def test_a_compacted_log_verifies(room: CompactionRoom, seed: int) -> None:
    writers = Writers(room, seed)
    for _ in range(3):
        writers.write(60)
        assert findings_in(room) == []
        room.now_ms += 700
        room.compact()
        assert findings_in(room) == []
    room.restart()
    assert findings_in(room) == []


def test_compaction_leaves_files_under_hard_links_alone(room: CompactionRoom, quick_path: Path) -> None:
    Writers(room, 1).write(80)
    kafka = quick_path / "kafka"
    kafka.mkdir()
    closed = room.files(".log")[:-1]
    for name in closed:
        os.link(room.path(name), kafka / name)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in kafka.iterdir()}
    assert room.compact().replaced_segments
    room.put((b"k", b"more"))
    room.restart()
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in before} == before
