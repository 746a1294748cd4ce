"""A log in a temporary directory, with a clock that the test moves, and ways for it to end."""

import os
from pathlib import Path

from msgspec.structs import replace

from present import present
from warmlog_broker.storage.config import UNLIMITED, LogConfig
from warmlog_broker.storage.directory.data_dir import NEVER_STORED, CleanEnd, StoredState
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.log.appender import AppendInfo
from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.log.validation import check_batch
from warmlog_broker.storage.producer.verification import NO_GUARD, VerificationGuard
from warmlog_protocol.batch import (
    ControlType,
    EndTxnMarker,
    RecordBatch,
    encode_batch,
    encode_end_txn_marker,
    iter_batches,
    to_rows,
)
from warmlog_protocol.batch.header import CRC_START, placement_prefix, read_header

MEMORY = Path("/dev/shm")
QUICK = MEMORY if os.access(MEMORY, os.W_OK) else None
"""Where files cost no disk: for tests that need many syncs, and no disk. None where the system has no such place."""

START_MS = 1_700_000_000_000
KEY = TopicPartition("flights", 0)
TINY = LogConfig(segment_bytes=400, index_interval_bytes=100, segment_index_bytes=240, retention_ms=UNLIMITED)


class LogRoom:
    """Owns the partition's directory below `root`. `stored` is what the checkpoints say at the next opening."""

    def __init__(self, root: Path, config: LogConfig = TINY) -> None:
        self.directory = root / KEY.directory_name
        self.config = config
        self.now_ms = START_MS
        self.leader_epoch = 0
        self.stored = NEVER_STORED
        self.open_files = OpenFiles(limit=64)
        self.log = self.open()

    def open(self, **options: object) -> Log:
        options.setdefault("max_leader_epoch", self.leader_epoch)
        self.log = Log.open(
            self.directory,
            key=KEY,
            config=self.config,
            open_files=self.open_files,
            now_ms=self.now_ms,
            stored=self.stored,
            **options,  # type: ignore[arg-type]
        )
        self.log.bounds.raise_high_watermark(self.log.recovery_point)
        return self.log

    def crash(self, *, recovery_point: int | None = None) -> Log:
        """Leaves everything as it is and opens again. By default the flushed offset had just been checkpointed."""
        offsets = self.log.offsets
        if recovery_point is not None:
            offsets = offsets._replace(recovery_point=recovery_point)
        self.stored = StoredState(offsets, None)
        return self.open()

    def lose_from(self, end: int, tail: bytes = b"") -> None:
        """What a power cut does: the batches from `end` on are gone from the files, and `tail` is there instead."""
        segments = self.log.local.segments
        segment = present(segments.floor(end))
        found = segment.lookup.find_batch(end)
        position = segment.size_bytes if found is None else found.position
        with segment.path.open("r+b") as file:
            file.truncate(position)
            file.seek(position)
            file.write(tail)
        for later in segments.higher_segments(end):
            later.path.unlink()

    def close(self) -> CleanEnd:
        end = present(self.log.close())
        self.stored = StoredState(self.log.offsets, end)
        return end

    def restart(self) -> Log:
        self.close()
        return self.open()

    def append(
        self,
        *values: bytes,
        timestamp_ms: int | None = None,
        producer: tuple[int, int, int] | None = None,
        rows: bool = False,
    ) -> AppendInfo:
        """Appends one batch; `producer` is id, epoch and base sequence."""
        return self.append_bytes(
            make_batch(*values, timestamp_ms=timestamp_ms or self.now_ms, producer=producer, rows=rows)
        )

    def append_bytes(self, batch: bytes, guard: VerificationGuard = NO_GUARD) -> AppendInfo:
        checked = check_batch(batch, self.log.local.config.max_message_bytes, may_be_transactional=True)
        return self.log.appender.append_as_leader(
            checked, leader_epoch=self.leader_epoch, now_ms=self.now_ms, guard=guard
        )

    def append_in_transaction(
        self, *values: bytes, producer: tuple[int, int, int], timestamp_ms: int | None = None, rows: bool = False
    ) -> AppendInfo:
        """Appends one batch of a transaction, which the coordinator has verified."""
        producer_id, epoch, _ = producer = self.after_markers(producer)
        guard = self.log.producers.start_verification(producer_id, epoch, self.now_ms)
        batch = make_batch(
            *values, timestamp_ms=timestamp_ms or self.now_ms, producer=producer, rows=rows, is_transactional=True
        )
        return self.append_bytes(batch, guard)

    def after_markers(self, producer: tuple[int, int, int]) -> tuple[int, int, int]:
        """The next batch of a producer whose epoch was raised by markers; as it is given for any other."""
        producer_id, epoch, _ = producer
        entry = self.log.producers.get(producer_id)
        if entry is None or entry.epoch <= epoch:
            return producer
        return producer_id, entry.epoch, entry.next_sequence

    def end_transaction(
        self, producer_id: int, *, commits: bool, epoch: int | None = None, coordinator_epoch: int = 0
    ) -> AppendInfo:
        """Appends a marker, by default with the next epoch."""
        if epoch is None:
            entry = self.log.producers.get(producer_id)
            epoch = 1 if entry is None else entry.epoch + 1
        control_type = ControlType.COMMIT if commits else ControlType.ABORT
        return self.log.appender.append_end_transaction(
            producer_id, epoch, control_type, coordinator_epoch, leader_epoch=self.leader_epoch, now_ms=self.now_ms
        )

    def copy_marker(self, producer_id: int, *, commits: bool) -> None:
        """Appends a marker that does not raise the epoch, as logs of Kafka before version 4 have it."""
        entry = self.log.producers.get(producer_id)
        marker = EndTxnMarker(ControlType.COMMIT if commits else ControlType.ABORT, 0)
        batch = encode_end_txn_marker(
            marker,
            timestamp_ms=self.now_ms,
            producer_id=producer_id,
            producer_epoch=0 if entry is None else entry.epoch,
        )
        prefix = placement_prefix(read_header(batch), self.log.log_end_offset, self.leader_epoch)
        self.log.follower.append(prefix + batch[CRC_START:], now_ms=self.now_ms)

    def flush(self) -> int:
        plan = self.log.flusher.prepare()
        if plan is not None:
            plan.run()
            self.log.flusher.mark_flushed(plan)
        return self.log.bounds.raise_high_watermark(self.log.recovery_point)

    def fill(self, batches: int, value: bytes = b"v") -> None:
        """Appends that many batches of one record and flushes."""
        for _ in range(batches):
            self.append(value)
        self.flush()

    def set_config(self, **changes: object) -> None:
        self.config = replace(self.config, **changes)  # type: ignore[arg-type]
        self.log.update_config(self.config)

    def files(self, ending: str = "") -> list[str]:
        return sorted(path.name for path in self.directory.iterdir() if path.name.endswith(ending))

    def path(self, name: str) -> Path:
        return self.directory / name

    def segment_path(self, base_offset: int, kind: str = ".log") -> Path:
        return self.directory / f"{base_offset:020d}{kind}"


def make_batch(
    *values: bytes,
    timestamp_ms: int = START_MS,
    producer: tuple[int, int, int] | None = None,
    rows: bool = False,
    is_transactional: bool = False,
) -> bytes:
    producer_id, epoch, sequence = producer or (-1, -1, -1)
    batch = encode_batch(
        list(values) or [b"v"],
        timestamps_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=is_transactional,
    )
    return to_rows(next(iter(iter_batches(batch)))) if rows else batch


def read_batches(log: Log, offset: int, *, max_bytes: int = 1 << 20, **options: object) -> list[RecordBatch]:
    """The whole batches that one read gives."""
    data = log.reader.read(offset, max_bytes, **options)  # type: ignore[arg-type]
    return [batch for part in data.slices for batch in iter_batches(part.pread())]


def read_values(log: Log, offset: int | None = None, *, bound: str = "log_end") -> list[bytes | None]:
    """Every value from `offset`, or the log's start, to the end, as a consumer gets them."""
    position = log.log_start_offset if offset is None else offset
    values: list[bytes | None] = []
    while batches := read_batches(log, position, bound=bound):
        for batch in batches:
            wanted = (value for at, value in zip(batch.offsets(), batch.values(), strict=True) if at >= position)
            values.extend(wanted)
            position = batch.next_offset
    return values
