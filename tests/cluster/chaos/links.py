"""The network of a cluster: there is a proxy before each broker, for the others, and before etcd, for each broker."""

from pathlib import Path
from typing import Self

from broker_process import BrokerProcess, port_to_keep
from cluster_processes import ClusterProcesses
from faults.history.target import Proxy


class Links:
    """Brokers reach broker `node` by `peers[node]`, which reaches etcd by `etcd[node]`."""

    def __init__(self, cluster: ClusterProcesses) -> None:
        """Before the cluster is started: its brokers are replaced."""
        self.peers: dict[int, Proxy] = {}
        self.etcd: dict[int, Proxy] = {}
        self.kafka: list[str] = []
        """HOST:PORT of each broker for clients of Kafka."""
        for node in cluster.brokers:
            cluster.brokers[node] = self._broker(cluster, node, cluster.directory)

    def _broker(self, cluster: ClusterProcesses, node: int, directory: Path) -> BrokerProcess:
        port, peer_port, kafka_port = port_to_keep(), port_to_keep(), port_to_keep()
        self.kafka.append(f"127.0.0.1:{kafka_port}")
        host, _, etcd_port = cluster.etcd.addresses[0].rpartition(":")
        self.peers[node], self.etcd[node] = Proxy("127.0.0.1", peer_port), Proxy(host, int(etcd_port))
        broker = cluster.broker(
            node,
            directory,
            listeners=f"clients=plaintext://127.0.0.1:{port},peers=plaintext://127.0.0.1:{peer_port},"
            f"kafka=kafka+plaintext://127.0.0.1:{kafka_port}",
            advertised_listeners=f"peers={self.peers[node].address}",
            cluster_listener="peers",
            cluster_etcd=self.etcd[node].address,
        )
        broker.port = port
        return broker

    async def __aenter__(self) -> Self:
        for proxy in (*self.peers.values(), *self.etcd.values()):
            await proxy.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for proxy in (*self.peers.values(), *self.etcd.values()):
            await proxy.stop()
