"""Transactions in the partitions of a running broker, and partitions with transactions that Kafka wrote.

No client can write transactions yet: they are appended through the broker's own log, in its own thread.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from broker_process import BrokerProcess
from broker_thread import BrokerThread
from warmlog_broker import Broker
from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.record.validation import check_batch
from warmlog_protocol.batch import ControlType, encode_batch, iter_batches, to_rows
from wire_client import WireClient

SAMPLE = Path(__file__).parent / "data" / "kafka-sample" / "transfers-0"
NOW_MS = 1_700_000_000_000


class TransactionalProducer:
    """Writes into one partition of a broker in a thread; every call returns when it is durable."""

    def __init__(self, broker: BrokerThread, topic: str, producer_id: int, *, partition: int = 0) -> None:
        self.producer_id = producer_id
        self._broker = broker
        self._place = (topic, partition)
        self._sequence = 0

    def send(self, *values: bytes, rows: bool = False) -> int:
        """Appends one batch to the open transaction, or opens one; returns the first offset."""
        return self._in_log(lambda log: self._append(log, values, rows=rows))

    def commit(self) -> int:
        """Appends the marker; returns its offset."""
        return self._in_log(lambda log: self._end(log, ControlType.COMMIT))

    def abort(self) -> int:
        return self._in_log(lambda log: self._end(log, ControlType.ABORT))

    def _append(self, log: Log, values: tuple[bytes, ...], *, rows: bool) -> int:
        batch = encode_batch(
            values,
            timestamps_ms=NOW_MS,
            producer_id=self.producer_id,
            producer_epoch=0,
            base_sequence=self._sequence,
            is_transactional=True,
        )
        if rows:
            batch = to_rows(next(iter(iter_batches(batch))))
        guard = log.start_verification(self.producer_id, self._sequence, 0, NOW_MS)
        self._sequence += len(values)
        checked = check_batch(batch, 1 << 20, may_be_transactional=True)
        return log.append_as_leader(checked, leader_epoch=log.latest_epoch, now_ms=NOW_MS, guard=guard).first_offset

    def _end(self, log: Log, control_type: ControlType) -> int:
        info = log.append_end_transaction(
            self.producer_id, 0, control_type, 0, leader_epoch=log.latest_epoch, now_ms=NOW_MS
        )
        return info.first_offset

    def _in_log(self, change: Callable[[Log], int]) -> int:
        def call(broker: Broker) -> int:
            partition = broker.services.topics.partition(*self._place)
            offset = change(partition.log)
            plan = partition.prepare_flush()
            if plan is not None:
                plan.run()
                partition.flushed(plan)
            partition.wake()
            return offset

        return self._broker.in_loop(call)


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
