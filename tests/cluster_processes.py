"""A cluster for tests: an etcd and several brokers, each a process of its own."""

import asyncio
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from click.testing import CliRunner

from broker_process import BrokerProcess
from etcd_process import EtcdProcess
from warmlog import Admin
from warmlog.cli.app import build_program
from warmlog_broker.cluster.keys import FEATURE_LEVEL, Keys
from warmlog_broker.cluster.operating import alone_in, exclude
from warmlog_broker.cluster.view import View
from warmlog_broker.etcd.client import EtcdClient
from warmlog_broker.tools.cluster.init import create_cluster
from warmlog_protocol import messages as m
from wire_client import WireClient

SESSION_TIMEOUT_MS = 2000


class ClusterProcesses:
    """Brokers 1 to `brokers` in `directory`. A context manager: entering starts all, leaving kills what still runs."""

    def __init__(
        self, directory: Path, *, brokers: int = 3, etcd: EtcdProcess | None = None, **settings: object
    ) -> None:
        """`settings` are those of all brokers. A given etcd is the caller's."""
        self.cluster_id = directory.name
        self.directory = directory
        self.etcd = etcd or EtcdProcess(directory / "etcd")
        self.feature_level = FEATURE_LEVEL
        self.settings = {"broker_session_timeout_ms": SESSION_TIMEOUT_MS, **settings}
        self.brokers = {node: self.broker(node, directory) for node in range(1, brokers + 1)}
        self._is_own = etcd is None
        self._held = ExitStack()

    def broker(self, node: int, directory: Path, **settings: object) -> BrokerProcess:
        """A broker of this cluster, with its data in `directory`, that is not started."""
        secret = directory / "secret"
        secret.parent.mkdir(parents=True, exist_ok=True)
        secret.write_text("of the brokers of this test\n")
        common = {
            "cluster_etcd": ",".join(self.etcd.addresses),
            "cluster_id": self.cluster_id,
            "cluster_secret_file": secret,
            "node_id": node,
        }
        return BrokerProcess(directory / f"broker-{node}", **{**common, **self.settings, **settings})  # type: ignore[arg-type]

    def __enter__(self) -> Self:
        with self._held:
            if self._is_own:
                self._held.enter_context(self.etcd)
            self.create()
            for broker in self.brokers.values():
                self._held.enter_context(broker)
            self._held = self._held.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def create(self) -> None:
        """Create the cluster in etcd."""

        async def create() -> None:
            client = EtcdClient(self.etcd.options)
            await create_cluster(client, self.cluster_id, self.feature_level)
            await client.close()

        asyncio.run(create())

    async def replace(self, node: int) -> None:
        """Let a broker that was killed start with new disks, once the others have noticed that it is away."""
        etcd = EtcdClient(self.etcd.options)
        view = View(etcd, Keys(self.cluster_id), -1)
        async with view.followed():
            while node in view.brokers:
                await view.moved()
            assert alone_in(view, node) == []
            await exclude(etcd, view, node)
        await etcd.close()

    async def coordinator_of(self, key: str, kind: m.CoordinatorKind = m.CoordinatorKind.GROUP) -> BrokerProcess:
        """The broker that coordinates a group of consumers, or a transactional id, now."""
        async with Admin(self.addresses) as admin:
            request = m.FindCoordinatorRequest(kind, [key])
            (found,) = (await admin.cluster.call(request, m.FindCoordinatorResponse)).coordinators
            return self.brokers[found.node_id]

    def leader_of(self, topic: str) -> int:
        """The leader of the first partition of a topic, as a broker that runs says; -1 without one."""
        brokers = self.brokers.values()
        broker = next(each for each in brokers if each.process is not None and each.process.poll() is None)
        with WireClient(broker.address) as client:
            found = client.call(m.MetadataRequest([topic]))
            assert isinstance(found, m.MetadataResponse)
            return found.topics[0].partitions[0].leader_id

    @property
    def addresses(self) -> str:
        """HOST:PORT of each broker, with commas between them."""
        return ",".join(broker.address for broker in self.brokers.values())


def run(cluster: ClusterProcesses, *words: object, code: int | None = 0) -> str:
    """What `warmlog cluster` prints; None is any exit code."""
    place = {"WARMLOG_CLUSTER_ETCD": ",".join(cluster.etcd.addresses), "WARMLOG_CLUSTER_ID": cluster.cluster_id}
    done = CliRunner().invoke(build_program(), ["cluster", *map(str, words)], prog_name="warmlog", env=place)
    assert code in (None, done.exit_code), done.output
    return done.output


def ask(cluster: ClusterProcesses, *words: object, code: int | None = 0) -> Any:
    return json.loads(run(cluster, *words, "--json", code=code))


def all_are_in_sync(cluster: ClusterProcesses) -> bool:
    return not ask(cluster, "status", code=None)["not_as_they_should_be"]
