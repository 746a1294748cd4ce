"""One bit that the disk has changed: it is noticed, nothing wrong is delivered, and the rest stays readable."""

import random
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from fetched_partition import fetched_partition
from unit.broker.storage.log_room import START_MS, LogRoom
from unit.broker.storage.time_lookups import record_at
from warmlog.consumer.partition_reader import PartitionReader
from warmlog.errors import UnreadableBatch
from warmlog_broker.storage.config import UNLIMITED, LogConfig
from warmlog_broker.storage.log.log import Log
from warmlog_protocol.batch import iter_batches
from warmlog_protocol.errors import CorruptBatch

CONFIG = LogConfig(segment_bytes=4000, index_interval_bytes=300, segment_index_bytes=480, retention_ms=UNLIMITED)
BATCHES = 40
EPOCH_BYTES = range(12, 16)
"""A batch's leader epoch lies outside its checksum, as in Kafka: no reader of records sees it."""
SIDE_FILES = (".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint", "partition.metadata")


class Stored(NamedTuple):
    """Where one batch lies, and the records that it holds: (offset, timestamp, value)."""

    file_name: str
    position: int
    size_bytes: int
    records: list[tuple[int, int, bytes | None]]

    @property
    def offsets(self) -> set[int]:
        return {offset for offset, _, _ in self.records}


class Library:
    """A log that was closed cleanly, and can be put back to how it was then."""

    def __init__(self, root: Path) -> None:
        self.room = LogRoom(root, CONFIG)
        luck = random.Random(5)
        sequences = Counter[int]()
        for number in range(BATCHES):
            values = [luck.randbytes(luck.randrange(80)) for _ in range(luck.randint(1, 4))]
            time_ms = START_MS + 100 * number + luck.randrange(50)
            producer = None
            if number % 2:
                producer_id = luck.randrange(3)
                producer = (producer_id, 0, sequences[producer_id])
                sequences[producer_id] += len(values)
            self.room.append(*values, timestamp_ms=time_ms, producer=producer, rows=number % 5 == 0)
        self.room.flush()
        self.room.close()
        self.contents = {path.name: path.read_bytes() for path in self.room.directory.iterdir()}
        self.batches = [
            batch for name in sorted(self.contents) if name.endswith(".log") for batch in self._batches(name)
        ]
        self.records = [record for batch in self.batches for record in batch.records]

    def open(self, file_name: str, position: int, bit: int) -> Log:
        """The log with that bit changed, as after a clean stop: nothing is checked that need not be."""
        changed = bytearray(self.contents[file_name])
        changed[position] ^= 1 << bit
        (self.room.directory / file_name).write_bytes(bytes(changed))
        return self.room.open()

    def put_back(self) -> None:
        self.room.log.fail("put back")
        for path in self.room.directory.iterdir():
            if path.name not in self.contents:
                path.unlink()
        for name, content in self.contents.items():
            path = self.room.directory / name
            if not path.exists() or path.read_bytes() != content:
                path.write_bytes(content)

    def first_at(self, timestamp_ms: int) -> int | None:
        """The offset of the first record with this time or a later one."""
        return next((offset for offset, time_ms, _ in self.records if time_ms >= timestamp_ms), None)

    def _batches(self, name: str) -> list[Stored]:
        stored, position = [], 0
        for batch in iter_batches(self.contents[name]):
            records = list(zip(batch.offsets(), batch.timestamps_ms(), batch.values(), strict=True))
            stored.append(Stored(name, position, batch.size_bytes, records))
            position += batch.size_bytes
        return stored


def deliver(log: Log) -> tuple[list[tuple[int, int, bytes | None]], set[int]]:
    """What a consumer gets of the whole log, and the offsets from an error up to where it can go on."""
    delivered: list[tuple[int, int, bytes | None]] = []
    refused: set[int] = set()
    reader = PartitionReader("t", 0, b"", verify_crc=True, max_decompressed_bytes=1 << 20)
    position = log.log_start_offset
    damaged: int | None = None
    while position < log.high_watermark:
        reader.seek(position)
        try:
            data = log.reader.read(position, 1 << 20)
            payload = memoryview(b"".join(piece.pread() for piece in data.slices))
            fetched = fetched_partition(log.high_watermark, is_dense=True, row_gaps_up_to=log.local.gaps.rows_up_to)
            reader.add(fetched, payload)
            while (batch := reader.take()) is not None:
                if damaged is not None:
                    refused |= set(range(damaged, batch.base_offset))
                    damaged = None
                delivered += zip(batch.offsets, batch.timestamps_ms, batch.values, strict=True)
            if reader.error is not None and reader.position == position:
                raise reader.error
        except CorruptBatch as error:
            if damaged is None:
                damaged = delivered[-1][0] + 1 if delivered else position
            position = reader.position if isinstance(error, UnreadableBatch) else position + 1
            continue
        position = reader.position
    if damaged is not None:
        refused |= set(range(damaged, position))
    return delivered, refused


def judge_log_flip(library: Library, batch: Stored, position: int, bit: int) -> str:
    """What the change did; AssertionError when it did harm."""
    log = library.open(batch.file_name, position, bit)
    delivered, refused = deliver(log)
    what = f"{batch.file_name}, position {position}, bit {bit}"
    wrong = set(delivered) - set(library.records)
    assert not wrong, f"{what}: delivered {wrong}"
    missing = {offset for offset, _, _ in library.records} - {offset for offset, _, _ in delivered}
    assert missing <= batch.offsets, f"{what}: of other batches {missing - batch.offsets} cannot be read"
    assert missing <= refused, f"{what}: {missing - refused} left out without a word"
    assert len(delivered) == len(set(delivered)), f"{what}: delivered twice"
    if position - batch.position in EPOCH_BYTES:
        return "leader epoch"
    assert missing, f"{what}: not noticed"
    return "refused"


def judge_side_file_flip(library: Library, file_name: str, position: int, bit: int) -> str:
    log = library.open(file_name, position, bit)
    delivered, refused = deliver(log)
    what = f"{file_name}, position {position}, bit {bit}"
    assert delivered == library.records, what
    assert not refused, what
    for number in range(-1, BATCHES + 1, 7):
        timestamp_ms = START_MS + 100 * number
        found = record_at(log, timestamp_ms)
        assert (found and found.offset) == library.first_at(timestamp_ms), f"{what}: time {timestamp_ms}"
    assert library.room.append(b"more").first_offset == library.records[-1][0] + 1
    return "harmless"


@pytest.mark.parametrize("flips", [400, pytest.param(10_000, marks=pytest.mark.slow)])
def test_random_flips_in_logs_and_side_files_do_no_harm(quick_path: Path, flips: int) -> None:
    library = Library(quick_path)
    side_files = [name for name, content in library.contents.items() if content and name.endswith(SIDE_FILES)]
    assert {Path(name).suffix or name for name in side_files} >= {".index", ".timeindex", ".snapshot"}
    luck = random.Random(flips)
    outcomes: Counter[str] = Counter()
    for _ in range(flips):
        bit = luck.randrange(8)
        if luck.random() < 0.6:
            batch = luck.choice(library.batches)
            position = luck.choice((luck.randrange(61), luck.randrange(batch.size_bytes)))
            outcome = judge_log_flip(library, batch, batch.position + position, bit)
        else:
            name = luck.choice(side_files)
            outcome = judge_side_file_flip(library, name, luck.randrange(len(library.contents[name])), bit)
        outcomes[outcome] += 1
        library.put_back()
    print(f"\n{flips} flips: {dict(outcomes)}")
    assert outcomes["refused"] > flips / 4
    assert outcomes["harmless"] > flips / 4
