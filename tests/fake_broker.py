"""A broker in memory, for tests of the client: it speaks the real protocol over a real socket and misbehaves on order.

It keeps batches in lists, checks sequences as a broker must, and takes one `Fault` for each Produce request from
`faults`; without any it answers. What a client did is in `produced`, `handshakes` and the partitions' lists.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Self
from uuid import UUID, uuid5

import warmlog
from warmlog_protocol import messages as m
from warmlog_protocol.batch import BatchHeader, RecordBatch, iter_batches, placement_prefix, read_header
from warmlog_protocol.wire.connection import Request, ServerConnection

MAX_FRAME_BYTES = 16 * 1024 * 1024
_NAMESPACE = UUID("00000000-0000-0000-0000-000000007400")


class Fault(Enum):
    """What happens to one Produce request."""

    NONE = auto()
    LOSE_REQUEST = auto()
    """The connection breaks; nothing was appended."""
    LOSE_ANSWER = auto()
    """Appended, and then the connection breaks."""
    IGNORE = auto()
    """Appended and never answered; the connection stays."""
    HOLD = auto()
    """Appended, and answered when `release` is called."""
    STORAGE_ERROR = auto()
    """Refused with a retriable error."""
    NOT_ENOUGH_REPLICAS = auto()
    """Refused, as too few replicas are in sync."""
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = auto()
    """Appended, and refused for the same reason."""
    TOO_LARGE = auto()
    """Refused for good."""
    UNKNOWN_PRODUCER = auto()
    """Refused, but for batches that are there already: as if nothing more was known of the producer."""


@dataclass
class FakePartition:
    """One partition's log and what it knows of producers."""

    batches: list[tuple[int, bytes]] = field(default_factory=list)
    log_start_offset: int = 0
    next_offset: int = 0
    producers: dict[int, tuple[int, deque[tuple[int, int, int]]]] = field(default_factory=dict)
    most_committed: int = 1 << 62
    """Readers see nothing from here on: the high watermark is not above it."""

    def append(self, data: bytes) -> int:
        """The base offset of the batch: where it lies already, if it is a duplicate."""
        header = read_header(data)
        if header.has_producer and (found := self._check_sequence(header)) is not None:
            return found
        base_offset = self.next_offset
        self.batches.append((base_offset, placement_prefix(header, base_offset, 0) + data[21:]))
        self.next_offset += header.last_offset_delta + 1
        return base_offset

    def has(self, data: bytes) -> bool:
        """Whether the batch is among the last five of its producer."""
        header = read_header(data)
        epoch, last = self.producers.get(header.producer_id, (-1, deque()))
        known = [(first, end) for first, end, _ in last if epoch == header.producer_epoch]
        return (header.base_sequence, header.last_sequence) in known

    def _check_sequence(self, header: BatchHeader) -> int | None:
        epoch, last = self.producers.get(header.producer_id, (header.producer_epoch, deque(maxlen=5)))
        if epoch != header.producer_epoch:
            assert header.producer_epoch > epoch, "a fenced producer went on"
            assert header.base_sequence == 0
            last = deque(maxlen=5)
        for first_sequence, last_sequence, base_offset in last:
            if (first_sequence, last_sequence) == (header.base_sequence, header.last_sequence):
                return base_offset
        if last and header.base_sequence != (last[-1][1] + 1) & 0x7FFFFFFF:
            if header.base_sequence < last[0][0]:
                raise warmlog.DuplicateSequence("older than the five remembered")
            raise warmlog.OutOfOrderSequence(f"sequence {header.base_sequence} after {last[-1][1]}")
        last.append((header.base_sequence, header.last_sequence, self.next_offset))
        self.producers[header.producer_id] = (header.producer_epoch, last)
        return None

    def read_all(self) -> list[RecordBatch]:
        return [batch for _, data in self.batches for batch in iter_batches(data)]

    def values(self) -> list[bytes | None]:
        """Every record's value, in the order of the log."""
        return [value for batch in self.read_all() for value in batch.values()]


def topic_id(name: str) -> bytes:
    """The id of a topic of this name."""
    return uuid5(_NAMESPACE, name).bytes


class FakeBroker:
    """An async context manager that listens on `port`; `stop` and `start` restart it with the same data and port."""

    def __init__(self, **topics: int) -> None:
        self.topics = {name: [FakePartition() for _ in range(count)] for name, count in topics.items()}
        self.configs: dict[str, dict[str, str]] = defaultdict(lambda: {"max.message.bytes": "1048576"})
        self.faults: deque[Fault] = deque()
        self.produced: list[m.ProduceRequest] = []
        self.handshakes: list[m.HandshakeRequest] = []
        self.fetch_error: Callable[[m.FetchPartition], warmlog.ApiError | None] = lambda _: None
        self.next_offset: Callable[[m.FetchPartition], int] = lambda _: -1
        """Where a reader is told to go on."""
        self.diverging: Callable[[m.FetchPartition], m.DivergingEpoch | None] = lambda _: None
        """Where it says that the log was cut: nothing is read then."""
        self.refusal: Callable[[m.Message], warmlog.ApiError | None] = lambda _: None
        """With what a request other than Produce and Fetch is refused."""
        self.further_handlers: dict[type[m.Message], Callable[..., m.Message]] = {}
        """What other requests are answered with."""
        self.is_silent = False
        """While true, nothing at all is answered."""
        self.port = 0
        self._held: list[Callable[[], None]] = []
        self._next_producer_id = 4000
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._appended = asyncio.Event()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """How many are open now."""
        return len(self._writers)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and break every connection."""
        assert self._server is not None
        self._server.close()
        self.disconnect()
        while self._tasks:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.wait(list(self._tasks))
        await self._server.wait_closed()  # since Python 3.12 for the connections, too
        self._held.clear()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def disconnect(self) -> None:
        """Break every connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    def release(self, *, is_reversed: bool = False) -> None:
        """Send the answers that were held back."""
        held, self._held = self._held, []
        for answer in reversed(held) if is_reversed else held:
            answer()

    def add_batch(self, topic: str, partition: int, data: bytes) -> int:
        """Append a batch as it is, right or wrong; its base offset."""
        offset = self.topics[topic][partition].append(data)
        self._wake_fetches()
        return offset

    # --- connections ------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        connection = ServerConnection(max_frame_bytes=MAX_FRAME_BYTES, buffer_bytes=64 * 1024)
        try:
            while data := await reader.read(64 * 1024):
                for request in _requests(connection, data):
                    if not self.is_silent:
                        self._handle(connection, writer, request)
        except (ConnectionError, warmlog.RemoteProtocolError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()
            self._tasks.discard(task)

    def _handle(self, connection: ServerConnection, writer: asyncio.StreamWriter, request: Request) -> None:
        if isinstance(request.message, m.FetchRequest):
            task = asyncio.create_task(self._fetch(connection, writer, request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        if isinstance(request.message, m.ProduceRequest):
            self._produce(connection, writer, request)
            return
        if (refusal := self.refusal(request.message)) is not None:
            writer.write(connection.refuse(request.correlation_id, refusal))
            return
        handlers: dict[type[m.Message], Callable[..., m.Message]] = {
            m.HandshakeRequest: self._handshake,
            m.MetadataRequest: self._metadata,
            m.DescribeConfigsRequest: self._describe_configs,
            m.InitProducerIdRequest: self._init_producer_id,
            m.ListOffsetsRequest: self._list_offsets,
            m.FindCoordinatorRequest: _alone,
            **self.further_handlers,
        }
        try:
            response = connection.respond(request.correlation_id, handlers[type(request.message)](request.message))
        except warmlog.ApiError as error:
            response = connection.refuse(request.correlation_id, error)
        writer.write(response)

    def _handshake(self, request: m.HandshakeRequest) -> m.HandshakeResponse:
        self.handshakes.append(request)
        apis = [m.ApiVersions(api.key, api.min_version, api.max_version) for api in m.APIS.values()]
        return m.HandshakeResponse("fake", "cluster", 0, MAX_FRAME_BYTES, apis)

    def _metadata(self, request: m.MetadataRequest) -> m.MetadataResponse:
        names = list(self.topics) if request.topics is None else request.topics
        topics = [self._topic_metadata(name) for name in names]
        return m.MetadataResponse("cluster", 0, [m.BrokerMetadata(0, "", 0)], topics)

    def _topic_metadata(self, name: str) -> m.TopicMetadata:
        if name not in self.topics:
            return m.TopicMetadata(warmlog.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name, bytes(16), [])
        partitions = [m.PartitionMetadata(0, i, 0, 0, [0], [0]) for i in range(len(self.topics[name]))]
        return m.TopicMetadata(0, name, topic_id(name), partitions)

    def _describe_configs(self, request: m.DescribeConfigsRequest) -> m.DescribeConfigsResponse:
        return m.DescribeConfigsResponse(
            [
                m.DescribedConfigs(0, "", name, [m.ConfigValue(*item, True, "") for item in self.configs[name].items()])
                for name in request.topics
            ]
        )

    def _init_producer_id(self, request: m.InitProducerIdRequest) -> m.InitProducerIdResponse:
        if request.producer_id >= 0:
            return m.InitProducerIdResponse(request.producer_id, request.producer_epoch + 1)
        self._next_producer_id += 1
        return m.InitProducerIdResponse(self._next_producer_id, 0)

    def _list_offsets(self, request: m.ListOffsetsRequest) -> m.ListOffsetsResponse:
        return m.ListOffsetsResponse([self._list_offset(asked) for asked in request.partitions])

    def _list_offset(self, asked: m.ListOffsetsPartition) -> m.ListedOffset:
        partition = self.topics[asked.topic][asked.partition]
        found = (-1, -1)
        if asked.timestamp_ms == m.LATEST_TIMESTAMP:
            found = (-1, partition.next_offset)
        elif asked.timestamp_ms == m.EARLIEST_TIMESTAMP:
            found = (-1, partition.log_start_offset)
        else:
            for batch in partition.read_all():
                for offset, timestamp_ms in zip(batch.offsets(), batch.timestamps_ms(), strict=True):
                    if timestamp_ms >= asked.timestamp_ms and found[1] < 0:
                        found = (timestamp_ms, offset)
        return m.ListedOffset(asked.topic, asked.partition, 0, "", *found, 0)

    # --- Produce ----------------------------------------------------------------------------------------------------

    def _produce(self, connection: ServerConnection, writer: asyncio.StreamWriter, request: Request) -> None:
        message = request.message
        assert isinstance(message, m.ProduceRequest)
        self.produced.append(message)
        fault = self.faults.popleft() if self.faults else Fault.NONE
        if fault is Fault.LOSE_REQUEST:
            writer.transport.abort()
            return
        response = m.ProduceResponse(self._append(message, bytes(request.payload), fault))
        self._wake_fetches()
        if fault is Fault.LOSE_ANSWER:
            writer.transport.abort()
        elif fault is Fault.HOLD:
            self._held.append(lambda: writer.write(connection.respond(request.correlation_id, response)))
        elif fault is not Fault.IGNORE and message.acks != 0:
            writer.write(connection.respond(request.correlation_id, response))

    def _append(self, message: m.ProduceRequest, payload: bytes, fault: Fault) -> list[m.ProducedPartition]:
        results = []
        refusals = {
            Fault.STORAGE_ERROR: warmlog.ErrorCode.KAFKA_STORAGE_ERROR,
            Fault.NOT_ENOUGH_REPLICAS: warmlog.ErrorCode.NOT_ENOUGH_REPLICAS,
            Fault.TOO_LARGE: warmlog.ErrorCode.MESSAGE_TOO_LARGE,
            Fault.UNKNOWN_PRODUCER: warmlog.ErrorCode.UNKNOWN_PRODUCER_ID,
        }
        position = 0
        for part in message.partitions:
            data = payload[position : position + part.size_bytes]
            position += part.size_bytes
            code: int = refusals.get(fault, warmlog.ErrorCode.NONE)
            if fault is Fault.UNKNOWN_PRODUCER and self._partition(part.topic, part.partition).has(data):
                code = warmlog.ErrorCode.NONE
            base_offset = -1
            try:
                if not code:
                    base_offset = self._partition(part.topic, part.partition).append(data)
            except warmlog.ApiError as error:
                code = error.code
            if fault is Fault.NOT_ENOUGH_REPLICAS_AFTER_APPEND and not code:
                code, base_offset = warmlog.ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, -1
            results.append(m.ProducedPartition(part.topic, part.partition, code, "as ordered", base_offset))
        return results

    def _partition(self, topic: str, partition: int) -> FakePartition:
        if topic not in self.topics or partition >= len(self.topics[topic]):
            raise warmlog.UnknownTopicOrPartition(f"{topic}-{partition}")
        return self.topics[topic][partition]

    # --- Fetch ------------------------------------------------------------------------------------------------------

    def _wake_fetches(self) -> None:
        self._appended.set()
        self._appended = asyncio.Event()

    async def _fetch(self, connection: ServerConnection, writer: asyncio.StreamWriter, request: Request) -> None:
        message = request.message
        assert isinstance(message, m.FetchRequest)
        deadline = asyncio.get_running_loop().time() + message.max_wait_ms / 1000
        while True:
            appended = self._appended
            parts, payload = self._read(message)
            if payload or any(part.error_code or part.diverging for part in parts):
                break
            try:
                async with asyncio.timeout_at(deadline):
                    await appended.wait()
            except TimeoutError:
                break
        writer.write(connection.respond(request.correlation_id, m.FetchResponse(parts), len(payload)) + payload)

    def _read(self, message: m.FetchRequest) -> tuple[list[m.FetchedPartition], bytes]:
        parts: list[m.FetchedPartition] = []
        payload = b""
        for asked in message.partitions:
            error = self.fetch_error(asked)
            data = b""
            high_watermark, log_start_offset = -1, -1
            diverging = self.diverging(asked)
            try:
                if error is not None:
                    raise error
                partition = self._partition(asked.topic, asked.partition)
                high_watermark = min(partition.next_offset, partition.most_committed)
                log_start_offset = partition.log_start_offset
                if not log_start_offset <= asked.fetch_offset <= partition.next_offset:
                    raise warmlog.OffsetOutOfRange(f"offset {asked.fetch_offset}")
                for base_offset, batch in () if diverging else partition.batches:
                    if base_offset >= high_watermark:
                        break
                    if base_offset + read_header(batch).last_offset_delta >= asked.fetch_offset:
                        if payload + data and len(data) + len(batch) > asked.max_bytes:
                            break
                        data += batch
            except warmlog.ApiError as raised:
                error = raised
            code = warmlog.ErrorCode.NONE if error is None else error.code
            parts.append(
                m.FetchedPartition(
                    asked.topic,
                    asked.partition,
                    code,
                    str(error or ""),
                    high_watermark,
                    high_watermark,
                    log_start_offset,
                    0,
                    topic_id(asked.topic),
                    len(data),
                    next_offset=self.next_offset(asked),
                    diverging=diverging,
                )
            )
            payload += data
        return parts, payload


def _alone(request: m.FindCoordinatorRequest) -> m.FindCoordinatorResponse:
    return m.FindCoordinatorResponse([m.FoundCoordinator(0, "", key) for key in request.keys], is_for_all=True)


def _requests(connection: ServerConnection, data: bytes) -> list[Request]:
    """The requests that `data` complete, with payloads of their own."""
    requests: list[Request] = []
    rest = memoryview(data)
    while rest:
        buffer = connection.get_buffer()
        count = min(len(buffer), len(rest))
        buffer[:count] = rest[:count]
        rest = rest[count:]
        received = connection.received(count)
        requests += [request._replace(payload=memoryview(bytes(request.payload))) for request in received]
    return requests
