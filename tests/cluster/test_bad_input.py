"""Wrong disks, settings and clocks, false brokers and damage: refused with what to do, or survived; nothing is lost."""

import os
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker_process import BrokerFailed, BrokerProcess
from cluster_processes import ClusterProcesses
from etcd_process import EtcdProcess, needs_etcd
from faults.tracing import tampering, why_not_traced
from waiting import wait_until
from warmlog import blocking
from warmlog_broker.cluster.keys import Keys
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ClusterAuthorizationFailed, RemoteProtocolError
from warmlog_protocol.sasl.scram import ClientExchange
from wire_client import WireClient

pytestmark = needs_etcd
VALUES = [b"value-%d" % number for number in range(20)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def fill(cluster: ClusterProcesses, topic: str, **configs: object) -> None:
    """A topic of one partition with a batch for each of VALUES on all brokers."""
    with blocking.Admin(cluster.addresses) as admin:
        admin.create_topic(topic, partitions=1, configs=configs)
    with blocking.Producer(cluster.addresses) as producer:
        for value in VALUES:
            producer.send(topic, value).result()


def values_of(cluster: ClusterProcesses, topic: str) -> list[bytes]:
    with blocking.Consumer(cluster.addresses, topics=[topic], start="earliest") as consumer:
        return [bytes(record.value or b"") for record in consumer.records(until="latest")]


def table_of(cluster: ClusterProcesses, topic: str) -> list[bytes]:
    with blocking.Consumer(cluster.addresses, topics=[topic], start="earliest") as consumer:
        return consumer.to_arrow(until="latest")["value"].to_pylist()


def in_sync(cluster: ClusterProcesses, topic: str) -> set[int]:
    with WireClient(next(iter(cluster.brokers.values())).address) as client:
        found = client.call(m.MetadataRequest([topic]))
        assert isinstance(found, m.MetadataResponse)
        return set(found.topics[0].partitions[0].in_sync_replicas)


def log_of(broker: BrokerProcess, topic: str) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(broker.data_dir.glob(f"{topic}-0/*.log")))


def recovery_point(broker: BrokerProcess, topic: str) -> int:
    """As the last checkpoint has it; 0 without one."""
    path = broker.data_dir / "recovery-point-offset-checkpoint"
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[2]) for line in lines if line.startswith(f"{topic} 0 ")), 0)


def damage(broker: BrokerProcess, topic: str, *, with_header: bool = True) -> None:
    """Overwrite a batch in the middle, or its value alone, which only its CRC shows."""
    (path,) = broker.data_dir.glob(f"{topic}-0/*.log")
    content = path.read_bytes()
    at = content.index(VALUES[7])
    size_bytes = at - content.index(VALUES[6])
    with path.open("r+b") as file:
        file.seek(7 * size_bytes if with_header else at)
        file.write(bytes(size_bytes if with_header else len(VALUES[7])))


# Disks and settings


def test_the_disk_of_another_node_or_cluster_is_refused_and_not_changed(tmp_path: Path) -> None:
    with EtcdProcess(tmp_path / "etcd") as etcd, ClusterProcesses(tmp_path / "c", brokers=1, etcd=etcd) as cluster:
        assert cluster.brokers[1].terminate() == 0
        another = ClusterProcesses(tmp_path / "another", brokers=1, etcd=etcd)
        another.create()
        data_dir = cluster.brokers[1].data_dir

        def content() -> dict[Path, bytes]:
            return {path: path.read_bytes() for path in data_dir.iterdir() if path.is_file() and path.name != ".lock"}

        before = content()
        for broker, says in (
            (another.broker(1, tmp_path / "c"), "belongs to the cluster c, but cluster.id is another: is it the right"),
            (cluster.broker(2, tmp_path / "c"), "belongs to node 1, but node.id is 2: is it the right disk"),
        ):
            broker.data_dirs = [data_dir]
            with pytest.raises(BrokerFailed, match=says):
                broker.start()
        assert content() == before
        cluster.brokers[1].start()
        assert cluster.brokers[1].terminate() == 0


def test_what_a_later_version_has_written_is_refused(tmp_path: Path) -> None:
    with EtcdProcess(tmp_path / "etcd") as etcd:
        cluster = ClusterProcesses(tmp_path / "c", brokers=1, etcd=etcd)
        cluster.create()
        put_json(etcd, Keys("c").topic("n"), '{"v":2}')
        with pytest.raises(BrokerFailed, match=r"cannot be read from etcd: .*topics/n.*version 2") as refused:
            cluster.brokers[1].start()
        assert "upgrade" in refused.value.output


def put_json(etcd: EtcdProcess, key: str, value: str) -> None:
    encoded = {"key": b64encode(key.encode()).decode(), "value": b64encode(value.encode()).decode()}
    etcd.post("/v3/kv/put", encoded)


@pytest.mark.slow
def test_clocks_that_are_an_hour_off_change_nothing(tmp_path: Path) -> None:
    """Leaders are elected by time that has passed; records that are timed by a leader have its clock."""
    with EtcdProcess(tmp_path / "etcd") as etcd:
        cluster = ClusterProcesses(tmp_path / "c", etcd=etcd)
        for node, hours in ((1, 1), (2, -1)):
            cluster.brokers[node].environment = off_by(tmp_path / f"clock-{node}", hours)
        cluster.create()
        with cluster.brokers[1], cluster.brokers[2], cluster.brokers[3]:
            fill(cluster, "t")
            for node in cluster.brokers:
                cluster.brokers[node].kill()
                wait_until(lambda node=node: cluster.leader_of("t") not in (-1, node))
                assert values_of(cluster, "t") == VALUES
                cluster.brokers[node].start()
                wait_until(lambda: in_sync(cluster, "t") == {1, 2, 3})
            outputs = [broker.output for broker in cluster.brokers.values()]
            assert not any("registers again" in output or "Traceback" in output for output in outputs)


def off_by(directory: Path, hours: int) -> dict[str, str]:
    """The environment of a broker whose clock is so many hours ahead; not that of gRPC, which has one of its own."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(
        f"import time\ntime_ns = time.time_ns\ntime.time_ns = lambda: time_ns() + {hours * 3600 * 10**9}\n"
    )
    return {"PYTHONPATH": os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")])}


# False brokers


def test_a_client_that_claims_to_be_a_broker_gets_what_a_client_gets(cluster: ClusterProcesses) -> None:
    fill(cluster, "secret")
    leader = cluster.brokers[cluster.leader_of("secret")]
    node = int(leader.settings["node.id"])
    other = node % 3 + 1
    with WireClient(leader.address) as client:
        found = client.call(m.MetadataRequest(["secret"]))
        assert isinstance(found, m.MetadataResponse)
        topic_id = found.topics[0].topic_id
        fetch = m.ReplicaFetch(topic_id, 0, 1 << 40, 0, 1, 0, -1, 1 << 40, 0, 0)
        commit = m.OffsetCommitRequest("g", [m.OffsetCommitPartition(b"", "secret", 0, 5)])
        of_brokers = [
            m.ReplicaFetchRequest([fetch]),
            m.WriteMarkerRequest(topic_id, 0, 1, 1, commits=True, keeps_epoch=False, coordinator_epoch=9),
            m.EnrolPartitionRequest("x", 1, 0, "secret", 0, is_enrolled=False),
            m.AddPendingOffsetsRequest(commit, "User:admin", 1, 0, 9),
            m.EndPendingOffsetsRequest("g", 1, 1, commits=True, keeps_epoch=False, coordinator_epoch=9),
            m.CommitOffsetsElsewhereRequest(m.TxnOffsetCommitRequest("x", 1, 0, "g", commit.partitions), "User:admin"),
        ]

        def are_refused() -> None:
            for request in of_brokers:
                with pytest.raises(ClusterAuthorizationFailed):
                    client.call(request)

        are_refused()
        exchange = ClientExchange(m.PEER_MECHANISM, m.PEER_NAME, "a guess")
        hello = m.PeerHelloRequest(cluster.cluster_id, other, node, exchange.first())
        first = client.call(hello)
        assert isinstance(first, m.PeerHelloResponse)
        with pytest.raises(ClusterAuthorizationFailed, match="its secret is another one"):
            client.call(m.PeerHelloRequest(cluster.cluster_id, other, node, exchange.final(first.data)))
        are_refused()
        with WireClient(leader.address) as another:
            report = m.ReplicaReport(topic_id, 0, 1 << 40, 0, 1 << 40)
            another.send(m.ReplicaFlushedRequest([report]), has_response=False)
            with pytest.raises(RemoteProtocolError, match="which was never sent"):  # the refusal
                another.call(m.MetadataRequest(None))
        for replica_id in (other, m.DEBUGGING_REPLICA_ID):
            _, batches = client.fetch("secret", len(VALUES), replica_id=replica_id)
            assert batches == b"", "nothing beyond what is committed"
    assert in_sync(cluster, "secret") == {1, 2, 3}
    assert values_of(cluster, "secret") == VALUES
    assert "says that it is a broker of this cluster, and cannot prove it" in leader.output


# Damage below the high watermark


@pytest.mark.slow
def test_a_follower_with_damage_leads_nothing_before_it_is_refilled(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path / "c") as cluster:
        fill(cluster, "t")
        leader = cluster.leader_of("t")
        node = leader % 3 + 1
        follower = cluster.brokers[node]
        wait_until(lambda: recovery_point(follower, "t") == len(VALUES))  # what is above is cut, as by a crash
        follower.kill()
        damage(follower, "t")
        follower.start()
        assert "t-0 leaves the in-sync set: the log is damaged" in follower.output
        wait_until(lambda: in_sync(cluster, "t") == {1, 2, 3})
        wait_until(lambda: log_of(follower, "t") == log_of(cluster.brokers[leader], "t"))
        for other in cluster.brokers.keys() - {node}:
            cluster.brokers[other].terminate()
            if other == leader:
                wait_until(lambda: cluster.leader_of("t") not in (-1, leader))
            cluster.brokers[other].start()
            wait_until(lambda: in_sync(cluster, "t") == {1, 2, 3})
        assert values_of(cluster, "t") == VALUES


@pytest.mark.slow
@pytest.mark.parametrize("read", [values_of, table_of])
@pytest.mark.parametrize("with_header", [True, False])
def test_a_leader_with_damage_hands_over_and_is_refilled_and_its_readers_get_all(
    tmp_path: Path, with_header: bool, read: Callable[[ClusterProcesses, str], list[bytes]]
) -> None:
    with ClusterProcesses(tmp_path / "c") as cluster:
        fill(cluster, "t")
        node = cluster.leader_of("t")
        damage(cluster.brokers[node], "t", with_header=with_header)
        assert read(cluster, "t") == VALUES
        wait_until(lambda: cluster.leader_of("t") not in (-1, node))
        wait_until(lambda: in_sync(cluster, "t") == {1, 2, 3})
        assert values_of(cluster, "t") == VALUES
        assert log_of(cluster.brokers[node], "t") == log_of(cluster.brokers[cluster.leader_of("t")], "t")


@pytest.mark.slow
@pytest.mark.skipif(bool(why_not_traced()), reason=why_not_traced())
def test_a_leader_that_cannot_read_its_disk_hands_over_and_is_refilled_and_its_readers_get_all(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path / "c") as cluster:
        fill(cluster, "t")
        node = cluster.leader_of("t")
        leader = cluster.brokers[node]
        (path,) = leader.data_dir.glob("t-0/*.log")
        with tampering(leader.pid, "pread64,preadv,preadv2,sendfile:error=EIO", path):
            assert values_of(cluster, "t") == VALUES
        wait_until(lambda: cluster.leader_of("t") not in (-1, node))
        wait_until(lambda: in_sync(cluster, "t") == {1, 2, 3})
        assert log_of(leader, "t") == log_of(cluster.brokers[cluster.leader_of("t")], "t")
