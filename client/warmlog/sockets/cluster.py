"""Finds leaders and requests offsets over blocking connections."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from warmlog.errors import BrokerUnavailable, NotLeaderOrFollower, error_from_code
from warmlog.sockets.connection import BlockingConnection, Closing, R
from warmlog.sockets.retrying import retrying
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
from warmlog_transport.address import Address, parse_addresses
from warmlog_transport.connection import Throttle
from warmlog_transport.options import ConnectionOptions
from warmlog_transport.responses import TopicPartition, broker_addresses, max_message_bytes, topic_error

T = TypeVar("T")
Result = TypeVar("Result", ListedOffset, EpochEndOffset)

PARTITIONS_A_REQUEST = 2000
"""With the longest names they take half of a broker's `request.header.max.bytes`; `request.max.items` allows more."""


def in_requests(items: Sequence[T]) -> Iterator[list[T]]:
    """Split `items`, one for each partition, into lists for one request each."""
    for first in range(0, len(items), PARTITIONS_A_REQUEST):
        yield list(items[first : first + PARTITIONS_A_REQUEST])


class BlockingCluster(Closing):
    """Metadata, offsets and connections to leaders, requested when they are needed: nothing runs in the background."""

    def __init__(self, bootstrap: str | Sequence[str], options: ConnectionOptions | None = None) -> None:
        self._bootstrap = parse_addresses(bootstrap)
        self._options = options or ConnectionOptions()
        self._connections: dict[Address, BlockingConnection] = {}
        self._throttles: defaultdict[Address, Throttle] = defaultdict(Throttle)
        self._leaders: dict[TopicPartition, Address] = {}

    def another(self) -> "BlockingCluster":
        """A cluster of the same brokers with connections of its own, for another thread."""
        return BlockingCluster([str(address) for address in self._bootstrap], self._options)

    def topics(self, names: Sequence[str] | None = None) -> dict[str, TopicMetadata]:
        """Return metadata of the named topics, or of all; raises the error of the first topic that has one."""
        connection = self._any_connection()
        response = connection.call(MetadataRequest(None if names is None else list(names)), MetadataResponse)
        addresses = broker_addresses(response, connection.address)
        for topic in response.topics:
            if (error := topic_error(topic)) is not None:
                raise error
            for partition in topic.partitions:
                if partition.leader_id in addresses:
                    self._leaders[topic.name, partition.partition] = addresses[partition.leader_id]
        return {topic.name: topic for topic in response.topics}

    def leader_address(self, topic: str, partition: int) -> Address:
        """The address of the partition's leader; requests metadata the first time."""
        if (topic, partition) not in self._leaders:
            self.topics([topic])
        address = self._leaders.get((topic, partition))
        if address is None:
            raise NotLeaderOrFollower(f"{topic}-{partition} has no leader or does not exist")
        return address

    def leader(self, topic: str, partition: int) -> BlockingConnection:
        """An open connection to the partition's leader, shared by all partitions with this leader."""
        return self._connection(self.leader_address(topic, partition))

    def forget_leaders(self) -> None:
        """Have metadata requested again before the next connection to a leader."""
        self._leaders.clear()

    def call(self, message: Message, expected: type[R]) -> R:
        """Return the response of any broker."""
        return self._any_connection().call(message, expected)

    def patiently(self, request: Callable[[], T], patience_ms: int) -> T:
        """Return what `request`, which uses this cluster, returns; retry what may pass for `patience_ms`."""
        return retrying(
            request,
            retries=0,
            interval_ms=self._options.retry_backoff_max_ms,
            patience_s=patience_ms / 1000,
            first_interval_ms=self._options.retry_backoff_ms,
        )

    def max_message_bytes(self, topic: str) -> int:
        """The maximum size of a batch of the topic."""
        return max_message_bytes(self.call(DescribeConfigsRequest([topic]), DescribeConfigsResponse))

    def list_offsets(
        self,
        times: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, ListedOffset]:
        """Return for each partition the first record at or after a time in milliseconds (or LATEST_TIMESTAMP etc.).

        `offset` is -1 if no record is that recent. Raises the error of the first partition that has one.
        """

        def ask(partitions: list[TopicPartition], leader: BlockingConnection) -> list[ListedOffset]:
            wanted = [ListOffsetsPartition(*tp, times[tp]) for tp in partitions]
            return leader.call(ListOffsetsRequest(wanted, isolation), ListOffsetsResponse).partitions

        return self._ask_leaders(times, ask)

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return for each partition the end offset of a leader epoch, or of the newest known one below it.

        It is -1 if the epoch is newer than all. Raises the error of the first partition that has one.
        """

        def ask(partitions: list[TopicPartition], leader: BlockingConnection) -> list[EpochEndOffset]:
            wanted = [OffsetForLeaderEpochPartition(*tp, epochs[tp]) for tp in partitions]
            return leader.call(OffsetForLeaderEpochRequest(wanted), OffsetForLeaderEpochResponse).partitions

        return {tp: end.end_offset for tp, end in self._ask_leaders(epochs, ask).items()}

    @property
    def throttled_ms(self) -> int:
        """For how long brokers have delayed it because of quotas."""
        now_s = time.monotonic()
        return int(sum(throttle.elapsed_s(now_s) for throttle in self._throttles.values()) * 1000)

    def close(self) -> None:
        """Close every connection; a later call opens new ones."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _ask_leaders(
        self,
        partitions: Iterable[TopicPartition],
        ask: Callable[[list[TopicPartition], BlockingConnection], list[Result]],
    ) -> dict[TopicPartition, Result]:
        """Return the result of `ask` for each partition; raises the first error."""
        by_leader: dict[Address, list[TopicPartition]] = {}
        for tp in partitions:
            by_leader.setdefault(self.leader_address(*tp), []).append(tp)
        found: dict[TopicPartition, Result] = {}
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
        throttle = self._throttles[address]
        connection = self._connections[address] = BlockingConnection(*address, self._options, throttle=throttle)
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
