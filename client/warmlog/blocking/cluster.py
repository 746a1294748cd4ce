"""Finds leaders and asks for offsets over blocking connections."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar

from warmlog.blocking.connection import BlockingConnection, Place, R, Result
from warmlog.cluster.address import Address, parse_addresses
from warmlog.cluster.options import DEFAULT_MAX_MESSAGE_BYTES, ConnectionOptions
from warmlog.errors import (
    BrokerUnavailable,
    NotLeaderOrFollower,
    error_from_code,
)
from warmlog_protocol.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    EpochEndOffset,
    IsolationLevel,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    Message,
    MetadataRequest,
    MetadataResponse,
    OffsetForLeaderEpochPartition,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    TopicMetadata,
)

T = TypeVar("T")
PARTITIONS_A_REQUEST = 2000
"""With the longest names these take half of a broker's `request.header.max.bytes`; it allows `request.max.items`."""


def in_requests(items: Sequence[T]) -> Iterator[list[T]]:
    """`items`, which have a partition each, in lists of as many as one request is to name."""
    for first in range(0, len(items), PARTITIONS_A_REQUEST):
        yield list(items[first : first + PARTITIONS_A_REQUEST])


class BlockingCluster:
    """Metadata, offsets and connections to leaders, each asked for anew: nothing here runs in the background."""

    def __init__(self, bootstrap: str | Sequence[str], options: ConnectionOptions | None = None) -> None:
        self._bootstrap = parse_addresses(bootstrap)
        self._options = options or ConnectionOptions()
        self._connections: dict[Address, BlockingConnection] = {}
        self._leaders: dict[Place, Address] = {}

    def topics(self, names: Sequence[str] | None = None) -> dict[str, TopicMetadata]:
        """Metadata of the named topics, or of all; raises the error of the first topic that has one."""
        connection = self._any_connection()
        response = connection.call(MetadataRequest(None if names is None else list(names)), MetadataResponse)
        addresses = {
            broker.node_id: Address(broker.host, broker.port) if broker.host else connection.address
            for broker in response.brokers
        }
        for topic in response.topics:
            if topic.error_code:
                raise error_from_code(topic.error_code, f"topic {topic.name!r}")
            for partition in topic.partitions:
                if partition.leader_id in addresses:
                    self._leaders[topic.name, partition.partition] = addresses[partition.leader_id]
        return {topic.name: topic for topic in response.topics}

    def leader_address(self, topic: str, partition: int) -> Address:
        """Where the partition's leader listens; asks for metadata the first time."""
        if (topic, partition) not in self._leaders:
            self.topics([topic])
        address = self._leaders.get((topic, partition))
        if address is None:
            raise NotLeaderOrFollower(f"{topic}-{partition} has no leader or does not exist")
        return address

    def leader(self, topic: str, partition: int) -> BlockingConnection:
        """An open connection to the partition's leader, shared by all partitions that it leads."""
        return self._connection(self.leader_address(topic, partition))

    def forget_leaders(self) -> None:
        """Ask for metadata again before the next connection to a leader."""
        self._leaders.clear()

    def call(self, message: Message, expected: type[R]) -> R:
        """The response of any broker to a request that needs no leader."""
        return self._any_connection().call(message, expected)

    def max_message_bytes(self, topic: str) -> int:
        """How large a batch of the topic may be; `DEFAULT_MAX_MESSAGE_BYTES` where the broker does not tell."""
        for resource in self.call(DescribeConfigsRequest([topic]), DescribeConfigsResponse).resources:
            for entry in resource.entries:
                if entry.name == "max.message.bytes":
                    return int(entry.value)
        return DEFAULT_MAX_MESSAGE_BYTES

    def list_offsets(
        self,
        times: Mapping[Place, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[Place, ListedOffset]:
        """For each (topic, partition) the first record at or after a time in milliseconds, or at LATEST_TIMESTAMP …

        Asked in several requests where there are more than `PARTITIONS_A_REQUEST`.
        `offset` is -1 where no record is that young. Raises the error of the first partition that has one.
        """

        def ask(places: list[Place], leader: BlockingConnection) -> list[ListedOffset]:
            wanted = [ListOffsetsPartition(*place, times[place]) for place in places]
            return leader.call(ListOffsetsRequest(wanted, isolation), ListOffsetsResponse).partitions

        return self._ask_leaders(times, ask)

    def epoch_ends(self, epochs: Mapping[Place, int]) -> dict[Place, int]:
        """For each (topic, partition) where a leader epoch, or the newest known one below it, ends.

        -1 if it is newer than all. Raises the error of the first partition that has one.
        """

        def ask(places: list[Place], leader: BlockingConnection) -> list[EpochEndOffset]:
            wanted = [OffsetForLeaderEpochPartition(*place, epochs[place]) for place in places]
            return leader.call(OffsetForLeaderEpochRequest(wanted), OffsetForLeaderEpochResponse).partitions

        return {place: end.end_offset for place, end in self._ask_leaders(epochs, ask).items()}

    def close(self) -> None:
        """Close every connection; a later call opens new ones."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask_leaders(
        self, places: Iterable[Place], ask: Callable[[list[Place], BlockingConnection], list[Result]]
    ) -> dict[Place, Result]:
        """What `ask` gives for each of `places`, a bounded number of one leader's at a time; raises the first error."""
        by_leader: dict[Address, list[Place]] = {}
        for place in places:
            by_leader.setdefault(self.leader_address(*place), []).append(place)
        found: dict[Place, Result] = {}
        for address, own in by_leader.items():
            for some in in_requests(own):
                for result in ask(some, self._connection(address)):
                    if result.error_code:
                        name = f"{result.topic}-{result.partition}"
                        raise error_from_code(result.error_code, f"{name}: {result.error_message}")
                    found[result.topic, result.partition] = result
        return found

    def _connection(self, address: Address) -> BlockingConnection:
        connection = self._connections.get(address)
        if connection is not None and connection.is_open:
            return connection
        if connection is not None:
            connection.close()
        connection = self._connections[address] = BlockingConnection(*address, self._options)
        return connection

    def _any_connection(self) -> BlockingConnection:
        for connection in self._connections.values():
            if connection.is_open:
                return connection
        failures = []
        for address in self._bootstrap:
            try:
                return self._connection(address)
            except BrokerUnavailable as error:
                failures.append(str(error))
        raise BrokerUnavailable("; ".join(failures))
