"""A log whose topic is compacted, and a whole compaction of it in one call."""

from collections.abc import Iterable
from pathlib import Path

from unit.broker.log.log_room import LogRoom, read_batches
from warmlog_broker.log.cleaner import Cleaning, CleaningStats
from warmlog_broker.log.cleaner_sources import CleaningPace
from warmlog_broker.log.config import MAX_INT64, UNLIMITED, LogConfig
from warmlog_broker.log.log import AppendInfo
from warmlog_protocol.batch import encode_batch, read_batch, to_rows
from warmlog_protocol.compression import Codec

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

    def put_each(self, pairs: Iterable[Pair]) -> None:
        """Appends a batch for each pair, rolls and flushes: a closed segment, or several."""
        for pair in pairs:
            self.put(pair)
        self.roll()

    def roll(self) -> None:
        self.log.roll(self.now_ms)
        self.flush()

    def begin(self, *, memory_bytes: int = PLENTY_BYTES) -> Cleaning:
        """A compaction of all that may be compacted, before anything is read."""
        found = self.log.compaction.range(self.now_ms)
        pace = CleaningPace()
        task = self.log.compaction.begin(found, pace, self.now_ms)
        return Cleaning(task, pace, memory_bytes=memory_bytes, now_ms=self.now_ms)

    def finish(self, cleaning: Cleaning) -> CleaningStats:
        """Rewrites every group and takes it into the log."""
        compaction = self.log.compaction
        for group in cleaning.groups():
            rewritten = cleaning.rewrite(group)
            if rewritten.segment is not None:
                replacement = compaction.take(rewritten, self.now_ms)
                replacement.sync()
                while not compaction.advance(replacement):
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
