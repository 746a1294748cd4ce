"""A process that produces and reads while it gets SIGINT all the time; it prints how often it was interrupted.

python interrupted_child.py HOST:PORT TOPIC SEED
"""

import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

from warmlog.arrow_write.producer import ArrowBatch, BlockingProducer
from warmlog.arrow_write.rows import ArrowRows, PreparedRows
from warmlog.ranges.arrow_reader import arrow_reader
from warmlog.ranges.read_settings import ReadSettings
from warmlog.sockets.cluster import BlockingCluster
from warmlog_protocol.messages import LATEST_TIMESTAMP
from warmlog_transport.options import ConnectionOptions

OPTIONS = ConnectionOptions(retry_backoff_ms=1, retry_backoff_max_ms=2)
PRODUCING, READING = 60, 30
"""So many calls are interrupted of each kind."""

T = TypeVar("T")


class Interrupted:
    """Calls again whatever SIGINT interrupts; a thread sends it, every 0.1 to 10 ms, while `count` is below `most`."""

    def __init__(self, seed: int) -> None:
        self.count = 0
        self.most = PRODUCING
        self._dice = random.Random(seed)
        self._may_interrupt = False
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._interrupt, daemon=True)
        signal.signal(signal.SIGINT, self._handle)
        self._thread.start()

    def call(self, function: Callable[[], T]) -> T:
        while True:
            self._may_interrupt = True
            try:
                result = function()
                self._may_interrupt = False
            except KeyboardInterrupt:
                self.count += 1
            else:
                return result

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _handle(self, *_: object) -> None:
        if self._may_interrupt and self.count < self.most:
            self._may_interrupt = False
            raise KeyboardInterrupt

    def _interrupt(self) -> None:
        while not self._is_over.wait(10 ** self._dice.uniform(-4, -2)):
            os.kill(os.getpid(), signal.SIGINT)


def main(address: str, topic: str, seed: int) -> None:
    interrupted = Interrupted(seed)
    batches = produce(interrupted, address, topic)
    interrupted.most += READING
    while interrupted.count < interrupted.most:
        read(interrupted, address, topic, batches)
    interrupted.stop()
    print(batches)


def produce(interrupted: Interrupted, address: str, topic: str) -> int:
    """How many batches of each partition it took."""
    batches = 0
    with BlockingCluster(address, OPTIONS) as cluster, BlockingProducer(cluster, options=OPTIONS) as producer:
        while interrupted.count < interrupted.most:
            for partition in range(2):
                rows = PreparedRows(ArrowRows(pa.array([b"%d.%d" % (batches, partition)]))).span()
                batch = ArrowBatch(topic, partition, [rows], 100, 5)
                interrupted.call(lambda batch=batch: producer.send(batch))
            batches += 1
            if batches % 10 == 0:
                interrupted.call(producer.flush)
        interrupted.call(producer.flush)
        assert producer.records == 2 * batches
    return batches


def read(interrupted: Interrupted, address: str, topic: str, batches: int) -> None:
    with BlockingCluster(address, OPTIONS) as cluster:
        places = {(topic, partition): LATEST_TIMESTAMP for partition in range(2)}
        found = interrupted.call(lambda: cluster.list_offsets(places))
        assert [listed.offset for listed in found.values()] == [batches, batches]
    settings = ReadSettings(fetch_bytes=1_000, connection=OPTIONS)
    reader = interrupted.call(lambda: arrow_reader(address, [topic], settings=settings, columns=["offset", "value"]))
    rows = []
    while (made := interrupted.call(lambda: next(reader, None))) is not None:
        rows += made.to_pylist()
    expected = [(offset, b"%d.%d" % (offset, partition)) for partition in range(2) for offset in range(batches)]
    assert [(row["offset"], row["value"]) for row in rows] == expected


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
