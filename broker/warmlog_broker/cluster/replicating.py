"""The replicas of one broker and their way to the other brokers, put together."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path

from warmlog_broker.cluster.data_path.driver import Driver
from warmlog_broker.cluster.data_path.fetching import BetweenBrokers, Fetching
from warmlog_broker.cluster.data_path.peers import Identity, PeerOptions, Peers
from warmlog_broker.cluster.data_path.ports import ClusterEnrolment, OtherBrokers
from warmlog_broker.cluster.data_path.replicas import Node, Replicas
from warmlog_broker.cluster.data_path.requests import ClusterRequests
from warmlog_broker.cluster.data_path.serving import Serving
from warmlog_broker.cluster.figures import Figures
from warmlog_broker.cluster.keys import OrderValue, to_bytes
from warmlog_broker.cluster.records import PartitionKey, Records
from warmlog_broker.cluster.session import Session
from warmlog_broker.cluster.store import DEFAULT_REPLICAS, wanted_min_isr
from warmlog_broker.cluster.view import Applied, View
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.config.broker_settings import ClientAuth
from warmlog_broker.coordinator.on_demand import Coordinators
from warmlog_broker.coordinator.transaction.decisions.state import Incarnation
from warmlog_broker.coordinator.transaction.markers import LocalMarkers
from warmlog_broker.etcd.coordination import ChangedAt, Coordination, CoordinationError, Delete, Put
from warmlog_broker.metadata.metadata_log import RecoveryObeyed, TopicCreated
from warmlog_broker.metadata.store import ClusterStore, NodeStore
from warmlog_broker.replica.partition import Partition
from warmlog_broker.replica.served_directories import DataDirectories
from warmlog_broker.replication import events as ev
from warmlog_broker.replication.placement import grown
from warmlog_broker.replication.reassignment import preferred_leader
from warmlog_broker.replication.record import PartitionRecord
from warmlog_broker.runtime.tasks import Tasks
from warmlog_broker.runtime.threads import ThreadPools
from warmlog_broker.topics.topics import Topics
from warmlog_protocol.errors import InvalidConfig
from warmlog_transport.address import Address
from warmlog_transport.options import ConnectionOptions

BALANCE_S = 1.0
"""How often a broker looks for partitions that it leads in the place of another."""
SETTLED_S = 30.0
"""A replica that is in sync for so long gets its leadership back."""
HAND_OVER_S = 2.0
"""A stop waits so long for others to take what this broker leads."""


_log = logging.getLogger(__name__)


def identity_of(config: BrokerConfig) -> Identity:
    """Return how this broker proves to the others what it is. InvalidConfig if the secret cannot be read."""
    secret = ""
    if config.cluster_secret_file:
        try:
            secret = Path(config.cluster_secret_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidConfig(f"cluster.secret.file: {error}") from None
        if not secret:
            raise InvalidConfig(f"cluster.secret.file: {config.cluster_secret_file} is empty")
    return Identity(config.cluster_id, config.node_id, secret)


def peer_options(config: BrokerConfig) -> ConnectionOptions:
    """Return how this broker connects to the others: by TLS if the listener for brokers has it.

    It shows its certificate if that proves that it is one, or if the listener requires one.
    """
    listener = config.peer_listener
    shows_certificate = listener.uses_tls and (
        not config.cluster_secret_file or config.tls_client_auth == ClientAuth.REQUIRED
    )
    return PeerOptions(
        client_name=f"broker-{config.node_id}",
        ssl=listener.uses_tls,
        ssl_cafile=config.tls_ca_file if listener.uses_tls else "",
        ssl_certfile=config.tls_cert_file if shows_certificate else "",
        ssl_keyfile=config.tls_key_file if shows_certificate else "",
    )


def is_done(order: OrderValue, record: PartitionRecord) -> bool:
    """Return whether a partition is as an operator has wanted it."""
    if order.replicas is not None:
        return record.replicas == order.replicas and not record.adding and not record.removing
    return record.recovering == order.nonce if order.recover is not None else record.leader == order.leader


class Replicating:
    """What a broker does with its replicas, as the view of the cluster tells."""

    def __init__(self, config: BrokerConfig, etcd: Coordination, view: View, session: Session, node: NodeStore) -> None:
        """InvalidConfig if the secret of brokers cannot be read."""
        self._config = config
        self._etcd = etcd
        self._view = view
        self._session = session
        self._node = node
        self.identity = identity_of(config)
        self.peers = Peers(self.identity, peer_options(config), self._address_of)
        self._tasks = Tasks()
        self.replicas: Replicas
        self.serving: Serving
        self.figures: Figures

    def prepare(self, threads: ThreadPools, directories: DataDirectories) -> None:
        """Take in the records, once the broker is registered."""

        def find(key: PartitionKey) -> Driver | None:
            return self.replicas.find(key)

        self.serving = Serving(find, threads.cold_readers)
        node = Node(
            self._view.node,
            self._session.incarnation,
            threads.disk,
            lambda partition: directories.checkpoint([partition]),
            self._session.renew,
            self._obeyed,
        )
        records = Records(self._etcd, self._view.keys, lambda: bool(self._view.frozen))
        messages = BetweenBrokers(Fetching(self.peers), self.serving.is_due)
        self.replicas = Replicas(node, records, messages)
        self.figures = Figures(self._view, self.replicas)
        self._tell_sessions()
        for key, seen in self._view.records.items():
            self.replicas.record_seen(key, seen)
        self._view.on_applied.append(self._applied)

    def take_role(self, topic: TopicCreated, partition: Partition) -> None:
        """Take the role of this broker for a partition, by its record."""
        key = PartitionKey(topic.topic_id, partition.key.partition)
        driver = self.replicas.serve(key, partition, obeyed=self._node.state.obeyed.get(key, ""))
        if (order := self._view.orders.get(key)) is not None:
            self._carry_out(driver, order)

    def requests(self, topics: Topics, cluster: ClusterStore, coordinators: Coordinators) -> ClusterRequests:
        """Return what answers other brokers."""
        others = coordinators.elsewhere = OtherBrokers(self.replicas, self.peers, topics)

        def enrol(
            transactional_id: str, producer: Incarnation, topic: str, partition: int, *, is_enrolled: bool
        ) -> Awaitable[None] | None:
            transactions = coordinators.transactions
            return transactions.enrol_partition(transactional_id, producer, topic, partition, is_enrolled=is_enrolled)

        markers, enrolment = LocalMarkers(topics, cluster), ClusterEnrolment(enrol, others)
        return ClusterRequests(self.identity, self.serving, markers, enrolment, others)

    def begin(self) -> None:
        """Take elections and retries by time, from now on."""
        self.replicas.begin()
        self._tasks.start(self._return_to_preferred(), name="return to preferred leaders")

    async def hand_over(self) -> None:
        """Let others lead what this broker leads, before it stops."""
        await self._session.tell(is_ready=False)
        await self.replicas.hand_over(HAND_OVER_S)

    async def end(self) -> None:
        """End all tasks and connections."""
        self.serving.end_all()
        await self.replicas.end()
        await self.peers.close()
        self._tasks.cancel()
        await self._tasks.finish(1.0)

    def _applied(self, applied: Applied) -> None:
        if applied.are_sessions:
            self._tell_sessions()
        for key, seen in applied.records.items():
            self.replicas.record_seen(key, seen)
            if seen is not None:
                self.figures.changed(applied.before.get(key), seen.record)
        for key in applied.orders:
            if (driver := self.replicas.find(key)) is not None:
                self._carry_out(driver, self._view.orders.get(key))
        for key in applied.records.keys() & self._view.orders.keys():
            self._tasks.start(self._end_order(key), name="end an order")
        if applied.is_drained:
            self._tasks.start(self._drain(), name="drain")

    def _carry_out(self, driver: Driver, order: OrderValue | None) -> None:
        """Do what an operator wants of a partition; None: nothing more."""
        driver.do(ev.TargetSet(None if order is None else order.replicas))
        if order is not None and order.leader in self._able(driver):
            driver.do(ev.HandOverAsked(order.leader))
        if order is not None and order.recover == self._view.node:
            driver.do(ev.RecoveryAsked(order.nonce))

    async def _end_order(self, key: PartitionKey) -> None:
        """Delete an order that is carried out, if this broker leads the partition."""
        order, seen = self._view.orders.get(key), self._view.records.get(key)
        if order is None or seen is None or seen.record.leader != self._view.node or not is_done(order, seen.record):
            return
        name = self._view.keys.order(*key)
        await self._change(name, Delete(name))

    def _repeat_orders(self) -> None:
        """Do what could not be done before, as a replica was not in sync, or not ready to lead; and take settings."""
        for key, order in list(self._view.orders.items()):
            if (driver := self.replicas.find(key)) is not None:
                self._carry_out(driver, order)
                self._tasks.start(self._end_order(key), name="end an order")
        for driver in self.replicas:
            record = driver.replica.record
            if driver.replica.leading is not None and not record.adding and not record.removing:
                driver.do(ev.MinIsrSet(wanted_min_isr(driver.partition.config, len(record.replicas))))
        if self._view.node in self._view.drained:
            for driver in self.replicas:
                if self._able(driver):
                    driver.do(ev.HandOverAsked())

    async def _grow_internal(self) -> None:
        """Order the replicas that internal topics lack, since they were created when there were fewer brokers."""
        racks, load = self._view.racks(), Counter[int]()
        for seen in self._view.records.values():
            load.update(seen.record.replicas)
        internal = {topic.topic_id for topic in self._view.state.topics.values() if topic.is_internal}
        for driver in self.replicas:
            record, key = driver.replica.record, driver.key
            if driver.replica.leading is None or key.topic_id not in internal or key in self._view.orders:
                continue
            replicas = grown(record, racks, DEFAULT_REPLICAS, load)
            if replicas != record.replicas and not record.adding and not record.removing:
                load.update(set(replicas) - set(record.replicas))
                name, value = self._view.keys.order(*key), OrderValue(replicas=replicas)
                await self._change(name, Put(name, to_bytes(value)))

    async def _change(self, name: str, operation: Put | Delete) -> None:
        """Change an order as this broker has seen it. If the outcome is not known, it is looked at again."""
        try:
            await self._etcd.txn([ChangedAt(name, self._view.changed_at(name))], [operation])
        except CoordinationError as error:
            _log.warning("an order cannot be changed in etcd: %s", error)

    def _able(self, driver: Driver) -> list[int]:
        """Return the other brokers that may lead in the place of this one: producers would wait in vain without one."""
        sessions = self.replicas.sessions
        if driver.replica.leading is None:
            return []
        members = driver.replica.record.isr
        return [node for node in members if node in sessions and sessions[node].is_ready and node != self._view.node]

    async def _drain(self) -> None:
        """Lead nothing while an operator wants that."""
        is_ready = self._view.node not in self._view.drained
        await self._session.tell(is_ready=is_ready)
        if not is_ready:
            await self.replicas.hand_over(HAND_OVER_S)

    async def _return_to_preferred(self) -> None:
        """Let the first replica of each partition lead again, one at a time, once it has been in sync for a while."""
        since_s: dict[PartitionKey, float] = {}
        while True:
            await asyncio.sleep(BALANCE_S)
            self._repeat_orders()
            await self._grow_internal()
            wanting = {
                driver.key: (driver, preferred)
                for driver in self.replicas
                if driver.replica.leading is not None
                and driver.key not in self._view.orders
                and (preferred := preferred_leader(driver.replica.record, self.replicas.sessions)) is not None
            }
            now_s = asyncio.get_running_loop().time()
            since_s = {key: since_s.get(key, now_s) for key in wanting}
            for key, (driver, preferred) in wanting.items():
                if now_s - since_s[key] >= SETTLED_S:
                    driver.do(ev.HandOverAsked(preferred))
                    await asyncio.sleep(BALANCE_S / 10)

    def _tell_sessions(self) -> None:
        own = self._view.brokers.get(self._view.node)
        epoch = self._session.broker_epoch
        self.replicas.sessions_seen(
            self._view.sessions(), epoch if own is not None and own.broker_epoch == epoch else 0
        )

    def _address_of(self, node: int) -> Address | None:
        registered = self._view.brokers.get(node)
        if registered is None:
            return None
        return Address(*registered.value.endpoints[registered.value.peer_listener])

    def _obeyed(self, key: PartitionKey, nonce: str) -> None:
        self._tasks.start(self._node.commit([RecoveryObeyed(*key, nonce)]), name="note a recovery")
