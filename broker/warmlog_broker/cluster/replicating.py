"""The replicas of one broker and their way to the other brokers, put together."""

from pathlib import Path

from warmlog_broker.cluster.data_path.driver import Driver, Node
from warmlog_broker.cluster.data_path.fetching import BetweenBrokers, Fetching
from warmlog_broker.cluster.data_path.peers import Identity, PeerOptions, Peers
from warmlog_broker.cluster.data_path.ports import OtherBrokers
from warmlog_broker.cluster.data_path.replicas import Replicas
from warmlog_broker.cluster.data_path.requests import ClusterRequests
from warmlog_broker.cluster.data_path.serving import Serving
from warmlog_broker.cluster.figures import Figures
from warmlog_broker.cluster.orders import Orders
from warmlog_broker.cluster.records import PartitionKey, Records
from warmlog_broker.cluster.session import Session
from warmlog_broker.cluster.view import Applied, View
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.config.broker_settings import ClientAuth
from warmlog_broker.coordinator.on_demand import Coordinators
from warmlog_broker.coordinator.transaction.markers import LocalMarkers
from warmlog_broker.etcd.coordination import Coordination
from warmlog_broker.metadata.metadata_log import RecoveryObeyed, TopicCreated
from warmlog_broker.metadata.store import ClusterStore, NodeStore
from warmlog_broker.replica.partition import Partition
from warmlog_broker.replica.served_directories import DataDirectories
from warmlog_broker.runtime.tasks import Tasks
from warmlog_broker.runtime.threads import ThreadPools
from warmlog_broker.topics.topics import Topics
from warmlog_protocol.errors import InvalidConfig
from warmlog_transport.address import Address
from warmlog_transport.options import ConnectionOptions

HAND_OVER_S = 2.0
"""A stop waits so long for others to take what this broker leads."""


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
        self._is_stopping = False
        self.replicas: Replicas
        self.serving: Serving
        self.figures: Figures
        self.orders: Orders

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
        fetching = Fetching(self.peers, lambda: self._config.cluster_refill_bytes_per_second)
        messages = BetweenBrokers(fetching, self.serving)
        self.replicas = Replicas(node, records, messages)
        self.figures = Figures(self._view, self.replicas)
        self.orders = Orders(self._etcd, self._view, self.replicas)
        self._session.on_registered = self._tell_sessions
        self._session.has_room = lambda: not any(each.room.is_short for each in directories.live)
        self._tell_sessions()
        for key, seen in self._view.records.items():
            self.replicas.record_seen(key, seen)
        self._view.on_applied.append(self._applied)

    def take_role(self, topic: TopicCreated, partition: Partition) -> None:
        """Take the role of this broker for a partition, by its record."""
        key = PartitionKey(topic.topic_id, partition.key.partition)
        driver = self.replicas.serve(key, partition, obeyed=self._node.state.obeyed.get(key, ""))
        self.orders.changed(driver)

    def requests(self, topics: Topics, cluster: ClusterStore, coordinators: Coordinators) -> ClusterRequests:
        """Return what answers other brokers."""
        others = coordinators.elsewhere = OtherBrokers(self.replicas, self.peers, topics)
        markers = LocalMarkers(topics, cluster)
        return ClusterRequests(self.identity, self.serving, markers, others, coordinators, self._etcd, self._view)

    def begin(self) -> None:
        """Take elections and retries by time, from now on."""
        self.replicas.begin()
        self._tasks.start(self.orders.run(), name="carry out orders")

    async def hand_over(self) -> None:
        """Let others lead what this broker leads, before it stops."""
        self._is_stopping = True
        await self._drain()

    async def end(self) -> None:
        """End all tasks and connections."""
        self.serving.end_all()
        await self.replicas.end()
        await self.peers.close()
        self._tasks.cancel()
        await self._tasks.finish(1.0)

    def _applied(self, applied: Applied) -> None:
        for key, seen in applied.records.items():
            self.replicas.record_seen(key, seen)
            if seen is not None:
                self.figures.changed(applied.before.get(key), seen.record)
        if applied.are_sessions:
            self._tell_sessions()
        for key in applied.orders:
            if (driver := self.replicas.find(key)) is not None:
                self.orders.changed(driver)
        for key in applied.records.keys() & self._view.orders.keys():
            self._tasks.start(self.orders.end(key), name="end an order")
        if applied.is_drained:
            self._tasks.start(self._drain(), name="drain")

    async def _drain(self) -> None:
        """Lead nothing while an operator wants that, and before a stop."""
        is_ready = not self._is_stopping and self._view.node not in self._view.drained
        await self._session.tell(is_ready=is_ready)
        if not is_ready:
            await self.replicas.hand_over(HAND_OVER_S)

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
