"""A client of a few lines for the broker's tests: the protocol's core over a plain blocking socket."""

import socket
import ssl
from collections.abc import Sequence
from typing import Self, TypeVar, cast

from warmlog_protocol import messages as m
from warmlog_protocol.batch import encode_batch
from warmlog_protocol.errors import ApiError, error_from_code
from warmlog_protocol.wire.connection import ClientConnection, ReceivedResponse

TIMEOUT_S = 40
Response = TypeVar("Response", bound=m.Message)


class ConnectionEnded(Exception):
    """The broker has closed the connection."""


class WireClient:
    """One connection. `call` sends and waits; `send` and `receive` are its halves, for pipelining."""

    def __init__(
        self,
        address: str,
        *,
        handshake: bool = True,
        timeout_s: float = TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=host)
        self.connection = ClientConnection()
        self._answers: dict[int, ReceivedResponse] = {}
        if handshake:
            try:
                self.call(m.HandshakeRequest("wire-client", "1"))
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, message: m.Message, payload: bytes = b"", *, has_response: bool = True) -> int:
        """Sends a request; returns its correlation id."""
        correlation_id, frame = self.connection.request(message, len(payload), has_response=has_response)
        self.socket.sendall(frame + payload)
        return correlation_id

    def receive(self, correlation_id: int) -> tuple[m.Message, bytes]:
        """The answer to a request that was sent, and its payload; raises the error that came instead."""
        while correlation_id not in self._answers:
            self._receive_some()
        answer = self._answers.pop(correlation_id)
        if isinstance(answer.result, ApiError):
            raise answer.result
        return answer.result, bytes(answer.payload)

    def has_answer(self, correlation_id: int) -> bool:
        """Whether the answer came while another one was waited for."""
        return correlation_id in self._answers

    def call(self, message: m.Message, payload: bytes = b"") -> m.Message:
        return self.receive(self.send(message, payload))[0]

    def wait_for_end(self) -> None:
        """Returns when the broker has closed the connection; fails after the timeout."""
        try:
            while True:
                self._receive_some()
        except (ConnectionEnded, ConnectionError):
            return

    def _receive_some(self) -> None:
        buffer = self.connection.get_buffer()
        count = self.socket.recv_into(buffer)
        if not count:
            raise ConnectionEnded
        for answer in self.connection.received(count):
            self._answers[answer.correlation_id] = answer._replace(payload=memoryview(bytes(answer.payload)))

    # --- the calls that most tests need --------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> bytes:
        """Creates a topic (settings with underscores for dots); returns its id, or raises why it was refused."""
        settings = {setting.replace("_", "."): value for setting, value in configs.items()}
        response = self.call(m.CreateTopicsRequest([m.NewTopic(name, partitions, 1, settings)]))
        created = cast("m.CreateTopicsResponse", response).topics[0]
        if created.error_code:
            raise error_from_code(created.error_code, created.error_message)
        return created.topic_id

    def leaders(self, topic: str = "t") -> list[int]:
        """The leader of each partition, -1 for one that is offline."""
        metadata = cast("m.MetadataResponse", self.call(m.MetadataRequest([topic])))
        return [partition.leader_id for partition in metadata.topics[0].partitions]

    def producer_id(self) -> tuple[int, int]:
        response = cast("m.InitProducerIdResponse", self.call(m.InitProducerIdRequest()))
        return response.producer_id, response.producer_epoch

    def produce(
        self, topic: str, batch: bytes, *, partition: int = 0, acks: int = m.ACKS_ALL, timeout_ms: int = 10_000
    ) -> m.ProducedPartition:
        """Produces one sealed batch; raises the error of its partition."""
        correlation_id = self.send_produce(topic, batch, partition=partition, acks=acks, timeout_ms=timeout_ms)
        return self.produced(correlation_id)

    def send_produce(
        self, topic: str, batch: bytes, *, partition: int = 0, acks: int = m.ACKS_ALL, timeout_ms: int = 10_000
    ) -> int:
        message = m.ProduceRequest(acks, timeout_ms, [m.ProducePartition(topic, partition, len(batch))])
        return self.send(message, batch, has_response=acks != 0)

    def produced(self, correlation_id: int) -> m.ProducedPartition:
        response = cast("m.ProduceResponse", self.receive(correlation_id)[0])
        result = response.partitions[0]
        if result.error_code:
            raise error_from_code(result.error_code, result.error_message)
        return result

    def fetch(
        self,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        replica_id: int = m.CONSUMER_REPLICA_ID,
    ) -> tuple[m.FetchedPartition, bytes]:
        """Fetches one partition; raises its error."""
        wanted = m.FetchPartition(topic, partition, offset, max_bytes)
        request = m.FetchRequest(max_wait_ms, min_bytes, max_bytes, [wanted], replica_id=replica_id)
        return self.fetched(self.send(request))

    def fetched(self, correlation_id: int) -> tuple[m.FetchedPartition, bytes]:
        response, payload = self.receive(correlation_id)
        result = cast("m.FetchResponse", response).partitions[0]
        if result.error_code:
            raise error_from_code(result.error_code, result.error_message)
        return result, payload

    def offset_at(self, topic: str, timestamp_ms: int, *, partition: int = 0, replica_id: int = -1) -> int:
        wanted = m.ListOffsetsPartition(topic, partition, timestamp_ms)
        response = self.call(m.ListOffsetsRequest([wanted], replica_id=replica_id))
        found = cast("m.ListOffsetsResponse", response).partitions[0]
        if found.error_code:
            raise error_from_code(found.error_code, found.error_message)
        return found.offset


def batch_of(
    values: Sequence[bytes],
    *,
    timestamp_ms: int = 1_700_000_000_000,
    producer: tuple[int, int] = (-1, -1),
    base_sequence: int = -1,
    is_transactional: bool = False,
) -> bytes:
    """A sealed batch of `values`."""
    producer_id, producer_epoch = producer
    return encode_batch(
        values,
        timestamps_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_transactional=is_transactional,
    )
