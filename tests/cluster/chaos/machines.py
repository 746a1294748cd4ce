"""What the brokers of a cluster run on: the network between them and to etcd, their disks and their clocks.

There is a proxy before each broker, for the others, and before each member of etcd, for each broker.
"""

import os
from contextlib import AsyncExitStack
from itertools import chain
from pathlib import Path
from typing import Self

from broker_process import BrokerProcess, port_to_keep
from cluster_processes import ClusterProcesses
from faults.history.target import Proxy
from faults.power.powered import PoweredDisk

CLOCK = Path(__file__).parent / "clock"
MOVED_BYTES = 8


class Machines:
    """Brokers reach broker `node` by `peers[node]`, which reaches etcd by `etcd[node]`."""

    def __init__(self, cluster: ClusterProcesses, *, has_power_disks: bool) -> None:
        """Before the cluster is started: its brokers are replaced."""
        self.peers: dict[int, Proxy] = {}
        self.etcd: dict[int, list[Proxy]] = {}
        self.kafka: list[str] = []
        """HOST:PORT of each broker for clients of Kafka."""
        self.disks: dict[int, PoweredDisk] = {}
        """Disks whose power can be cut, if the brokers have such."""
        self._clocks: dict[int, Path] = {}
        self._stack = AsyncExitStack()
        for node in cluster.brokers:
            if has_power_disks:
                self.disks[node] = PoweredDisk(cluster.directory / f"disk-{node}")
            cluster.brokers[node] = self._broker(cluster, node)

    def _broker(self, cluster: ClusterProcesses, node: int) -> BrokerProcess:
        port, peer_port, kafka_port = port_to_keep(), port_to_keep(), port_to_keep()
        self.kafka.append(f"127.0.0.1:{kafka_port}")
        self.peers[node] = Proxy("127.0.0.1", peer_port)
        members = (address.rpartition(":") for address in cluster.etcd.addresses)
        self.etcd[node] = [Proxy(host, int(etcd_port)) for host, _, etcd_port in members]
        broker = cluster.broker(
            node,
            cluster.directory,
            listeners=f"clients=plaintext://127.0.0.1:{port},peers=plaintext://127.0.0.1:{peer_port},"
            f"kafka=kafka+plaintext://127.0.0.1:{kafka_port}",
            advertised_listeners=f"peers={self.peers[node].address}",
            cluster_listener="peers",
            cluster_etcd=",".join(proxy.address for proxy in self.etcd[node]),
            flush_syncfs_files=1_000_000,  # FUSE does not pass syncfs on
        )
        broker.port = port
        if node in self.disks:
            broker.data_dir = self.disks[node].path / "data"
            broker.data_dirs = [broker.data_dir]
        clock = self._clocks[node] = cluster.directory / f"clock-{node}"
        self.move_clock(node, 0)
        paths = os.pathsep.join([str(CLOCK), *filter(None, [os.environ.get("PYTHONPATH")])])
        broker.environment = {"PYTHONPATH": paths, "MOVED_CLOCK": str(clock)}
        return broker

    def move_clock(self, node: int, ahead_s: int) -> None:
        """From now on the broker's clock is so much ahead of the machine's."""
        moved = (ahead_s * 1_000_000_000).to_bytes(MOVED_BYTES, "little", signed=True)
        self._clocks[node].touch()
        with self._clocks[node].open("r+b") as file:  # in place: the broker has mapped it
            file.write(moved)

    async def __aenter__(self) -> Self:
        for disk in self.disks.values():
            self._stack.enter_context(disk)
        for proxy in chain(self.peers.values(), *self.etcd.values()):
            await proxy.start()
            self._stack.push_async_callback(proxy.stop)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
