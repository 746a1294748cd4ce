"""What clients say of a partition that is offline, as its data directory is away: once, and not nothing."""

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import warmlog
from broker_process import BrokerProcess
from integration.command_line import CommandLine, Done, error_line
from wire_client import WireClient, batch_of

PARTITIONS = 4
TIMEOUT_S = 40


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [tmp_path_factory.mktemp(name) for name in ("one", "two")]


@pytest.fixture(scope="module")
def broker(disks: list[Path]) -> Iterator[BrokerProcess]:
    """Serves half of the partitions of `t`: the other directory was away when it started again."""
    with BrokerProcess(*disks) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t", partitions=PARTITIONS)
            for partition in range(PARTITIONS):
                client.produce("t", batch_of([b"%d" % partition]), partition=partition)
        broker.kill()
        disks[1].rename(disks[1].with_name("elsewhere"))
        broker.start()
        yield broker


@pytest.fixture
def lost(disks: list[Path], broker: BrokerProcess) -> list[int]:
    away = disks[1].with_name("elsewhere")
    found = sorted(int(path.name.partition("-")[2]) for path in away.glob("t-[0-9]"))
    assert len(found) == PARTITIONS // 2
    return found


@pytest.fixture
def warmlog_command(broker: BrokerProcess) -> CommandLine:
    return CommandLine(broker.address)


def check_error(done: Done, lost: list[int]) -> None:
    line = error_line(done)
    assert all(f"t-{partition}" in line for partition in lost)
    assert "is its disk mounted?" in line


def test_offsets_tells_those_of_the_others_and_fails(warmlog_command: CommandLine, lost: list[int]) -> None:
    done = warmlog_command("offsets", "t")
    check_error(done, lost)
    kept = [partition for partition in range(PARTITIONS) if partition not in lost]
    assert done.stdout.decode().splitlines() == [f"t:{partition}:1" for partition in kept]
    assert warmlog_command("offsets", "t", "--partition", kept[0]).returncode == 0
    check_error(warmlog_command("offsets", "t", "--at", "2020-01-01T00:00", "--json"), lost)


def test_describe_shows_the_others_and_fails(warmlog_command: CommandLine, lost: list[int]) -> None:
    done = warmlog_command("topic", "describe", "t", "--json")
    check_error(done, lost)
    rows = json.loads(done.stdout)["partitions"]
    assert [row["log_end_offset"] for row in rows] == [-1 if each in lost else 1 for each in range(PARTITIONS)]
    assert [row["partition"] for row in rows if row["error"] is not None] == lost
    assert all("is its disk mounted?" in rows[each]["error"] for each in lost)
    assert warmlog_command("topic", "list").returncode == 0


async def test_an_admin_raises_the_error_at_once(broker: BrokerProcess, lost: list[int]) -> None:
    async with asyncio.timeout(TIMEOUT_S), warmlog.Admin(broker.address) as admin:
        with pytest.raises(warmlog.StorageError, match=f"t-{lost[0]}"):
            await admin.list_offsets("t", "latest")
        deleted = await admin.delete_records({("t", partition): 1 for partition in range(PARTITIONS)})
        refused = [partition for (_, partition), result in deleted.items() if isinstance(result, warmlog.StorageError)]
        assert refused == lost


@pytest.mark.parametrize("where", [["--from", "earliest", "--to", "latest"], ["--from", "0"]], ids=" ".join)
def test_consume_says_why_nothing_comes(warmlog_command: CommandLine, lost: list[int], where: list[str]) -> None:
    process = warmlog_command.start("consume", "t", "--partition", lost[0], *where)
    with process:
        assert process.stderr is not None
        line = process.stderr.readline().decode()
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read().decode()
    assert f"t-{lost[0]}" in line
    assert line.endswith("; trying again\n")
    assert "offline" in line
    assert "trying again" not in rest


def test_produce_says_why_it_waits_and_goes_on(warmlog_command: CommandLine, lost: list[int]) -> None:
    process = warmlog_command.start("produce", "t", "--partition", lost[0])
    with process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"a\n")
        process.stdin.close()
        line = process.stderr.readline().decode()
        process.kill()
    assert line.startswith(f"warmlog: t-{lost[0]} is offline: ")
    assert line.endswith("; trying again\n")


async def test_a_record_that_was_given_up_says_why(broker: BrokerProcess, lost: list[int]) -> None:
    async with asyncio.timeout(TIMEOUT_S), warmlog.Producer(broker.address, delivery_timeout_ms=2000) as producer:
        with pytest.raises(warmlog.DeliveryTimeout, match=f"t-{lost[0]} is offline"):
            await producer.send("t", b"x", partition=lost[0])
