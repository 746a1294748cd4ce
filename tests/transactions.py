"""Transactions in single partitions of a running broker, and partitions with transactions that Kafka wrote.

They are appended as a coordinator would, in the broker's own thread.
"""

import re
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

from broker_process import BrokerProcess
from broker_thread import BrokerThread
from warmlog_broker import Broker
from warmlog_broker.replica.commitment import OnDurable
from warmlog_broker.replica.partition import Partition
from warmlog_broker.storage.log.appender import AppendInfo
from warmlog_protocol.batch import ControlType, encode_batch, iter_batches, to_rows
from warmlog_protocol.errors import ApiError
from warmlog_protocol.messages import ACKS_ALL
from wire_client import WireClient

SAMPLE = Path(__file__).parent / "data" / "kafka-sample" / "transfers-0"
NOW_MS = 1_700_000_000_000
TIMEOUT_S = 40


class TransactionalProducer:
    """Writes into one partition of a broker in a thread; every call returns when it is durable."""

    def __init__(self, broker: BrokerThread, topic: str, producer_id: int, *, partition: int = 0) -> None:
        self.producer_id = producer_id
        self._broker = broker
        self._place = (topic, partition)
        self._sequence = self._epoch = 0

    def send(self, *values: bytes, rows: bool = False) -> int:
        """Appends one batch to the open transaction, or opens one; returns the first offset."""
        batch = encode_batch(
            values,
            timestamps_ms=NOW_MS,
            producer_id=self.producer_id,
            producer_epoch=self._epoch,
            base_sequence=self._sequence,
            is_transactional=True,
        )
        if rows:
            batch = to_rows(next(iter(iter_batches(batch))))

        def append(partition: Partition, on_durable: OnDurable) -> AppendInfo:
            guard = partition.log.producers.start_verification(self.producer_id, self._epoch, NOW_MS)
            return partition.append(
                batch, ACKS_ALL, on_durable, now_ms=NOW_MS, next_producer_id=self.producer_id + 1, guard=guard
            )

        first_offset = self._append(append)
        self._sequence += len(values)
        return first_offset

    def commit(self) -> int:
        """Appends the marker; returns its offset."""
        return self._end(ControlType.COMMIT)

    def abort(self) -> int:
        return self._end(ControlType.ABORT)

    def _end(self, control_type: ControlType) -> int:
        self._epoch, self._sequence = self._epoch + 1, 0
        return self._append(
            lambda partition, on_durable: partition.append_end_transaction(
                self.producer_id, self._epoch, control_type, 0, on_durable, now_ms=NOW_MS
            )
        )

    def _append(self, append: Callable[[Partition, OnDurable], AppendInfo]) -> int:
        outcome: Future[ApiError | None] = Future()

        def call(broker: Broker) -> AppendInfo:
            return append(broker.services.topics.partition(*self._place), outcome.set_result)

        info = self._broker.in_loop(call)
        assert outcome.result(TIMEOUT_S) is None
        return info.first_offset


class PrintedRecord(NamedTuple):
    """A record as Kafka's own tool prints it."""

    offset: int
    timestamp_ms: int
    key: str
    value: str | None


_BATCH = re.compile(r"baseOffset: (\d+) .*producerId: (\d+) .*isControl: (true|false) ")
_RECORD = re.compile(
    r"\| offset: (\d+) CreateTime: (\d+) keySize: \d+ valueSize: (-?\d+) .*? key: (\S+)(?: payload: (.*))?$"
)
_MARKER = re.compile(r"\| offset: (\d+) .*endTxnMarker: (COMMIT|ABORT)")


def printed_records(*, committed_only: bool) -> list[PrintedRecord]:
    """The records of the sample partition by Kafka's dump; the aborted ones too unless `committed_only`."""
    found: dict[int, PrintedRecord] = {}
    in_transaction: dict[str, list[int]] = {}
    producer_id = ""
    for line in (SAMPLE / "print-data-log.dump").read_text().splitlines():
        if batch := _BATCH.search(line):
            producer_id = batch[2]
        elif marker := _MARKER.match(line):
            for offset in in_transaction.pop(producer_id, ()):
                if marker[2] == "ABORT" and committed_only:
                    del found[offset]
        elif record := _RECORD.match(line):
            offset = int(record[1])
            value = None if record[3] == "-1" else record[5]
            found[offset] = PrintedRecord(offset, int(record[2]), record[4], value)
            in_transaction.setdefault(producer_id, []).append(offset)
    assert not in_transaction
    return [found[offset] for offset in sorted(found)]


def serve_sample(broker: BrokerProcess, topic: str, *, segment_bytes: int = 1 << 20) -> None:
    """Puts Kafka's partition into the data directory of a broker that runs, under a topic of its own."""
    with WireClient(broker.address) as client:
        client.create_topic(topic, retention_ms="-1", segment_bytes=str(segment_bytes))
    broker.kill()
    directory = broker.data_dir / f"{topic}-0"
    for path in directory.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    for path in SAMPLE.iterdir():
        if path.suffix != ".dump" and path.name != "partition.metadata":
            shutil.copy(path, directory / path.name)
    broker.start()
