"""What was acknowledged is there after `kill -9`, once and in order."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from warmlog_broker.metadata import store
from warmlog_protocol.batch import iter_batches
from warmlog_protocol.errors import ApiError
from warmlog_protocol.messages import LATEST_TIMESTAMP
from wire_client import ConnectionEnded, WireClient, batch_of

IN_FLIGHT = 5
RECORDS_A_BATCH = 20
GONE = (ConnectionEnded, ConnectionError, TimeoutError, OSError)


class StubbornProducer(threading.Thread):
    """Produces numbered records to one partition, a few batches in flight, and sends again what was not answered."""

    def __init__(self, address: str, partition: int, producer: tuple[int, int]) -> None:
        super().__init__(daemon=True)
        self.acknowledged = 0
        """Batches, counted from the first, that were acknowledged."""
        self.errors: list[BaseException] = []
        self.must_stop = threading.Event()
        self._address = address
        self._partition = partition
        self._producer = producer

    def run(self) -> None:
        try:
            while not self.must_stop.is_set():
                try:
                    self._produce()
                except GONE:
                    time.sleep(0.02)
        except BaseException as error:
            self.errors.append(error)

    def _produce(self) -> None:
        with WireClient(self._address, timeout_s=40) as client:
            in_flight: list[tuple[int, int]] = []
            next_batch = self.acknowledged
            while not self.must_stop.is_set() or in_flight:
                while len(in_flight) < IN_FLIGHT and not self.must_stop.is_set():
                    in_flight.append(
                        (next_batch, client.send_produce("t", self._batch(next_batch), partition=self._partition))
                    )
                    next_batch += 1
                number, correlation_id = in_flight.pop(0)
                produced = client.produced(correlation_id)
                assert produced.base_offset == number * RECORDS_A_BATCH
                self.acknowledged = number + 1

    def _batch(self, number: int) -> bytes:
        first = number * RECORDS_A_BATCH
        values = [record(self._partition, first + index) for index in range(RECORDS_A_BATCH)]
        return batch_of(values, producer=self._producer, base_sequence=first)


def record(partition: int, number: int) -> bytes:
    return b"%d:%d" % (partition, number)


def values_of(client: WireClient, partition: int) -> list[bytes | None]:
    """All records of a partition, whose offsets must have no gap."""
    values: list[bytes | None] = []
    end_offset = client.offset_at("t", LATEST_TIMESTAMP, partition=partition)
    while len(values) < end_offset:
        _, payload = client.fetch("t", len(values), partition=partition)
        for batch in iter_batches(payload):
            assert batch.base_offset == len(values)
            values += batch.values()
    return values


@dataclass(frozen=True, slots=True)
class Tally:
    """What became of one partition's records."""

    acknowledged: int
    found: int
    lost: int
    duplicated: int
    reordered: int
    strange: int

    @classmethod
    def of(cls, values: Sequence[bytes | None], partition: int, acknowledged: int) -> "Tally":
        """Counts in what the log holds; `acknowledged` records were, the first ones."""
        wanted = {record(partition, number): number for number in range(max(acknowledged, len(values)))}
        numbers = [wanted[value] for value in values if value is not None and value in wanted]
        present = set(numbers)
        return cls(
            acknowledged=acknowledged,
            found=len(values),
            lost=sum(number not in present for number in range(acknowledged)),
            duplicated=len(numbers) - len(present),
            reordered=sum(later < earlier for earlier, later in pairwise(numbers)),
            strange=len(values) - len(numbers),
        )

    @property
    def is_as_promised(self) -> bool:
        return not (self.lost or self.duplicated or self.reordered or self.strange)


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        pytest.param([0, 1, 2], "", id="as promised"),
        pytest.param([0, 1, 2, 3], "", id="one more than was acknowledged"),
        pytest.param([0, 1], "lost", id="the last one lost"),
        pytest.param([0, 1, 1, 2], "duplicated", id="one twice"),
        pytest.param([0, 2, 1], "reordered", id="two changed places"),
        pytest.param([0, 1, 2, 9], "strange", id="one that nobody sent yet"),
    ],
)
def test_the_tally_notices_what_is_wrong(values: list[int], wrong: str) -> None:
    tally = Tally.of([record(0, number) for number in values], 0, acknowledged=3)
    assert tally.is_as_promised is not bool(wrong)
    for name in ("lost", "duplicated", "reordered", "strange"):
        assert getattr(tally, name) == (name == wrong)


@pytest.mark.parametrize(
    ("write_caching", "kills"),
    [
        pytest.param(False, 10, id="fsync"),
        pytest.param(True, 3, id="write-caching"),
        pytest.param(False, 200, id="fsync-long", marks=pytest.mark.slow),
        pytest.param(True, 200, id="write-caching-long", marks=pytest.mark.slow),
    ],
)
def test_every_acknowledged_record_survives_kill_9_once_and_in_order(
    tmp_path: Path, write_caching: bool, kills: int, tell: Callable[[str], None]
) -> None:
    started_s = time.monotonic()
    with BrokerProcess(tmp_path / "data", write_caching=write_caching) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t", partitions=3, segment_bytes="65536", index_interval_bytes="512")
            producers = [StubbornProducer(broker.address, partition, client.producer_id()) for partition in range(3)]
        for producer in producers:
            producer.start()
        kill_under_load(broker, producers, kills)
        with WireClient(broker.address) as client:
            tallies = [
                Tally.of(values_of(client, partition), partition, producer.acknowledged * RECORDS_A_BATCH)
                for partition, producer in enumerate(producers)
            ]
    tell(
        f"{kills} kills in {time.monotonic() - started_s:.0f} s, acks=all, "
        f"{'write.caching' if write_caching else 'fsync'}: {sum(tally.acknowledged for tally in tallies)} records "
        f"acknowledged, {sum(tally.lost for tally in tallies)} lost, "
        f"{sum(tally.duplicated for tally in tallies)} duplicated, "
        f"{sum(tally.reordered for tally in tallies)} reordered"
    )
    assert all(tally.is_as_promised for tally in tallies), tallies


def kill_under_load(broker: BrokerProcess, producers: list[StubbornProducer], kills: int) -> None:
    """Kills and starts the broker so many times. Between two kills every producer gets something through."""
    randomness = random.Random(7)
    for _ in range(kills):
        wait_until_acknowledged(producers, batches=1)
        time.sleep(randomness.uniform(0.05, 0.4))
        broker.kill()
        broker.start()
    wait_until_acknowledged(producers, batches=20)
    for producer in producers:
        producer.must_stop.set()
    for producer in producers:
        producer.join(40)
        assert not producer.errors


def wait_until_acknowledged(producers: list[StubbornProducer], *, batches: int) -> None:
    """Returns when each producer has got so many batches through from now on."""
    before = [producer.acknowledged for producer in producers]
    deadline_s = time.monotonic() + 60
    while any(producer.acknowledged < count + batches for producer, count in zip(producers, before, strict=True)):
        assert not any(producer.errors for producer in producers), [producer.errors for producer in producers]
        assert time.monotonic() < deadline_s, "nobody produces any more"
        time.sleep(0.02)


def test_a_batch_whose_answer_was_lost_is_not_appended_again_after_a_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t")
            producer = client.producer_id()
            batches = [batch_of([b"%d" % number], producer=producer, base_sequence=number) for number in range(8)]
            for batch in batches[:6]:
                client.produce("t", batch)
        for stop in (broker.kill, broker.terminate):
            stop()
            broker.start()
            with WireClient(broker.address) as client:
                assert [client.produce("t", batch).base_offset for batch in batches[:6]] == [0, 1, 2, 3, 4, 5]
                assert client.offset_at("t", LATEST_TIMESTAMP) == 6
        with WireClient(broker.address) as client:
            assert client.produce("t", batches[6]).base_offset == 6


def test_a_producer_id_is_never_given_out_again(tmp_path: Path) -> None:
    seen: set[int] = set()
    with BrokerProcess(tmp_path / "data", constants={store: {"BLOCK_IDS": 3}}) as broker:
        for _ in range(3):
            with WireClient(broker.address) as client:
                for _ in range(5):
                    producer_id, _ = client.producer_id()
                    assert producer_id not in seen
                    seen.add(producer_id)
            broker.kill()
            broker.start()


def test_the_leader_epoch_rises_at_each_unclean_start(tmp_path: Path) -> None:
    def epoch(client: WireClient) -> int:
        client.produce("t", batch_of([b"a"]))
        return client.fetch("t", 0)[0].leader_epoch

    with BrokerProcess(tmp_path / "data") as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t")
            assert epoch(client) == 0
        broker.restart()
        with WireClient(broker.address) as client:
            assert epoch(client) == 0
        broker.kill()
        broker.start()
        with WireClient(broker.address) as client:
            assert epoch(client) == 1
            _, payload = client.fetch("t", 0)
            assert [batch.header.partition_leader_epoch for batch in iter_batches(payload)] == [0, 0, 1]


def test_an_unclean_start_is_needed_no_more_after_a_clean_stop(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t")
            client.produce("t", batch_of([b"a"]))
        broker.kill()
        broker.start()
        broker.restart()
        with WireClient(broker.address) as client:
            with pytest.raises(ApiError):
                client.fetch("t", 2)
            assert client.fetch("t", 0)[0].high_watermark == 1
