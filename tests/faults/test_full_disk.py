"""A small real disk that is filled and freed again and again, under a broker that is not restarted."""

import asyncio
import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from integration.command_line import CommandLine, succeeded
from small_disk import small_disk
from waiting import until, wait_until
from warmlog import Admin, Consumer, DiskFull, Producer
from warmlog.producer.delivery import DeliveryFuture, RecordMetadata
from wire_client import WireClient, batch_of

MIB = 2**20
DISK_BYTES = 24 * MIB
RESERVE_BYTES = 4 * MIB
NOTICED_S = 40
BIG = b"x" * 100_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of DISK_BYTES."""
    with small_disk(tmp_path / "disk", DISK_BYTES) as path:
        yield path


async def fill(address: str, wanted: int) -> int:
    """Produces until the disk is full; how many records were acknowledged after the first `wanted` of them."""
    async with Producer(address, delivery_timeout_ms=800, linger_ms=0) as producer:
        for count in range(10_000):
            try:
                await producer.send("t", b"%d:" % (wanted + count) + BIG)
            except Exception:
                return count
    raise AssertionError("the disk was not full")


async def values(address: str) -> list[bytes]:
    async with Consumer(address, topics=["t"]) as consumer:
        return [record.value or b"" async for record in consumer.records(until="latest")]


async def produces_again(address: str, number: int) -> bool:
    """Whether a record is taken, within the time in which room must be noticed."""
    async with Producer(address, delivery_timeout_ms=int(NOTICED_S * 1000)) as producer:
        placed = await producer.send("t", b"%d:" % number + BIG)
    return placed.offset >= 0


def test_status_knows_that_the_default_reserve_is_a_small_share_of_a_small_disk(disk: Path) -> None:
    with BrokerProcess(disk / "data") as broker:
        found = json.loads(succeeded(CommandLine(broker.address)("status", "--interval", "0s", "--json")))
    assert [each["state"] for each in found["disks"]] == ["takes records"]
    assert found["disks"][0]["reserve_bytes"] == DISK_BYTES // 10


@pytest.mark.parametrize("cycles", [2, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.parametrize("reserve_bytes", [RESERVE_BYTES, 0], ids=["reserve", "to-the-last-byte"])
def test_a_disk_is_filled_and_freed_without_a_restart(disk: Path, reserve_bytes: int, cycles: int) -> None:
    ballast = disk / "ballast"
    settings = {"disk_reserve_bytes": reserve_bytes, "log_retention_check_interval_ms": 300}
    with BrokerProcess(disk / "data", **settings) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t", segment_bytes=str(MIB), file_delete_delay_ms="0", max_message_bytes="200000")
        first = next_number = 0
        for cycle in range(cycles):
            wait_for_room(disk, 12 * MIB)
            ballast.write_bytes(b"b" * (8 * MIB))
            next_number += asyncio.run(fill(broker.address, next_number))
            next_number += count_until_full(broker.address, BIG)
            read = asyncio.run(values(broker.address))
            assert len(read) - (next_number - first) in (0, 1), f"cycle {cycle}: one that was given up may be there"
            next_number = first + len(read)
            first = asyncio.run(delete_all_but_the_last(broker.address))
            ballast.unlink()
            assert asyncio.run(produces_again(broker.address, next_number)), f"cycle {cycle}"
            next_number += 1
        assert "IS OFFLINE" not in broker.output
        assert broker.terminate() == 0


def wait_for_room(disk: Path, wanted_bytes: int) -> None:
    """Returns when what was deleted has been unlinked."""
    wait_until(lambda: shutil.disk_usage(disk).free >= wanted_bytes, NOTICED_S)


def count_until_full(address: str, value: bytes) -> int:
    """How many records are taken, one by one, before one is refused."""
    with WireClient(address) as client:
        for count in range(10_000):
            try:
                client.produce("t", batch_of([value]))
            except DiskFull:
                return count
    raise AssertionError("the disk was not full")


async def delete_topic(address: str) -> None:
    async with Admin(address) as admin:
        await admin.delete_topic("t")


async def delete_all_but_the_last(address: str) -> int:
    """Deletes records while the disk is full; the offset of the first that is left."""
    async with Admin(address) as admin:
        (partition,) = (await admin.describe_topic("t")).partitions
        first = partition.high_watermark - 1
        await admin.delete_records({("t", 0): first})
    return first


def test_a_full_disk_takes_no_topics_but_lets_them_be_deleted(disk: Path) -> None:
    with BrokerProcess(disk / "data", disk_reserve_bytes=RESERVE_BYTES) as broker, WireClient(broker.address) as client:
        client.create_topic("t")
        (disk / "ballast").write_bytes(b"b" * (DISK_BYTES - 2 * MIB))
        assert count_until_full(broker.address, b"value") > 0
        with pytest.raises(DiskFull, match=r"disk\.reserve\.bytes"):
            client.produce("t", batch_of([b"value"]))
        with pytest.raises(DiskFull):
            client.create_topic("another")
        assert client.fetch("t", 0)[0].high_watermark > 0
        asyncio.run(delete_topic(broker.address))
        client.close()
        broker.restart()
        assert "takes no records" in broker.output


async def test_a_producer_that_waits_for_room_says_so_once_and_its_record_arrives(
    disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with BrokerProcess(disk / "data", disk_reserve_bytes=RESERVE_BYTES, log_retention_check_interval_ms=300) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t")
        (disk / "ballast").write_bytes(b"b" * (DISK_BYTES - 2 * MIB))
        count_until_full(broker.address, b"value")
        async with Producer(broker.address) as producer:
            with caplog.at_level(logging.WARNING, logger="warmlog"):
                waiting = asyncio.ensure_future(settled(producer.send("t", b"late")))
                await until(lambda: bool(caplog.messages))
                await asyncio.sleep(1)
            assert not waiting.done()
            (disk / "ballast").unlink()
            assert (await asyncio.wait_for(waiting, NOTICED_S)).offset > 0
        (warning,) = caplog.messages
        for part in ("t-0", "disk.reserve.bytes", "trying again"):
            assert part in warning


async def settled(sent: DeliveryFuture) -> RecordMetadata:
    return await sent
