"""The client without an event loop: for worker processes that read one range and do nothing else, as Spark's do.

A `BlockingConnection` is the same sans-I/O core as the asyncio client's, around a plain socket. It does not reconnect:
its holder opens a new one. `BlockingCluster` finds leaders and asks for offsets over such connections.

A call that is interrupted, by Ctrl-C say, can be made again (see WholeCall).
"""

import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeVar

from warmlog.address import Address, parse_addresses
from warmlog.errors import (
    ApiError,
    BrokerUnavailable,
    ClientClosed,
    NotLeaderOrFollower,
    RemoteProtocolError,
    WarmlogError,
    error_from_code,
)
from warmlog.options import DEFAULT_MAX_MESSAGE_BYTES, ConnectionOptions
from warmlog.payload import owned
from warmlog_protocol.batch import Piece
from warmlog_protocol.connection import Answer, ClientConnection
from warmlog_protocol.frames import Allocate
from warmlog_protocol.memory import zeroed_memory
from warmlog_protocol.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    EpochEndOffset,
    HandshakeResponse,
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

R = TypeVar("R", bound=Message)
T = TypeVar("T")
Result = TypeVar("Result", ListedOffset, EpochEndOffset)
Place = tuple[str, int]
"""Topic and partition."""

MOST_PARTS = 1024
"""Of one sendmsg: IOV_MAX, https://man7.org/linux/man-pages/man2/writev.2.html."""
PARTITIONS_A_REQUEST = 2000
"""With the longest names these take half of a broker's `request.header.max.bytes`; it allows `request.max.items`."""
_SHORTEST_WAIT_S = 0.001  # a socket's timeout of 0 would mean not to wait at all


class Interruptible(Protocol):
    """What WholeCall asks of a client."""

    is_cut_short: bool

    def recover(self) -> None:
        """Clear up, whatever the last call has left half done. May itself be cut short, and is called again then."""


class WholeCall:
    """A context manager for one call of a client, which `recover`s before it if the last one was cut short.

    KeyboardInterrupt, or what else a signal handler raises, may come between any two steps of a call, and again while
    the first one is handled. So nothing is done when it comes: `is_cut_short` is true from before the first step until
    after the last one. Only a return, or an error of our own, ends a call.
    """

    __slots__ = ("_client",)

    def __init__(self, client: Interruptible) -> None:
        self._client = client

    def __enter__(self) -> None:
        if self._client.is_cut_short:
            self._client.recover()
        self._client.is_cut_short = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, WarmlogError):
            self._client.is_cut_short = False


class BlockingConnection:
    """One connection on a plain socket. Requests may be sent ahead: `request` now, `wait` for the answer later.

    Not for several threads at once. Every failure of the socket closes it and raises BrokerUnavailable. A call that is
    interrupted closes it, too: it may have sent or received half a frame.
    """

    def __init__(
        self, host: str, port: int, options: ConnectionOptions | None = None, *, allocate: Allocate = zeroed_memory
    ) -> None:
        """Connect and shake hands; BrokerUnavailable when that fails. `allocate` makes the memory of large answers."""
        self.address = Address(host, port)
        self._options = options or ConnectionOptions()
        self._core = ClientConnection(
            max_frame_bytes=self._options.max_frame_bytes,
            buffer_bytes=self._options.receive_buffer_bytes,
            allocate=allocate,
        )
        self._answers: dict[int, Answer] = {}
        self._socket: socket.socket | None = None
        self.is_cut_short = False
        try:
            self._socket = self._connect()
            self.broker = self.call(self._options.handshake(), HandshakeResponse)
        except BaseException:
            self.close()
            raise

    def request(self, message: Message, payload: Sequence[Piece] = ()) -> int:
        """Send a request; return the correlation id to `wait` for."""
        with WholeCall(self):
            return self._request(message, payload)

    def wait(self, correlation_id: int, timeout_ms: int | None = None) -> Answer:
        """The answer to one request; its payload is never overwritten. An ApiError for the whole request is raised.

        Answers to other requests that come in between are kept for their own `wait`.
        """
        with WholeCall(self):
            return self._wait(correlation_id, timeout_ms)

    def call(
        self,
        message: Message,
        expected: type[R],
        payload: Sequence[Piece] = (),
        *,
        timeout_ms: int | None = None,
    ) -> R:
        """Send a request and wait for its response, which has no payload."""
        with WholeCall(self):
            answer = self._wait(self._request(message, payload), timeout_ms)
        assert isinstance(answer.result, expected)
        return answer.result

    @property
    def is_open(self) -> bool:
        """False after `close`, and after a call that failed or was interrupted."""
        return self._socket is not None and not self.is_cut_short

    def close(self) -> None:
        """Close the socket; closing twice is allowed."""
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()

    def recover(self) -> None:
        """As Interruptible: the stream of bytes may have been left within a frame."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connect(self) -> socket.socket:
        try:
            sock = socket.create_connection(self.address, self._options.connect_timeout_ms / 1000)
        except OSError as error:
            raise BrokerUnavailable(f"no connection to broker {self.address}: {error}") from error
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def _request(self, message: Message, payload: Sequence[Piece]) -> int:
        correlation_id, frame = self._core.request(message, sum(map(len, payload)))
        sock = self._open_socket()
        try:
            _send_all(sock, [frame, *payload])
        except OSError as error:
            raise self._lost(error) from error
        return correlation_id

    def _wait(self, correlation_id: int, timeout_ms: int | None) -> Answer:
        deadline = time.monotonic() + (self._options.request_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        while (answer := self._answers.pop(correlation_id, None)) is None:
            self._receive(deadline)
        if isinstance(answer.result, ApiError):
            raise answer.result
        return answer

    def _open_socket(self) -> socket.socket:
        if self._socket is None:
            raise ClientClosed(f"the connection to broker {self.address} is closed")
        self._socket.settimeout(self._options.request_timeout_ms / 1000)
        return self._socket

    def _receive(self, deadline: float) -> None:
        """Wait for bytes once and keep the answers that they complete."""
        sock = self._open_socket()
        remaining = deadline - time.monotonic()
        try:
            sock.settimeout(max(remaining, _SHORTEST_WAIT_S))
            count = sock.recv_into(self._core.get_buffer())
            if count == 0:
                raise ConnectionResetError("the broker closed it")
            for answer in self._core.received(count):
                self._answers[answer.correlation_id] = owned(answer)
        except TimeoutError as error:
            raise self._lost(TimeoutError("no answer in time")) from error
        except (OSError, RemoteProtocolError) as error:
            raise self._lost(error) from error

    def _lost(self, error: Exception) -> BrokerUnavailable:
        self.close()
        return BrokerUnavailable(f"connection to broker {self.address} lost: {error}")


def in_requests(items: Sequence[T]) -> Iterator[list[T]]:
    """`items`, which have a partition each, in lists of as many as one request is to name."""
    for first in range(0, len(items), PARTITIONS_A_REQUEST):
        yield list(items[first : first + PARTITIONS_A_REQUEST])


def _send_all(sock: socket.socket, parts: Sequence[Piece]) -> None:
    """Send `parts` one after another, in as few calls as it takes."""
    pending = [memoryview(part) for part in parts if len(part)]
    first = 0
    while first < len(pending):
        sent = sock.sendmsg(pending[first : first + MOST_PARTS])
        while sent and sent >= len(pending[first]):
            sent -= len(pending[first])
            first += 1
        if sent:
            pending[first] = pending[first][sent:]


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
