"""Reading a coordinator's state from the log of its partition, up to the end of the log.

A thread reads the files and takes the batches apart; the records are replayed in the event loop, a limited number in
each turn. The log may grow, be compacted and be moved meanwhile. A record that is damaged ends the load: a state
without it would be wrong, and no error would say so.
"""

import asyncio
from collections.abc import Iterable
from concurrent.futures import Executor
from itertools import compress

from warmlog_broker.coordinator.framework.decision import Record, State
from warmlog_broker.replica.partition import Partition
from warmlog_broker.storage.segment.file_records import FileSlice
from warmlog_broker.storage.segment.segment_indexes import LostIndex
from warmlog_protocol.batch import iter_batches
from warmlog_protocol.batch.header import NO_OFFSET

READ_BYTES = 1 << 20
RECORDS_A_TURN = 200
"""Records that are replayed in one turn of the event loop: about 1 ms."""
RETRY_S = 0.01
"""The pause after a read that found nothing: the rest is not durable yet, or files were being replaced."""


async def load(partition: Partition, state: State, threads: Executor, reading: asyncio.Lock) -> int:
    """Replay all records of `partition` into `state`, and return their number.

    It holds `reading` while there is something to read, but not while it waits for what is not committed yet: that may
    take as long as another broker does, and no other load waits for it. No turn of the event loop is between the look
    at the end of the log and the return: `state` is what the log holds. Raises what `LogReader.read` raises,
    CorruptBatch, or an OSError from the disk.
    """
    count = 0
    offset = partition.log.reader.earliest().offset
    while True:
        async with reading:
            has_found = True
            while has_found:
                previous_offset = offset
                offset, records = await _read(partition, offset, threads)
                for begin in range(0, len(records), RECORDS_A_TURN):
                    for record in records[begin : begin + RECORDS_A_TURN]:
                        state.replay(record)
                    await asyncio.sleep(0)
                count += len(records)
                if offset >= partition.log.log_end_offset:
                    return count
                has_found = offset > previous_offset
        await asyncio.sleep(RETRY_S)


async def _read(partition: Partition, offset: int, threads: Executor) -> tuple[int, list[Record]]:
    """Return some records from `offset` on, and the offset after them."""
    loop = asyncio.get_running_loop()
    try:
        data = partition.log.reader.read(offset, READ_BYTES)
    except LostIndex as error:
        try:
            await asyncio.shield(asyncio.wrap_future(error.rebuild.begin(threads)))
        finally:
            error.rebuild.finish()
        return offset, []
    if data.slices:
        return await loop.run_in_executor(threads, _records_in, data.slices[0], offset)
    return max(offset, data.next_offset if data.next_offset != NO_OFFSET else data.start.offset), []


def _records_in(piece: FileSlice, first_offset: int) -> tuple[int, list[Record]]:
    """In a thread: return the records of `piece` from `first_offset` on, and the offset after them."""
    found: list[Record] = []
    next_offset = first_offset
    for batch in iter_batches(piece.pread()):
        next_offset = batch.next_offset
        if batch.header.is_control:
            continue
        records: Iterable[tuple[bytes | None, bytes | None]] = zip(batch.keys(), batch.values(), strict=True)
        if batch.base_offset < first_offset:
            records = compress(records, (offset >= first_offset for offset in batch.offsets()))
        found.extend(Record(key, value) for key, value in records if key is not None)
    return next_offset, found
