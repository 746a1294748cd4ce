"""A log whose topic is compacted, and a whole compaction of it in one call."""

from collections.abc import Iterable
from pathlib import Path

from unit.broker.storage.log_room import LogRoom, read_batches
from warmlog_broker.storage.cleaner.cleaner import Cleaning, CleaningStats
from warmlog_broker.storage.cleaner.throttle import CleaningPace
from warmlog_broker.storage.config import MAX_INT64, UNLIMITED, LogConfig
from warmlog_broker.storage.log.appender import AppendInfo
from warmlog_protocol.batch import ControlType, encode_batch, iter_batches, read_batch, to_rows
from warmlog_protocol.codec.compression import Codec

COMPACT = LogConfig(
    cleanup_policy="compact",
    segment_bytes=1024,
    segment_ms=MAX_INT64,
    index_interval_bytes=100,
    segment_index_bytes=480,
    retention_ms=UNLIMITED,
    delete_retention_ms=1000,
)
PLENTY_BYTES = 1 << 20

Pair = tuple[bytes | None, bytes | None]
Found = tuple[int, int, bytes | None, bytes | None]


def pair(key: int, value: int | None = None) -> Pair:
    return b"k%d" % key, None if value is None else b"v%d" % value


class CompactionRoom(LogRoom):
    """A room whose log can be compacted."""

    def __init__(self, root: Path, config: LogConfig = COMPACT) -> None:
        super().__init__(root, config)

    @property
    def clean_below(self) -> int:
        """Where the last compaction ended."""
        return self.log.compaction.first_dirty_offset

    def forget_compaction(self) -> None:
        """As if the checkpoint had been lost."""
        self.log.compaction.first_dirty_offset = 0

    def put(
        self,
        *pairs: Pair,
        timestamp_ms: int | None = None,
        producer: tuple[int, int, int] = (-1, -1, -1),
        rows: bool = False,
        codec: Codec = Codec.NONE,
    ) -> AppendInfo:
        """Appends one batch of keys and values; `producer` is id, epoch and base sequence."""
        batch = encode_batch(
            [value for _, value in pairs],
            keys=[key for key, _ in pairs],
            timestamps_ms=self.now_ms if timestamp_ms is None else timestamp_ms,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
            codec=codec,
        )
        return self.append_bytes(to_rows(read_batch(batch)) if rows else batch)

    def put_in_transaction(self, *pairs: Pair, producer: tuple[int, int, int], rows: bool = False) -> AppendInfo:
        """Appends one batch of a transaction, as `append_in_transaction` does."""
        producer_id, epoch, sequence = self.after_markers(producer)
        guard = self.log.producers.start_verification(producer_id, epoch, self.now_ms)
        batch = encode_batch(
            [value for _, value in pairs],
            keys=[key for key, _ in pairs],
            timestamps_ms=self.now_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        return self.append_bytes(to_rows(read_batch(batch)) if rows else batch, guard)

    def put_each(self, pairs: Iterable[Pair]) -> None:
        """Appends a batch for each pair, rolls and flushes: a closed segment, or several."""
        for pair in pairs:
            self.put(pair)
        self.roll()

    def roll(self) -> None:
        self.log.local.roll(self.now_ms)
        self.flush()

    def begin(self, *, memory_bytes: int = PLENTY_BYTES, **options: int) -> Cleaning:
        """A compaction of all that may be compacted, before anything is read."""
        found = self.log.compaction.range(self.now_ms)
        pace = CleaningPace()
        task = self.log.compaction.begin(found, pace)
        return Cleaning(task, pace, memory_bytes=memory_bytes, now_ms=self.now_ms, **options)

    def finish(self, cleaning: Cleaning) -> CleaningStats:
        """Rewrites every group and takes it into the log."""
        compaction = self.log.compaction
        for group in cleaning.groups():
            rewritten = cleaning.rewrite(group)
            if rewritten.segment is not None:
                replacement = compaction.take(rewritten)
                replacement.sync()
                while not self.log.local.advance(replacement):
                    replacement.sync()
        compaction.end(cleaning.end_offset)
        return cleaning.stats

    def compact(self, *, memory_bytes: int = PLENTY_BYTES) -> CleaningStats:
        cleaning = self.begin(memory_bytes=memory_bytes)
        cleaning.build_map()
        return self.finish(cleaning)

    def records(self) -> list[Found]:
        """(offset, timestamp, key, value) of every record, as a reader from the start gets them."""
        log = self.log
        found: list[Found] = []
        position = log.log_start_offset
        while batches := read_batches(log, position, bound="log_end"):
            for batch in batches:
                if not batch.header.is_control:
                    columns = zip(batch.offsets(), batch.timestamps_ms(), batch.keys(), batch.values(), strict=True)
                    found.extend(record for record in columns if record[0] >= position)
                position = batch.next_offset
        return found

    def committed(self) -> list[tuple[int, bytes | None, bytes | None]]:
        """(offset, key, value) of what a reader of committed records gets, dropping what it is told was aborted."""
        log = self.log
        found: list[tuple[int, bytes | None, bytes | None]] = []
        aborting: set[int] = set()
        position = log.log_start_offset
        while True:
            data = log.reader.read(position, 1 << 20, bound="committed")
            batches = [batch for part in data.slices for batch in iter_batches(part.pread())]
            if not batches:
                return found
            coming = sorted(data.aborted, key=lambda aborted: aborted.first_offset, reverse=True)
            for batch in batches:
                header = batch.header
                while coming and coming[-1].first_offset <= header.last_offset:
                    aborting.add(coming.pop().producer_id)
                if header.is_control:
                    if batch.control_type is ControlType.ABORT:
                        aborting.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in aborting):
                    records = zip(batch.offsets(), batch.keys(), batch.values(), strict=True)
                    found.extend(record for record in records if record[0] >= position)
                position = header.next_offset

    def committed_state(self) -> dict[bytes | None, bytes]:
        """The last committed value of each key."""
        values: dict[bytes | None, bytes] = {}
        for _, key, value in self.committed():
            values.pop(key, None)
            if value is not None:
                values[key] = value
        return values

    def offsets(self) -> list[int]:
        return [offset for offset, *_ in self.records()]

    def last_offsets_of_batches(self) -> list[int]:
        found: list[int] = []
        position = self.log.log_start_offset
        while batches := read_batches(self.log, position, bound="log_end"):
            found += [batch.last_offset for batch in batches]
            position = batches[-1].next_offset
        return found

    def state(self) -> dict[bytes, bytes]:
        """What a reader from the start knows in the end: the last value of each key, without deleted ones."""
        values: dict[bytes, bytes] = {}
        for _, _, key, value in self.records():
            assert key is not None
            values.pop(key, None)
            if value is not None:
                values[key] = value
        return values
