"""Columnar batches as rows. The last ones are kept: several readers at the end of a log ask for the same."""

import threading
import time
from collections import OrderedDict

from warmlog_broker.runtime.counters import Conversions
from warmlog_broker.storage.cleaner.throttle import Turns
from warmlog_broker.storage.segment.file_records import FileSlice
from warmlog_protocol.batch import HEADER_BYTES, read_batch, to_rows

_Key = tuple[str, int, bytes]
"""The path of a file, a position in it, and the header that is there: with its offset, size, CRC and producer fields it
tells a batch from another one that was written there after the file was cut."""


class ConvertedBatches:
    """Converts batches, in any thread, and keeps the most recently used ones: at most `max_bytes`."""

    def __init__(self, max_bytes: int, max_decompressed_bytes: int, counted: Conversions) -> None:
        self._max_bytes = max_bytes
        self._max_decompressed_bytes = max_decompressed_bytes
        self._kept: OrderedDict[_Key, bytes] = OrderedDict()
        self._lock = threading.Lock()
        self.counted = counted

    def rows_of(self, stored: FileSlice) -> bytes:
        """Return the batch that is all of `stored` as rows.

        The thread rests after each half millisecond of work, so that the event loop gets its turns. CorruptBatch if
        the batch is damaged; OSError from the disk.
        """
        key = (stored.file.path, stored.position, stored.slice(0, HEADER_BYTES).pread())
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                self.counted.hits += 1
                return kept
        began_s = time.perf_counter()
        batch = read_batch(stored.pread(), max_decompressed_bytes=self._max_decompressed_bytes)
        rows = to_rows(batch, Turns().rest)
        with self._lock:
            self.counted.batches += 1
            self.counted.seconds += time.perf_counter() - began_s
            self._keep(key, rows)
        return rows

    def _keep(self, key: _Key, rows: bytes) -> None:
        if key in self._kept or len(rows) > self._max_bytes:
            return
        self._kept[key] = rows
        self.counted.kept_bytes += len(rows)
        while self.counted.kept_bytes > self._max_bytes:
            _, dropped = self._kept.popitem(last=False)
            self.counted.kept_bytes -= len(dropped)
