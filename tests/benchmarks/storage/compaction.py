"""Compaction: how many records a second go through it, and how many bytes."""

import os
from pathlib import Path
from random import Random

from benchmarks.storage.figures import Figure, timed
from benchmarks.storage.logs import MAX_BATCH_BYTES, MIB, NOW_MS, drop, open_log
from warmlog_broker.storage.cleaner.cleaner import Cleaning
from warmlog_broker.storage.cleaner.throttle import CleaningPace
from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.log.validation import check_batch
from warmlog_protocol.batch import encode_batch, read_batch, to_rows
from warmlog_protocol.codec.compression import Codec

RECORDS_A_BATCH = 1000
VALUE_BYTES = 100
MEMORY_BYTES = 128 * MIB


def measure(directory: Path, rounds: int, records: int) -> list[Figure]:
    """One figure for each kind of batch."""
    kinds = ((Codec.NONE, False), (Codec.ZSTD, False), (Codec.NONE, True))
    return [compaction(directory, rounds, records, codec=codec, rows=rows) for codec, rows in kinds]


def compaction(directory: Path, rounds: int, records: int, *, codec: Codec, rows: bool = False) -> Figure:
    """A pass over a log that was never compacted, in which every key has ten values at random places."""
    figure = Figure(
        f"compaction, {'rows' if rows else 'columns'}, {codec.label}",
        {"records": records, "keys": records // 10, "value_bytes": VALUE_BYTES, "batch_records": RECORDS_A_BATCH},
    )
    for number in range(rounds):
        log = _fill(directory, records, codec, rows, Random(number))
        cleaning = _begin(log)
        mapping = timed(cleaning.build_map)
        rewriting = timed(lambda cleaning=cleaning, log=log: _rewrite(cleaning, log))  # type: ignore[misc]
        stats = cleaning.stats
        cpu_s, wall_s = mapping.cpu_s + rewriting.cpu_s, mapping.wall_s + rewriting.wall_s
        figure.runs.append(
            {
                "records_per_s_cpu": stats.read_records / cpu_s,
                "records_per_s_wall": stats.read_records / wall_s,
                "mb_per_s_cpu": stats.read_bytes / cpu_s / 1e6,
                "map_share": mapping.cpu_s / cpu_s,
                "kept": stats.kept_records / stats.read_records,
            }
        )
        drop(log)
    return figure


def _fill(directory: Path, records: int, codec: Codec, rows: bool, chance: Random) -> Log:
    log = open_log(directory, cleanup_policy="compact", segment_bytes=64 * MIB)
    for _ in range(records // RECORDS_A_BATCH):
        keys = [b"user-%010d" % chance.randrange(records // 10) for _ in range(RECORDS_A_BATCH)]
        values = [os.urandom(VALUE_BYTES // 2).hex().encode() for _ in range(RECORDS_A_BATCH)]
        batch = encode_batch(values, keys=keys, timestamps_ms=[NOW_MS] * RECORDS_A_BATCH, codec=codec)
        sealed = to_rows(read_batch(batch)) if rows else batch
        log.appender.append_as_leader(check_batch(sealed, MAX_BATCH_BYTES), leader_epoch=0, now_ms=NOW_MS)
    log.local.roll(NOW_MS)
    plan = log.flusher.prepare()
    assert plan is not None
    plan.run()
    log.bounds.raise_high_watermark(log.flusher.mark_flushed(plan))
    return log


def _begin(log: Log) -> Cleaning:
    pace = CleaningPace()
    task = log.compaction.begin(log.compaction.range(NOW_MS), pace)
    return Cleaning(task, pace, memory_bytes=MEMORY_BYTES, now_ms=NOW_MS)


def _rewrite(cleaning: Cleaning, log: Log) -> None:
    for group in cleaning.groups():
        rewritten = cleaning.rewrite(group)
        if rewritten.segment is not None:
            replacement = log.compaction.take(rewritten)
            replacement.sync()
            while not log.local.advance(replacement):
                replacement.sync()
    log.compaction.end(cleaning.end_offset)
