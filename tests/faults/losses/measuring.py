"""A busy broker on a disk whose power goes, and what is missing then."""

import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from random import Random

from broker_process import BrokerProcess
from faults.losses.judging import Acknowledged, Loss, Mode, loss_of
from faults.power.powered import PoweredDisk
from warmlog_protocol.batch import iter_batches
from warmlog_protocol.errors import ApiError
from warmlog_protocol.messages import ACKS_ALL, ACKS_LEADER, LATEST_TIMESTAMP
from wire_client import ConnectionEnded, WireClient, batch_of

MODES = (
    Mode("write.caching, flush.ms=200", {"write.caching": "true", "flush.ms": "200"}, ACKS_ALL, 200, None),
    Mode(
        "write.caching, flush.messages=500",
        {"write.caching": "true", "flush.ms": "60000", "flush.messages": "500"},
        ACKS_ALL,
        None,
        500,
    ),
    Mode("acks=1, flush.ms=100", {}, ACKS_LEADER, 100, None),
)
PARTITIONS = 3
RECORDS_A_BATCH = 10
VALUE_BYTES = 100
IN_FLIGHT = 5
SEGMENT_BYTES = "262144"
PAUSE_S = 0.002
NO_SYNCFS = 1_000_000
GONE = (ConnectionEnded, OSError, ApiError)
JOIN_TIMEOUT_S = 100.0
PROBE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Cut:
    """What one cut has taken, by partition. `wrong` names what must not be, whatever may be lost."""

    losses: list[Loss]
    acknowledged: int
    flush_ms: float
    """The longest flush before the cut, by an acks=all append beside the load."""
    wrong: list[str]


class Writer(threading.Thread):
    """Sends numbered records to one partition, several batches in flight, until the broker is gone."""

    def __init__(self, address: str, topic: str, partition: int, acks: int) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[Acknowledged] = []
        self._place = (address, topic, partition)
        self._acks = acks

    def run(self) -> None:
        address, topic, partition = self._place
        in_flight: deque[tuple[int, int]] = deque()
        number = 0
        try:
            with WireClient(address) as client:
                while True:
                    while len(in_flight) < IN_FLIGHT:
                        batch = batch_of([value_of(number + index) for index in range(RECORDS_A_BATCH)])
                        number += RECORDS_A_BATCH
                        sent = client.send_produce(topic, batch, partition=partition, acks=self._acks)
                        in_flight.append((sent, len(batch)))
                    correlation_id, size_bytes = in_flight.popleft()
                    offset = client.produced(correlation_id).base_offset
                    self.acknowledged.append(Acknowledged(offset, RECORDS_A_BATCH, size_bytes, time.monotonic()))
                    time.sleep(PAUSE_S)
        except GONE:
            return


class Probe(threading.Thread):
    """One acks=all append after the other to a topic of its own: how long a flush takes beside the load."""

    def __init__(self, address: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.longest_s = 0.0
        self.sent_at_s = 0.0
        self.is_answered = threading.Event()
        """Some flush has come to its end."""
        self._address = address
        self._topic = topic

    def run(self) -> None:
        try:
            with WireClient(self._address) as client:
                while True:
                    self.sent_at_s = time.monotonic()
                    client.produce(self._topic, batch_of([b"probe"]))
                    self.longest_s = max(self.longest_s, time.monotonic() - self.sent_at_s)
                    self.is_answered.set()
        except GONE:
            return


def value_of(number: int) -> bytes:
    """The value of the record with this offset."""
    return (b"%d:" % number).ljust(VALUE_BYTES, b".")


def measure(workspace: Path, mode: Mode, *, cuts: int, luck: Random) -> list[Cut]:
    """Cuts the power so many times under load."""
    with (
        PoweredDisk(workspace / "power") as disk,
        BrokerProcess(disk.path / "data", flush_syncfs_files=NO_SYNCFS) as broker,
    ):
        return [_cut(disk, broker, mode, f"busy-{number}", luck) for number in range(cuts)]


def _cut(disk: PoweredDisk, broker: BrokerProcess, mode: Mode, topic: str, luck: Random) -> Cut:
    with WireClient(broker.address) as client:
        client.create_topic(topic, PARTITIONS, segment_bytes=SEGMENT_BYTES, **mode.settings)
        client.create_topic(f"{topic}-probe")
    writers = [Writer(broker.address, topic, partition, mode.acks) for partition in range(PARTITIONS)]
    probe = Probe(broker.address, f"{topic}-probe")
    for thread in (*writers, probe):
        thread.start()
    wrong = (
        [] if probe.is_answered.wait(PROBE_TIMEOUT_S) else [f"{topic}: no flush came to its end: no loss is bounded"]
    )
    time.sleep(luck.uniform(0.5, 1.5))
    cut_at_s = disk.cut()
    broker.kill()
    for thread in (*writers, probe):
        thread.join(JOIN_TIMEOUT_S)
    flush_s = max(probe.longest_s, cut_at_s - probe.sent_at_s)
    disk.restore(luck.randrange(2**32))
    broker.start()
    losses: list[Loss] = []
    with WireClient(broker.address) as client:
        for partition, writer in enumerate(writers):
            before = [batch for batch in writer.acknowledged if batch.at_s <= cut_at_s]
            end_offset = _check_kept(client, topic, partition, wrong)
            losses.append(loss_of(before, end_offset, cut_at_s=cut_at_s, flush_s=flush_s, mode=mode))
    acknowledged = sum(batch.record_count for writer in writers for batch in writer.acknowledged)
    return Cut(losses, acknowledged, 1000 * flush_s, wrong)


def _check_kept(client: WireClient, topic: str, partition: int, wrong: list[str]) -> int:
    """Where the log ends; what it holds must be the first records, with their bytes."""
    end_offset = client.offset_at(topic, LATEST_TIMESTAMP, partition=partition)
    offset = 0
    while offset < end_offset:
        _, payload = client.fetch(topic, offset, partition=partition)
        for batch in iter_batches(payload):
            expected = [value_of(number) for number in range(offset, offset + batch.record_count)]
            if batch.base_offset != offset or batch.values() != expected:
                wrong.append(f"{topic}-{partition}: offset {offset} does not hold what was sent")
            offset = batch.next_offset
    return end_offset
