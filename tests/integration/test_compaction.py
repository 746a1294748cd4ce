"""A compacted topic on a real broker: writing, compaction behind the writers' backs, reading with gaps, restarts."""

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path

from broker_process import BrokerProcess
from warmlog import Consumer, Producer
from warmlog_protocol.batch import encode_batch, iter_batches
from wire_client import WireClient

KEYS = 50
ROUNDS = 40


def start(tmp_path: Path, **settings: object) -> BrokerProcess:
    return BrokerProcess(tmp_path, log_cleaner_backoff_ms=20, **settings)


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def fill(client: WireClient, topic: str) -> dict[bytes, bytes]:
    """Every key many times over, and one deletion; returns what is to be known in the end."""
    state: dict[bytes, bytes] = {}
    for number in range(ROUNDS):
        keys = [b"k%d" % ((number * 7 + n) % KEYS) for n in range(25)]
        values: list[bytes | None] = [b"%d-%d" % (number, n) for n in range(25)]
        client.produce(topic, encode_batch(values, keys=keys, timestamps_ms=time.time_ns() // 1_000_000))
        state.update({key: value for key, value in zip(keys, values, strict=True) if value is not None})
    client.produce(topic, encode_batch([None], keys=[b"k3"], timestamps_ms=time.time_ns() // 1_000_000))
    del state[b"k3"]
    return state


def records_of(client: WireClient, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
    found: list[tuple[int, bytes | None, bytes | None]] = []
    position = 0
    while True:
        _, payload = client.fetch(topic, position)
        if not payload:
            return found
        for batch in iter_batches(payload):
            found += [
                record
                for record in zip(batch.offsets(), batch.keys(), batch.values(), strict=True)
                if record[0] >= position
            ]
            position = batch.next_offset


def state_of(records: list[tuple[int, bytes | None, bytes | None]]) -> dict[bytes, bytes]:
    state: dict[bytes, bytes] = {}
    for _, key, value in records:
        assert key is not None
        state.pop(key, None)
        if value is not None:
            state[key] = value
    return state


def test_a_topic_is_compacted_while_it_is_served_and_says_the_same_after_every_kind_of_restart(tmp_path: Path) -> None:
    with start(tmp_path) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("state", cleanup_policy="compact", segment_bytes="4096", min_cleanable_dirty_ratio="0")
            expected = fill(client, "state")
            wait_until(lambda: len(records_of(client, "state")) < 500)
            records = records_of(client, "state")
            assert state_of(records) == expected
            assert [offset for offset, *_ in records] == sorted({offset for offset, *_ in records})
        assert re.search(r"state-0: compacted up to offset \d+", broker.output)
        broker.restart()
        with WireClient(broker.address) as client:
            assert state_of(records_of(client, "state")) == expected
        wait_until((tmp_path / "cleaner-offset-checkpoint").exists)
        broker.kill()
        broker.start()
        with WireClient(broker.address) as client:
            assert state_of(records_of(client, "state")) == expected
            expected |= fill(client, "state")
            expected.pop(b"k3", None)
            wait_until(lambda: len(records_of(client, "state")) < 500)
            assert state_of(records_of(client, "state")) == expected


async def test_a_consumer_steps_over_the_gaps(tmp_path: Path) -> None:
    with start(tmp_path) as broker:
        async with Producer(broker.address) as producer:
            with WireClient(broker.address) as client:
                client.create_topic(
                    "state", cleanup_policy="compact", segment_bytes="4096", min_cleanable_dirty_ratio="0"
                )
            state = {}
            for number in range(600):
                key, value = b"k%d" % (number % 20), b"v%d" % number
                state[key] = value
                await producer.send("state", value, key=key)
                if number % 50 == 0:
                    await producer.flush()
            await producer.flush()
        with WireClient(broker.address) as client:
            await asyncio.to_thread(wait_until, lambda: len(records_of(client, "state")) < 400)
            expected = records_of(client, "state")
        async with Consumer(broker.address, topics=["state"], start="earliest") as consumer:
            found = [(record.offset, record.key, record.value) async for record in consumer.records(until="latest")]
        assert found == expected
        assert state_of(found) == state
