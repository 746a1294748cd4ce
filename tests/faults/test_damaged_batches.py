"""A consumer that meets a damaged batch is told once, by its offsets, and gets all the others."""

import asyncio
from pathlib import Path

import warmlog
from broker_process import BrokerProcess
from wire_client import WireClient, batch_of

BATCHES = 7
DAMAGED = 3
RECORDS = 25
LEADER_EPOCH = range(12, 16)
"""No CRC covers it, and a consumer does not look at it."""
HEADER_BYTES = [position for position in range(61) if position not in LEADER_EPOCH]


async def read_all(address: str, topic: str) -> tuple[list[int], list[tuple[int, int]]]:
    """The offsets that can be read, and the range of each error."""
    seen: list[int] = []
    errors: list[tuple[int, int]] = []
    async with warmlog.Consumer(address, topics=[topic]) as consumer:
        batches = consumer.batches(until="latest")
        while True:
            try:
                seen += (await asyncio.wait_for(anext(batches), 40)).offsets
            except warmlog.UnreadableBatch as error:
                errors.append((error.base_offset, error.next_offset))
            except StopAsyncIteration:
                return seen, errors


def test_one_wrong_bit_in_any_byte_of_a_header_is_one_error_that_names_the_batch(tmp_path: Path) -> None:
    first, end = DAMAGED * RECORDS, (DAMAGED + 1) * RECORDS
    with BrokerProcess(tmp_path / "data", flush_ms=60_000) as broker:
        with WireClient(broker.address) as client:
            for position in HEADER_BYTES:
                client.create_topic(f"byte-{position}")
                for _ in range(BATCHES):
                    client.produce(f"byte-{position}", batch_of([b"value"] * RECORDS), acks=1)
        assert broker.terminate() == 0
        for position in HEADER_BYTES:
            segment = broker.data_dir / f"byte-{position}-0" / "00000000000000000000.log"
            data = bytearray(segment.read_bytes())
            data[DAMAGED * len(data) // BATCHES + position] ^= 1
            segment.write_bytes(data)
        broker.start()
        for position in HEADER_BYTES:
            seen, errors = asyncio.run(read_all(broker.address, f"byte-{position}"))
            assert errors == [(first, end)], f"byte {position}: {errors}"
            assert seen == [*range(first), *range(end, BATCHES * RECORDS)], f"byte {position}"
