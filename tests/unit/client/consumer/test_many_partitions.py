"""What a consumer of 10,000 partitions does for a response that is about one of them."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from warmlog.consumer.fetcher import Changes, Fetcher, Turns
from warmlog.consumer.options import ConsumerOptions
from warmlog.consumer.partition_reader import PartitionReader
from warmlog_protocol.batch import encode_batch
from warmlog_protocol.messages import FetchedPartition, FetchRequest, FetchResponse
from warmlog_transport.options import ConnectionOptions

PARTITIONS = 10_000
BATCH = encode_batch([b"x" * 1000], timestamps_ms=[5])


class Looked(PartitionReader):
    """Counts how often any of them is looked at."""

    count = 0

    def wants_data(self, room_bytes: int) -> bool:
        Looked.count += 1
        return super().wants_data(room_bytes)

    @property
    def has_something(self) -> bool:
        Looked.count += 1
        return super().has_something

    @property
    def is_at_end(self) -> bool:
        Looked.count += 1
        return super().is_at_end


class OneBroker:
    """A cluster and its only connection: keeps requests, until the test responds."""

    def __init__(self) -> None:
        self.options = ConnectionOptions()
        self.connection: OneBroker | None = self
        self.requests: list[tuple[FetchRequest, Callable[[Any], None]]] = []

    def leader_epoch(self, _topic: str, _partition: int) -> int:
        return 0

    def source(self, _topic: str, _partition: int) -> "OneBroker":
        return self

    def request(self, message: FetchRequest, _payload: object, respond: Callable[[Any], None], **_: object) -> None:
        self.requests.append((message, respond))

    def is_refresh_due(self) -> bool:
        return False

    def respond(self, with_data: set[int]) -> None:
        """Respond to the oldest request, with a batch of each of these partitions that is in it."""
        message, respond = self.requests.pop(0)
        parts, payload = [], b""
        for asked in message.partitions:
            data = b""
            if asked.partition in with_data:
                data = encode_batch([b"x" * 1000], timestamps_ms=[5], base_offset=asked.fetch_offset)
            end = asked.fetch_offset + 1
            parts.append(FetchedPartition("t", asked.partition, 0, "", end, end, 0, 0, b"", len(data)))
            payload += data
        respond(SimpleNamespace(result=FetchResponse(parts), payload=memoryview(payload)))


@pytest.fixture
async def consumer() -> Any:
    """A fetcher whose partitions have room for one batch each, and all of which wait for records."""
    options = ConsumerOptions(
        isolation=0,
        max_bytes=1 << 20,
        partition_max_bytes=len(BATCH),
        min_bytes=1,
        max_wait_ms=500,
        prefetch_bytes=1 << 24,
        on_out_of_range="error",
        verify_crc=True,
        max_decompressed_bytes=1 << 20,
        unavailable_timeout_ms=1000,
    )
    broker, changes, turns = OneBroker(), Changes(), Turns()
    fetcher = Fetcher(options, cast("Any", broker), changes, turns, lambda: None)
    readers = [
        Looked("t", number, b"", verify_crc=True, max_decompressed_bytes=1 << 20) for number in range(PARTITIONS)
    ]
    for reader in readers:
        turns.add(reader)
        fetcher.add(reader)
    running = asyncio.create_task(fetcher.run())
    await asyncio.sleep(0)
    yield SimpleNamespace(broker=broker, turns=turns, fetcher=fetcher, readers=readers)
    running.cancel()


async def test_a_response_about_one_of_many_looks_at_few(consumer: Any) -> None:
    broker, turns, fetcher = consumer.broker, consumer.turns, consumer.fetcher
    assert [len(message.partitions) for message, _ in broker.requests] == [PARTITIONS]
    broker.respond({7})
    await asyncio.sleep(0)
    assert [len(message.partitions) for message, _ in broker.requests] == [PARTITIONS - 1]
    for turn in range(12):
        if turn == 2:  # each was looked at once
            Looked.count = 0
        reader = turns.next()
        assert reader is consumer.readers[7]
        assert reader.take() is not None
        fetcher.look_at(reader)
        await asyncio.sleep(0)
        assert [len(message.partitions) for message, _ in broker.requests] == [PARTITIONS - 1, 1]
        broker.requests.reverse()
        broker.respond({7})
        await asyncio.sleep(0)
        assert not turns.is_at_end
    assert Looked.count < 200


async def test_partitions_that_got_nothing_come_first_in_the_next_request(consumer: Any) -> None:
    broker, turns, fetcher = consumer.broker, consumer.turns, consumer.fetcher
    broker.respond({0, 2, 3})
    while (reader := turns.next()) is not None:
        assert reader.take() is not None
        fetcher.look_at(reader)
    await asyncio.sleep(0)
    ((message, _),) = broker.requests
    assert [asked.partition for asked in message.partitions] == [1, *range(4, PARTITIONS), 0, 2, 3]
