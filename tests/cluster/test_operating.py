"""What an operator does with a cluster by `warmlog cluster`, on real brokers and their etcd."""

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker_process import BrokerFailed, BrokerProcess
from cluster_processes import ClusterProcesses, all_are_in_sync, ask, run
from etcd_process import EtcdProcess, needs_etcd
from forked import Constants
from small_disk import small_disk
from waiting import until, wait_until
from warmlog import Admin, Producer, blocking
from warmlog.cli.app import build_program
from warmlog_broker.cluster import orders, session
from warmlog_broker.cluster import view as view_module
from warmlog_broker.cluster.keys import Keys, OrderValue, to_bytes
from warmlog_broker.cluster.records import PartitionKey
from warmlog_broker.cluster.view import View
from warmlog_broker.etcd.client import EtcdClient
from warmlog_broker.etcd.coordination import Put, Succeeded

pytestmark = needs_etcd


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    """No test ends the session of one of its brokers."""
    with ClusterProcesses(tmp_path_factory.mktemp("cluster"), broker_session_timeout_ms=20_000) as cluster:
        yield cluster


def create(broker: BrokerProcess, topic: str, replication_factor: int) -> None:
    with blocking.Admin(broker.address) as admin:
        admin.create_topic(topic, partitions=1, replication_factor=replication_factor)


def produce(broker: BrokerProcess, topic: str, *values: bytes) -> None:
    with blocking.Producer(broker.address) as producer:
        for value in values:
            producer.send(topic, value).result()


def values_of(broker: BrokerProcess, topic: str) -> list[bytes]:
    with blocking.Consumer(broker.address, topics=[topic]) as consumer:
        return [bytes(record.value or b"") for record in consumer.records(until="latest")]


def nodes_of(cluster: ClusterProcesses, topic: str) -> list[int]:
    """The brokers that have files of the topic's first partition."""
    return [node for node, broker in cluster.brokers.items() if (broker.data_dir / f"{topic}-0").exists()]


def leads(cluster: ClusterProcesses) -> dict[int, int]:
    return {row["node"]: row["leads"] for row in ask(cluster, "brokers")}


def is_away(cluster: ClusterProcesses, node: int) -> bool:
    return {row["node"]: row["state"] for row in ask(cluster, "brokers")}[node] == "away"


def test_a_partition_moves_to_other_brokers_with_its_records(cluster: ClusterProcesses) -> None:
    broker = cluster.brokers[1]
    create(broker, "moved", 1)
    produce(broker, "moved", b"1", b"2")
    (first,) = nodes_of(cluster, "moved")
    others = [node for node in cluster.brokers if node != first]
    run(cluster, "reassign", "moved", "--replicas", ",".join(map(str, others)))
    wait_until(lambda: nodes_of(cluster, "moved") == others)
    assert values_of(broker, "moved") == [b"1", b"2"]
    run(cluster, "reassign", "moved", "--replicas", "1,2,3")
    wait_until(lambda: nodes_of(cluster, "moved") == [1, 2, 3])
    wait_until(lambda: all_are_in_sync(cluster))
    assert "nothing had to be changed" in run(cluster, "reassign", "moved", "0", "--replicas", "1,2,3")

    def has_copies(*, headings: list[str]) -> bool:
        words = ["topic", "describe", "moved", "--broker", broker.address]
        told = CliRunner().invoke(build_program(), words, prog_name="warmlog").output.splitlines()
        (row,) = [line.split("\t") for line in told if line.startswith("0\t")]
        return told[told.index("\t".join(row)) - 1].split("\t")[-2:] == headings and row[-2:] == ["1,2,3"] * 2

    wait_until(lambda: has_copies(headings=["replicas", "in sync"]))


def test_a_leader_whose_disk_is_full_hands_over_and_leads_again_when_it_has_room(tmp_path: Path) -> None:
    """The other one in sync takes records; a third one has no room either."""
    constants = {orders: {"SETTLED_S": 1.0}}
    with ExitStack() as held:
        cluster = ClusterProcesses(tmp_path / "c", disk_reserve_bytes=8 << 20, broker_session_timeout_ms=20_000)
        for node in (1, 3):
            held.enter_context(small_disk(cluster.brokers[node].data_dir, 32 << 20))
        for broker in cluster.brokers.values():
            broker.constants = constants
        held.enter_context(cluster)
        with blocking.Admin(cluster.addresses) as admin:
            admin.create_topic("orders", partitions=3, replication_factor=3)
        produce(cluster.brokers[1], "orders", b"before")
        filled = [cluster.brokers[node].data_dir / "other" for node in (1, 3)]
        for path in filled:
            path.write_bytes(bytes(26 << 20))
        full = {1: (0, "full"), 2: (3, "ready"), 3: (0, "full")}
        wait_until(lambda: {row["node"]: (row["leads"], row["state"]) for row in ask(cluster, "brokers")} == full)
        for path in filled:
            path.unlink()
        wait_until(lambda: leads(cluster) == {1: 1, 2: 1, 3: 1})
        produce(cluster.brokers[1], "orders", b"after")
        assert sorted(values_of(cluster.brokers[1], "orders")) == [b"after", b"before"]


def test_a_drained_broker_leads_nothing_until_it_may_again(cluster: ClusterProcesses) -> None:
    create(cluster.brokers[1], "drained", 3)
    for node in cluster.brokers:
        assert run(cluster, "drain", str(node)) == f"broker {node} is drained\n"
        assert leads(cluster)[node] == 0
        states = {row["node"]: row["state"] for row in ask(cluster, "brokers")}
        assert states[node] == "drained"
        assert run(cluster, "drain", str(node), "--undo") == f"broker {node} may lead again\n"
    run(cluster, "elect", "--preferred")
    assert "nothing had to be changed" in run(cluster, "elect", "--preferred")


def test_another_member_of_the_in_sync_set_is_elected(cluster: ClusterProcesses) -> None:
    create(cluster.brokers[1], "elected", 3)
    for node in cluster.brokers:
        run(cluster, "elect", "elected", "--leader", str(node))
    assert "is not in sync" in run(cluster, "elect", "elected", "--leader", "9", code=1)
    assert "nothing had to be changed" in run(cluster, "elect", "elected", "0", "--unclean", "1", "--yes"), "it has one"


def test_an_election_that_would_lose_records_is_not_wanted_any_more_once_there_is_a_leader(
    cluster: ClusterProcesses,
) -> None:
    """It would be carried out when that leader is away for a moment."""
    create(cluster.brokers[1], "led", 3)
    with blocking.Admin(cluster.brokers[1].address) as admin:
        key = PartitionKey(admin.describe_topic("led").topic_id.bytes, 0)

    async def order() -> None:
        client = EtcdClient(cluster.etcd.options)
        view = View(client, Keys(cluster.cluster_id), -1)
        async with view.followed():
            done = await client.txn([], [Put(view.keys.order(*key), to_bytes(OrderValue(recover=1, nonce="late")))])
            assert isinstance(done, Succeeded)
            await view.reached(done.revision)
            await until(lambda: key not in view.orders)
            assert view.records[key].record.recovering == ""
        await client.close()

    asyncio.run(order())


def test_how_many_replicas_must_have_a_record_is_a_setting_of_the_topic(cluster: ClusterProcesses) -> None:
    create(cluster.brokers[1], "required", 3)

    def required() -> set[int]:
        return {number for topic, number in min_isr_of(cluster).items() if topic == "required"}

    assert required() == {2}, "a majority"
    with blocking.Admin(cluster.brokers[2].address) as admin:
        admin.alter_topic("required", set={"min.insync.replicas": 3})
    wait_until(lambda: required() == {3})


def min_isr_of(cluster: ClusterProcesses) -> dict[str, int]:
    """What the record of each topic's first partition says."""

    async def read() -> dict[str, int]:
        client = EtcdClient(cluster.etcd.options)
        view = View(client, Keys(cluster.cluster_id), -1)
        await view.read()
        await client.close()
        records = {key: seen.record for key, seen in view.records.items()}
        return {name: records[PartitionKey(topic.topic_id, 0)].min_isr for name, topic in view.state.topics.items()}

    return asyncio.run(read())


@pytest.mark.slow
def test_only_a_replica_that_may_lack_records_is_left_and_leads_by_an_operators_word(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path / "c", brokers=2) as cluster:
        with blocking.Admin(cluster.brokers[1].address) as admin:
            admin.create_topic("u", partitions=1, replication_factor=2, configs={"min.insync.replicas": 1})
        produce(cluster.brokers[1], "u", b"1")
        (row,) = [row for row in ask(cluster, "brokers") if not row["leads"]]
        late, leader = row["node"], 3 - row["node"]
        cluster.brokers[late].kill()
        shutil.rmtree(cluster.brokers[late].data_dir)
        wait_until(lambda: is_away(cluster, late))
        run(cluster, "replace", str(late), "--yes")
        produce(cluster.brokers[leader], "u", b"2")
        cluster.brokers[leader].kill()
        wait_until(lambda: is_away(cluster, leader))
        cluster.brokers[late].start()
        assert "no leader" in run(cluster, "status", code=1)
        run(cluster, "elect", "u", "--unclean", str(late), "--yes", "--wait", "20")
        assert values_of(cluster.brokers[late], "u") == [], "all was lost, as the operator has said"
        produce(cluster.brokers[late], "u", b"3")
        assert values_of(cluster.brokers[late], "u") == [b"3"]


def test_what_cannot_be_is_refused_with_the_reason(cluster: ClusterProcesses) -> None:
    assert "there is no topic 'no'" in run(cluster, "reassign", "no", "--replicas", "1", code=1)
    create(cluster.brokers[1], "refused", 1)
    assert "give 2 of [1, 2, 3], each once" in run(cluster, "reassign", "refused", "--replicas", "1,7", code=1)
    assert "names a broker twice" in run(cluster, "reassign", "refused", "--replicas", "1,1", code=2)
    assert "has no partition 4" in run(cluster, "reassign", "refused", "4", "--replicas", "1", code=1)
    assert "broker 1 is registered, so it runs" in run(cluster, "replace", "1", "--yes", code=1)
    assert "has no node 8" in run(cluster, "replace", "8", "--yes", code=1)
    create(cluster.brokers[1], "alone", 1)
    wait_until(lambda: len(nodes_of(cluster, "alone")) == 1)
    said = run(cluster, "replace", str(*nodes_of(cluster, "alone")), code=2)
    assert "alone-0: no other broker has all its records" in said
    assert "give --yes" in said
    assert "already" in run(cluster, "init", code=1)
    assert run(cluster, "init", "--if-not-exists") == f"cluster {cluster.cluster_id} exists\n"


@pytest.mark.slow
def test_brokers_are_upgraded_one_by_one_and_their_feature_level_is_raised_without_a_call_that_fails(
    tmp_path: Path,
) -> None:
    partitions = 30
    older: Constants = {session: {"FEATURE_LEVEL": 0}, view_module: {"FEATURE_LEVEL": 0}}
    cluster = ClusterProcesses(tmp_path / "c", broker_session_timeout_ms=6000)
    cluster.feature_level = 0
    for broker in cluster.brokers.values():
        broker.constants = older
    with cluster:

        async def write(producer: Producer, partition: int, restarted: asyncio.Event) -> int:
            count = 0
            while not restarted.is_set():
                assert (await producer.send("rolled", b"%d" % count, partition=partition)).offset == count
                count += 1
                await asyncio.sleep(0.02)
            return count

        async def roll() -> None:
            async with Admin(cluster.addresses) as admin, Producer(cluster.addresses) as producer:
                await admin.create_topic("rolled", partitions=partitions)
                restarted = asyncio.Event()
                writing = [asyncio.create_task(write(producer, each, restarted)) for each in range(partitions)]
                for node, broker in cluster.brokers.items():
                    refused = await asyncio.to_thread(run, cluster, "upgrade", code=1)
                    assert f"brokers that do not know the feature level 1 yet: {node} (" in refused
                    assert await asyncio.to_thread(broker.terminate) == 0
                    broker.constants = {}
                    await asyncio.to_thread(broker.start)
                    await asyncio.to_thread(wait_until, lambda: all_are_in_sync(cluster))
                assert await asyncio.to_thread(ask, cluster, "upgrade") == {"level": 1, "was": 0}
                await admin.create_topic("after", partitions=1)
                await producer.send("after", b"")
                restarted.set()
                assert min(await asyncio.gather(*writing)) > 0

        asyncio.run(roll())
        assert ask(cluster, "status")["feature_level"] == 1
        assert ask(cluster, "upgrade") == {"level": 1, "was": 1}
        cluster.brokers[3].terminate()
        cluster.brokers[3].constants = older
        with pytest.raises(BrokerFailed, match="has the feature level 1, and this version knows 0: install a newer"):
            cluster.brokers[3].start()


@pytest.mark.slow
def test_a_broker_whose_disks_are_lost_is_filled_again(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path / "c") as cluster:
        create(cluster.brokers[1], "filled", 3)
        produce(cluster.brokers[1], "filled", b"1", b"2")
        lost = cluster.brokers[3]
        lost.kill()
        shutil.rmtree(lost.data_dir)
        with pytest.raises(BrokerFailed, match="cluster replace 3"):
            lost.start()
        wait_until(lambda: is_away(cluster, 3))
        assert "1 replica will be filled" in run(cluster, "replace", "3", "--yes")
        lost.start()
        wait_until(lambda: all_are_in_sync(cluster))
        wait_until(lambda: sum(path.stat().st_size for path in lost.data_dir.glob("filled-0/*.log")) > 0)


@pytest.mark.slow
def test_a_partition_whose_directory_is_lost_is_filled_again(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path / "c") as cluster:
        create(cluster.brokers[1], "filled", 3)
        produce(cluster.brokers[1], "filled", b"1", b"2")
        (leader,) = [row["node"] for row in ask(cluster, "brokers") if row["leads"]]
        lost = cluster.brokers[leader]
        lost.kill()
        shutil.rmtree(lost.data_dir / "filled-0")
        lost.start()
        assert "filled-0 leaves the in-sync set" in lost.output
        wait_until(lambda: all_are_in_sync(cluster))
        assert sum(path.stat().st_size for path in lost.data_dir.glob("filled-0/*.log")) > 0
        assert values_of(cluster.brokers[1], "filled") == [b"1", b"2"]


@pytest.mark.slow
def test_an_image_of_a_brokers_disks_that_is_put_back_takes_nothing_away(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path / "c") as cluster:
        create(cluster.brokers[1], "kept", 3)
        produce(cluster.brokers[1], "kept", b"1")
        old = cluster.brokers[3]
        assert old.terminate() == 0
        shutil.copytree(old.data_dir, tmp_path / "image")
        old.start()
        wait_until(lambda: all_are_in_sync(cluster))
        produce(cluster.brokers[1], "kept", b"2", b"3")
        old.kill()
        shutil.rmtree(old.data_dir)
        shutil.copytree(tmp_path / "image", old.data_dir)
        old.start()
        assert "DISKS OF THIS BROKER ARE OLDER" in old.output
        assert "kept-0 leaves the in-sync set" in old.output
        wait_until(lambda: all_are_in_sync(cluster))
        if not leads(cluster)[3]:
            run(cluster, "elect", "kept", "--leader", "3")
        assert values_of(cluster.brokers[1], "kept") == [b"1", b"2", b"3"]


def test_a_broker_that_was_alone_becomes_the_first_of_a_cluster(tmp_path: Path) -> None:
    with EtcdProcess(tmp_path / "etcd") as etcd:
        alone = BrokerProcess(tmp_path / "c" / "broker-1")
        with alone:
            create(alone, "kept", 1)
            produce(alone, "kept", b"1", b"2")
            assert alone.terminate() == 0
        cluster = ClusterProcesses(tmp_path / "c", brokers=2, etcd=etcd)
        cluster.cluster_id = ""
        taken = ask(cluster, "init", "--data-dir", str(alone.data_dir), "--dry-run")
        assert (taken["topics"], taken["partitions"], taken["node"], taken["is_done"]) == (1, 1, 1, False)
        taken = ask(cluster, "init", "--data-dir", str(alone.data_dir))
        cluster.cluster_id = taken["cluster_id"]
        for node in cluster.brokers:
            cluster.brokers[node] = cluster.broker(node, tmp_path / "c")
        with cluster.brokers[1], cluster.brokers[2]:
            assert values_of(cluster.brokers[1], "kept") == [b"1", b"2"]
            run(cluster, "reassign", "kept", "--replicas", "2,1")
            produce(cluster.brokers[1], "kept", b"3")
            cluster.brokers[1].terminate()
            assert values_of(cluster.brokers[2], "kept") == [b"1", b"2", b"3"]
