"""An etcd that is lost for good: `warmlog cluster recover`, and backups of a cluster's brokers."""

import asyncio
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import asdict

from broker_process import BrokerFailed
from cluster_processes import ClusterProcesses, all_are_in_sync, ask, run
from etcd_process import needs_etcd
from waiting import wait_until
from warmlog import Acl, Admin, Consumer, Producer
from warmlog.cli.app import build_program

pytestmark = needs_etcd

PARTITIONS = 4
COUNT = 40
ACL = Acl("User:alice", "read", "topic", "kept")
LIMITS = {"producer_byte_rate": 1_000_000}


async def fill(cluster: ClusterProcesses) -> None:
    """Have a topic with records, a commit of a group, a transaction, a user, a right and a quota."""
    async with Admin(cluster.addresses) as admin:
        await admin.create_topic("kept", partitions=PARTITIONS, configs={"retention.ms": 86_400_000})
        await admin.create_user("alice", "secret of alice")
        await admin.create_acls([ACL])
        await admin.alter_quotas(LIMITS, user="alice")
    await produce(cluster, 0, COUNT)
    async with Producer(cluster.addresses, transactional_id="t") as producer, producer.transaction():
        await producer.send("kept", b"%d" % COUNT, partition=0)
    async with Consumer(cluster.addresses, topics=["kept"], group="readers", start="earliest") as consumer:
        async for _ in consumer.records(until="latest"):
            pass
        await consumer.commit()


async def produce(cluster: ClusterProcesses, first: int, end: int) -> None:
    async with Producer(cluster.addresses) as producer:
        for number in range(first, end):
            await producer.send("kept", b"%d" % number, partition=number % PARTITIONS)


async def check(cluster: ClusterProcesses, numbers: set[int]) -> None:
    """Check that all of `fill` is there, and records with these numbers."""
    async with Consumer(cluster.addresses, topics=["kept"], isolation="read_committed") as consumer:
        found = [int(record.value or b"") async for record in consumer.records(until="latest")]
        assert sorted(found) == sorted(numbers)
    async with Admin(cluster.addresses) as admin:
        described = await admin.describe_topic("kept")
        assert described.configs["retention.ms"].value == "86400000"
        assert [user.name for user in await admin.list_users()] == ["alice"]
        assert await admin.describe_acls() == [ACL]
        assert [asdict(quota)["limits"] for quota in await admin.describe_quotas()] == [LIMITS]
        committed = await admin.committed_offsets("readers")
        assert sum(each.offset for each in committed.values()) >= COUNT
    async with Producer(cluster.addresses, transactional_id="t") as producer, producer.transaction():
        await producer.send("kept", b"0", partition=1)


def start_all(cluster: ClusterProcesses) -> None:
    for broker in cluster.brokers.values():
        broker.start()


def no_broker_is_registered(cluster: ClusterProcesses) -> bool:
    return all(row["state"] == "away" for row in ask(cluster, "brokers"))


def directories(cluster: ClusterProcesses) -> list[Path]:
    return [broker.data_dir for broker in cluster.brokers.values()]


@pytest.mark.slow
def test_a_cluster_goes_on_after_its_etcd_was_lost_and_its_keys_were_rebuilt(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path / "c") as cluster:
        asyncio.run(fill(cluster))
        cluster.etcd.lose_all()
        wait_until(lambda: all("ETCD HAS GONE BACK" in broker.output for broker in cluster.brokers.values()))
        asyncio.run(produce(cluster, COUNT + 1, 2 * COUNT))
        cluster.brokers[1].kill()
        for node in (2, 3):
            assert cluster.brokers[node].terminate() == 0
        with pytest.raises(BrokerFailed, match="see `warmlog cluster recover`"):
            cluster.brokers[1].start()
        told = run(cluster, "recover", *directories(cluster), "--dry-run")
        assert "All records that were acknowledged with acks=all are on these brokers." in told
        with pytest.raises(BrokerFailed, match="see `warmlog cluster recover`"):
            cluster.brokers[2].start()
        assert "give --yes" in run(cluster, "recover", *directories(cluster), code=2)
        assert "the keys are rebuilt" in run(cluster, "recover", *directories(cluster), "--yes")
        start_all(cluster)
        wait_until(lambda: all_are_in_sync(cluster))
        asyncio.run(check(cluster, {*range(2 * COUNT)}))
        for broker in cluster.brokers.values():
            broker.restart()
        wait_until(lambda: all_are_in_sync(cluster))
        for broker in cluster.brokers.values():
            broker.terminate()
        wait_until(lambda: no_broker_is_registered(cluster))
        assert "there is nothing to recover" in run(cluster, "recover", *directories(cluster), "--yes", code=1)


@pytest.mark.slow
def test_an_old_backup_of_etcd_freezes_the_cluster_until_its_keys_are_rebuilt(tmp_path: Path) -> None:
    """One broker's machine is lost, too; the others are asked each on its own machine."""
    with ClusterProcesses(tmp_path / "c") as cluster:
        (member,) = cluster.etcd.members
        member.kill()
        shutil.copytree(member.directory, tmp_path / "backup of etcd")
        cluster.etcd.start(member)
        asyncio.run(fill(cluster))
        run(cluster, "elect", "--preferred")
        member.kill()
        shutil.rmtree(member.directory)
        shutil.copytree(tmp_path / "backup of etcd", member.directory)
        cluster.etcd.start(member)
        wait_until(lambda: all("ETCD HAS GONE BACK" in broker.output for broker in cluster.brokers.values()))
        asyncio.run(produce(cluster, COUNT + 1, 2 * COUNT))
        for broker in cluster.brokers.values():
            broker.kill()
        shutil.rmtree(cluster.brokers[3].data_dir)
        saved = [tmp_path / f"broker-{node}.json" for node in (1, 2)]
        for node, path in zip((1, 2), saved, strict=True):
            assert "1 broker, " in run(cluster, "recover", cluster.brokers[node].data_dir, "--save", path)
            assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(BrokerFailed, match="etcd has lost what it had confirmed"):
            cluster.brokers[1].start()
        wait_until(lambda: no_broker_is_registered(cluster))
        one = ask(cluster, "recover", saved[0], "--dry-run")
        assert {each["topic"] for each in one["may_lack_records"]} >= {"kept"}, "two of three were not asked"
        both = ask(cluster, "recover", *saved, "--yes")
        assert both["may_lack_records"] == [], "of three, two have whatever was acknowledged"
        cluster.brokers[1].start()
        cluster.brokers[2].start()
        with pytest.raises(BrokerFailed, match="cluster replace 3"):
            cluster.brokers[3].start()
        run(cluster, "replace", 3, "--yes")
        cluster.brokers[3].start()
        wait_until(lambda: all_are_in_sync(cluster))
        asyncio.run(check(cluster, {*range(2 * COUNT)}))


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [(1,), (1, 2, 3)], ids=["of one broker", "of all brokers"])
def test_a_cluster_is_restored_from_backups_of_its_brokers(tmp_path: Path, nodes: tuple[int, ...]) -> None:
    def warmlog(*words: object) -> None:
        done = CliRunner().invoke(build_program(), [*map(str, words)], prog_name="warmlog")
        assert done.exit_code == 0, done.output

    with ClusterProcesses(tmp_path / "c") as cluster:
        asyncio.run(fill(cluster))
        wait_until(lambda: all_are_in_sync(cluster))
        for node in nodes:
            warmlog("backup", tmp_path / f"backups-{node}", "--data-dir", cluster.brokers[node].data_dir)
        asyncio.run(produce(cluster, COUNT + 1, 2 * COUNT))
        for broker in cluster.brokers.values():
            broker.kill()
            shutil.rmtree(broker.data_dir)
        cluster.etcd.lose_all()
        for node in nodes:
            warmlog("restore", tmp_path / f"backups-{node}", "--data-dir", cluster.brokers[node].data_dir)
        run(cluster, "recover", *(cluster.brokers[node].data_dir for node in nodes), "--yes")
        for node, broker in cluster.brokers.items():
            if node not in nodes:
                run(cluster, "replace", node, "--yes")
            broker.start()
        wait_until(lambda: all_are_in_sync(cluster))
        asyncio.run(check(cluster, {*range(COUNT + 1)}))


@pytest.mark.slow
def test_brokers_go_on_and_delete_nothing_when_the_keys_of_their_cluster_are_deleted(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path / "c", brokers=1) as cluster:
        asyncio.run(fill(cluster))
        cluster.etcd.post("/v3/kv/deleterange", {"key": "Lw==", "range_end": "MA=="})
        wait_until(lambda: "ETCD HAS GONE BACK" in cluster.brokers[1].output)
        asyncio.run(produce(cluster, COUNT + 1, 2 * COUNT))
        cluster.brokers[1].kill()
        run(cluster, "recover", *directories(cluster), "--yes")
        cluster.brokers[1].start()
        asyncio.run(check(cluster, {*range(2 * COUNT)}))
