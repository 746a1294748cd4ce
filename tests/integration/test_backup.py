"""`warmlog backup` of running brokers, and `warmlog restore`: what was acknowledged before a backup is in it."""

import asyncio
import json
import shutil
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import warmlog
from broker_process import BrokerProcess
from forked import run_forked
from integration.command_line import Done, environment, error_line, succeeded
from transactional_client import TransactionalClient, committed, wait_until_loaded
from waiting import wait_until
from warmlog.blocking import Admin, Consumer
from warmlog_broker.storage.directory.data_dir import RECOVERY_POINTS_NAME
from warmlog_broker.storage.directory.offset_checkpoint import read_offsets
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.tools.backup import backup
from warmlog_broker.tools.backup.manifest import complete_backups, read_manifest
from warmlog_broker.tools.backup.partition import back_up_partition
from warmlog_protocol.messages import InitProducerIdRequest
from wire_client import WireClient, batch_of

TINY = {"segment.bytes": "16384", "file.delete.delay.ms": "0"}


def run(*arguments: object) -> Done:
    return run_forked("warmlog", arguments, environment())


def back_up(broker: BrokerProcess, directory: Path, *options: object) -> dict[str, object]:
    done = run("backup", directory, "--data-dir", broker.data_dir, "--json", *options)
    found: dict[str, object] = json.loads(succeeded(done))
    return found


async def values(broker: BrokerProcess, topic: str) -> dict[int, list[bytes | None]]:
    """The values of each partition, in the order of their offsets."""
    found: dict[int, list[bytes | None]] = {}
    async with warmlog.Consumer(broker.address, topics=[topic], start="earliest") as consumer:
        async for record in consumer.records(until="latest"):
            found.setdefault(record.partition, []).append(record.value)
    return found


async def produce(broker: BrokerProcess, topic: str, first: int, count: int, *, partition: int = 0) -> None:
    async with warmlog.Producer(broker.address) as producer:
        for number in range(first, first + count):
            await producer.send(topic, f"{number:06}".encode() * 20, partition=partition)
            if number % 50 == 0:
                await producer.flush()


async def create(broker: BrokerProcess, name: str, partitions: int = 1, **settings: str) -> None:
    async with warmlog.Admin(broker.address) as admin:
        await admin.create_topic(name, partitions=partitions, configs={**TINY, **settings})


async def checkpointed(broker: BrokerProcess, end_offset: int) -> None:
    """Wait until the checkpoint says that flights-0 is on disk up to `end_offset`: segments below it are settled."""
    key = TopicPartition("flights", 0)
    async with asyncio.timeout(40):
        while read_offsets(broker.data_dir / RECOVERY_POINTS_NAME).get(key) != end_offset:  # noqa: ASYNC110 - a file
            await asyncio.sleep(0.01)


def restored(backups: object, *data_dirs: Path) -> BrokerProcess:
    """A broker on what was restored, after `warmlog log verify` has found nothing wrong."""
    options = [option for path in data_dirs for option in ("--data-dir", path)]
    succeeded(run("restore", backups, *options))
    for path in data_dirs:
        assert run("log", "verify", path).returncode == 0, run("log", "verify", path).stdout.decode()
    return BrokerProcess(*data_dirs)


async def test_a_backup_beside_producers_has_all_that_was_acknowledged_before_it(tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    is_backed_up = asyncio.Event()

    async def produce_on(partition: int) -> None:
        first = 400
        while not is_backed_up.is_set():
            await produce(broker, "flights", first, 50, partition=partition)
            first += 50

    with BrokerProcess(tmp_path / "data") as broker:
        await create(broker, "flights", 3)
        for partition in range(3):
            await produce(broker, "flights", 0, 400, partition=partition)
        before = await values(broker, "flights")
        writing = [asyncio.create_task(produce_on(each)) for each in range(3)]
        await asyncio.sleep(0.1)
        await asyncio.to_thread(back_up, broker, backups)
        is_backed_up.set()
        for task in writing:
            await task
        after = await values(broker, "flights")
    with restored(backups, tmp_path / "restored") as broker:
        found = await values(broker, "flights")
        for partition in range(3):
            assert found[partition] == after[partition][: len(found[partition])]
            assert len(found[partition]) >= len(before[partition])
        await produce(broker, "flights", 9000, 10)
        assert (await values(broker, "flights"))[0][-1] == b"009009" * 20


async def test_the_next_backup_links_what_has_not_changed_and_each_can_be_restored_alone(tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    with BrokerProcess(tmp_path / "data") as broker:
        await create(broker, "flights")
        await produce(broker, "flights", 0, 1000)
        await checkpointed(broker, 1000)
        first = back_up(broker, backups)
        await produce(broker, "flights", 1000, 10)
        await checkpointed(broker, 1010)
        second = back_up(broker, backups, "--keep", 1)
        assert second["removed"] == [first["path"]]
        after = await values(broker, "flights")
    assert int(str(second["linked_bytes"])) > 100_000
    assert int(str(second["copied_bytes"])) < 40_000
    with restored(backups, tmp_path / "restored") as broker:
        assert await values(broker, "flights") == after


def test_backups_of_one_broker_are_not_removed_for_those_of_another(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "one") as broker:
        first = back_up(broker, tmp_path / "backups")
    with BrokerProcess(tmp_path / "two") as broker:
        done = run("backup", tmp_path / "backups", "--data-dir", broker.data_dir, "--keep", 1)
    assert "is of another cluster: give each broker a directory of its own" in error_line(done)
    assert [path for path in (tmp_path / "backups").iterdir() if path.is_dir()] == [Path(str(first["path"]))]


def test_a_backup_that_is_removed_in_part_is_not_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise OSError(path)

    with BrokerProcess(tmp_path / "data") as broker:
        back_up(broker, tmp_path / "backups")
        with monkeypatch.context() as context:
            context.setattr(shutil, "rmtree", fail)
            with pytest.raises(OSError, match="backups"):
                backup.back_up(broker.data_dir, tmp_path / "backups", now_ms=time.time_ns() // 1_000_000, keep=1)
        assert len(complete_backups(tmp_path / "backups")) == 1
        back_up(broker, tmp_path / "backups")
    assert len([path for path in (tmp_path / "backups").iterdir() if path.is_dir()]) == 2


def test_of_a_backup_that_was_moved_away_only_the_link_is_removed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        first = Path(str(back_up(broker, tmp_path / "backups")["path"]))
        first.rename(tmp_path / "archive")
        first.symlink_to(tmp_path / "archive")
        second = back_up(broker, tmp_path / "backups", "--keep", 1)
    assert second["removed"] == [str(first)]
    assert complete_backups(tmp_path / "backups") == [Path(str(second["path"]))]
    assert read_manifest(tmp_path / "archive").files


async def test_what_is_missing_in_the_last_backup_is_taken_from_the_data_directory(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        await create(broker, "flights")
        await produce(broker, "flights", 0, 500)
        await checkpointed(broker, 500)
        first = Path(str(back_up(broker, tmp_path / "backups")["path"]))
        shutil.rmtree(first / "data-0" / "flights-0")
        back_up(broker, tmp_path / "backups")
    with restored(tmp_path / "backups", tmp_path / "restored") as broker:
        assert len((await values(broker, "flights"))[0]) == 500


async def test_retention_and_deletion_beside_a_backup_do_not_change_it(tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    with BrokerProcess(tmp_path / "data") as broker:
        await create(broker, "flights")
        await produce(broker, "flights", 0, 1000)
        before = await values(broker, "flights")
        back_up(broker, backups)
        async with warmlog.Admin(broker.address) as admin:
            await admin.delete_records({("flights", 0): 900})
            await admin.delete_topic("flights")
        await create(broker, "flights")
        await produce(broker, "flights", 5000, 10)
        newest = back_up(broker, backups)
        after = await values(broker, "flights")
    oldest = min(path for path in backups.iterdir() if path.is_dir())
    with restored(oldest, tmp_path / "older") as broker:
        assert await values(broker, "flights") == before
    with restored(newest["path"], tmp_path / "newer") as broker:
        assert await values(broker, "flights") == after


async def test_a_backup_beside_compaction_has_the_last_value_of_each_key(tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    with BrokerProcess(tmp_path / "data", log_cleaner_backoff_ms=20) as broker:
        await create(broker, "accounts", **compacted)
        async with warmlog.Producer(broker.address) as producer:

            async def write(first: int) -> None:
                for number in range(first, first + 1000):
                    await producer.send("accounts", f"{number:06}".encode() * 20, key=f"{number % 50}".encode())
                await producer.flush()

            await write(0)
            writing = asyncio.create_task(write(1000))
            for _ in range(3):
                await asyncio.to_thread(back_up, broker, backups)
            await writing
    with restored(backups, tmp_path / "restored") as broker:
        found = {}
        async with warmlog.Consumer(broker.address, topics=["accounts"], start="earliest") as consumer:
            async for record in consumer.records(until="latest"):
                found[record.key] = int((record.value or b"")[:6])
    assert sorted(found) == sorted(f"{number}".encode() for number in range(50))
    assert all(number >= 950 and number % 50 == int(key or b"") for key, number in found.items())


async def test_all_data_directories_are_backed_up_and_restored_elsewhere(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "one", tmp_path / "two") as broker:
        await create(broker, "flights", 4)
        for partition in range(4):
            await produce(broker, "flights", partition, 20, partition=partition)
        before = await values(broker, "flights")
        back_up(broker, tmp_path / "backups")
    done = run("restore", tmp_path / "backups", "--data-dir", tmp_path / "three")
    assert "the backup has 2 data directories" in error_line(done)
    with restored(tmp_path / "backups", tmp_path / "three", tmp_path / "four") as broker:
        assert await values(broker, "flights") == before
    assert list((tmp_path / "four").glob("flights-*"))


async def test_restored_directories_are_not_mixed_with_those_that_they_are_copies_of(tmp_path: Path) -> None:
    originals = tmp_path / "one", tmp_path / "two"
    copies = tmp_path / "restored-one", tmp_path / "restored-two"
    with BrokerProcess(*originals) as broker:
        await create(broker, "flights", 2)
        back_up(broker, tmp_path / "backups")
        with restored(tmp_path / "backups", *copies) as other:
            other.kill()
        (tmp_path / "linked").symlink_to(originals[0])
        assert run("backup", tmp_path / "others", "--data-dir", tmp_path / "linked").returncode == 0
        assert run("backup", tmp_path / "others", "--data-dir", copies[0]).returncode == 0, "a broker has used them"
        succeeded(run("restore", tmp_path / "backups", "--data-dir", tmp_path / "a", "--data-dir", tmp_path / "b"))
        assert "Start a broker on all of them" in error_line(
            run("backup", tmp_path / "others", "--data-dir", tmp_path / "a")
        )


def test_a_partition_that_moves_meanwhile_is_there_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with BrokerProcess(tmp_path / "one", tmp_path / "two") as broker:
        asyncio.run(create(broker, "flights"))
        asyncio.run(produce(broker, "flights", 0, 20))
        taken: list[Path] = []

        def take(source: Path, *rest: Any) -> int:
            taken.append(source)
            first_offset = back_up_partition(source, *rest)
            if len(taken) == 1:
                other = tmp_path / ("two" if source.parent.name == "one" else "one")
                with Admin(broker.address) as admin:
                    admin.move_partition("flights", 0, other)
                wait_until(lambda: not source.exists())
                raise FileNotFoundError(source)
            return first_offset

        monkeypatch.setattr(backup, "back_up_partition", take)
        made = backup.back_up(tmp_path / "one", tmp_path / "backups", now_ms=time.time_ns() // 1_000_000)
    assert {path.name for path in taken} == {"flights-0"}
    assert len(list(made.path.glob("data-*/flights-0"))) == 1
    with restored(tmp_path / "backups", tmp_path / "three", tmp_path / "four") as broker:
        assert len(asyncio.run(values(broker, "flights"))[0]) == 20


async def test_committed_offsets_are_restored(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        await create(broker, "flights")
        await produce(broker, "flights", 0, 100)
        async with warmlog.Consumer(broker.address, topics=["flights"], group="billing") as consumer:
            async for record in consumer.records():
                if record.offset == 49:
                    await consumer.commit(record)
                    break
        back_up(broker, tmp_path / "backups")
    with restored(tmp_path / "backups", tmp_path / "restored") as broker:
        async with warmlog.Consumer(broker.address, topics=["flights"], group="billing") as consumer:
            async for record in consumer.records():
                assert record.offset == 50
                break


def test_producer_ids_that_were_assigned_after_the_backup_are_not_assigned_again(tmp_path: Path) -> None:
    """Their producers may still run, and the broker would take the batches of one for those of the other."""

    def assigned(broker: BrokerProcess, count: int) -> set[int]:
        with closing(WireClient(broker.address)) as client:
            return {client.call(InitProducerIdRequest()).producer_id for _ in range(count)}

    with BrokerProcess(tmp_path / "data") as broker:
        assigned(broker, 1)
        back_up(broker, tmp_path / "backups")
        afterwards = assigned(broker, 3000)
    with restored(tmp_path / "backups", tmp_path / "restored") as broker:
        assert not afterwards & assigned(broker, 3000)


def test_transactions_that_ended_after_a_partition_was_copied_are_aborted_there(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, transaction_coordinator_partitions=1, group_coordinator_partitions=1) as broker:
        with TransactionalClient(broker.address, "id") as producer:
            for topic in ("in", "out"):
                producer.client.create_topic(topic)
            producer.initialise().send("out", b"before")
            producer.commit()
            producer.send("out", b"aborted")
            producer.commit_offset("etl", "in", 0)
            broker.kill()
            copied = [shutil.copytree(data / name, tmp_path / name) for name in ("out-0", "__groups-0")]
        broker.start()
        with TransactionalClient(broker.address, "id") as producer:
            wait_until_loaded(producer.client)
            producer.initialise()
            for _ in range(3):
                producer.send("out", b"not in the copy")
                producer.commit()
            broker.kill()
        for path in copied:
            shutil.rmtree(data / path.name)
            shutil.copytree(path, data / path.name)
        broker.start()
        with TransactionalClient(broker.address, "id") as producer:
            wait_until_loaded(producer.client)
            producer.client.produce("out", batch_of([b"plain"]))
            wait_until(lambda: committed(producer.client, "out") == [b"before", b"plain"])
            producer.initialise()
            producer.send("in", b"value")
            producer.send("out", b"after")
            producer.commit()
            assert committed(producer.client, "out") == [b"before", b"plain", b"after"]
        with Consumer(broker.address, topics=["in"], group="etl", start="earliest") as consumer:
            assert next(consumer.records()).value == b"value"


def test_the_transaction_coordinator_is_copied_after_all_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with BrokerProcess(tmp_path / "data", transaction_coordinator_partitions=1) as broker:
        with TransactionalClient(broker.address, "id") as producer:
            producer.client.create_topic("zz")
            producer.initialise().commit_offset("etl", "zz", 0)
        taken: list[str] = []

        def take(source: Path, *rest: Any) -> int:
            taken.append(source.name.rpartition("-")[0])
            return back_up_partition(source, *rest)

        monkeypatch.setattr(backup, "back_up_partition", take)
        backup.back_up(broker.data_dir, tmp_path / "backups", now_ms=time.time_ns() // 1_000_000)
    assert list(dict.fromkeys(taken)) == ["__groups", "zz", "__transactions"]


def test_what_must_come_later_is_copied_again_after_new_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with BrokerProcess(tmp_path / "data", transaction_coordinator_partitions=1) as broker:
        with TransactionalClient(broker.address, "id") as producer:
            producer.client.create_topic("before")
            producer.initialise().send("before", b"value")
            producer.commit()
        taken: list[str] = []

        def take(source: Path, *rest: Any) -> int:
            taken.append(source.name)
            first_offset = back_up_partition(source, *rest)
            if taken == ["before-0", "__transactions-0"]:
                with TransactionalClient(broker.address, "id") as producer:
                    producer.client.create_topic("meanwhile")
                    for _ in range(3):
                        producer.initialise().send("meanwhile", b"value")
                        producer.commit()
            return first_offset

        monkeypatch.setattr(backup, "back_up_partition", take)
        backup.back_up(broker.data_dir, tmp_path / "backups", now_ms=time.time_ns() // 1_000_000)
    assert taken == ["before-0", "__transactions-0", "meanwhile-0", "__transactions-0"]
    with (
        restored(tmp_path / "backups", tmp_path / "restored") as broker,
        TransactionalClient(broker.address, "id") as producer,
    ):
        wait_until_loaded(producer.client)
        producer.initialise().send("meanwhile", b"after")
        producer.commit()
        assert committed(producer.client, "meanwhile") == [b"value"] * 3 + [b"after"]


def flip_a_bit(backup: Path) -> Path:
    """Damage the last log file of a backup, and return its path."""
    log = sorted(backup.glob("data-0/flights-0/*.log"))[-1]
    content = bytearray(log.read_bytes())
    content[100] ^= 1
    log.write_bytes(content)
    return log


async def test_a_restore_refuses_what_is_damaged_and_a_broker_its_remains(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        await create(broker, "flights")
        await produce(broker, "flights", 0, 500)
        path = Path(str(back_up(broker, tmp_path / "backups")["path"]))
    log = flip_a_bit(path)
    done = run("restore", path, "--data-dir", tmp_path / "restored")
    assert f"{log} is damaged: its SHA-256 is not that in manifest.json" in error_line(done)
    done = run("restore", path, "--data-dir", tmp_path / "restored")
    assert "is not empty" in error_line(done)
    done = run("serve", "--data-dir", tmp_path / "restored", "--listen", "127.0.0.1:0")
    assert "metadata.log is missing" in done.stderr.decode()
    assert done.returncode != 0


async def test_a_broker_refuses_a_restore_that_failed_at_the_end_of_the_metadata_log(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        await create(broker, "flights")
        path = Path(str(back_up(broker, tmp_path / "backups")["path"]))
    metadata = path / "data-0" / "metadata.log"
    content = metadata.read_bytes()
    metadata.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert f"{metadata} is damaged: its SHA-256 is not" in error_line(
        run("restore", path, "--data-dir", tmp_path / "restored")
    )
    done = run("serve", "--data-dir", tmp_path / "restored", "--listen", "127.0.0.1:0")
    assert "metadata.log is missing" in done.stderr.decode()


async def test_a_restore_goes_into_the_root_of_a_new_disk(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        await create(broker, "flights")
        await produce(broker, "flights", 0, 10)
        back_up(broker, tmp_path / "backups")
    (tmp_path / "disk" / "lost+found").mkdir(parents=True)
    with restored(tmp_path / "backups", tmp_path / "disk") as broker:
        assert len((await values(broker, "flights"))[0]) == 10


@pytest.mark.parametrize("directory", ["data-7", "data-0/../outside"])
async def test_a_manifest_with_files_outside_of_the_data_directories_is_refused(tmp_path: Path, directory: str) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        await create(broker, "flights")
        path = Path(str(back_up(broker, tmp_path / "backups")["path"]))
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace("data-0/flights-0", f"{directory}/flights-0"))
    done = run("restore", path, "--data-dir", tmp_path / "restored")
    assert f"{manifest} is damaged: '{directory}/flights-0/" in error_line(done)
    assert not (tmp_path / "restored").exists()


@pytest.mark.parametrize("where", ["no data directory", "no backup"])
def test_what_is_no_data_directory_or_no_backup_is_refused(tmp_path: Path, where: str) -> None:
    if where == "no data directory":
        done = run("backup", tmp_path / "backups", "--data-dir", tmp_path)
        assert "has no metadata.log" in error_line(done)
        assert not any(tmp_path.iterdir())
    else:
        done = run("restore", tmp_path, "--data-dir", tmp_path / "restored")
        assert "is not a backup and has no complete one in it" in error_line(done)
