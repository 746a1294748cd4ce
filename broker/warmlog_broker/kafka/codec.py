"""Kafka's wire protocol as a `ProtocolCodec`."""

from typing import Any, ClassVar

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.kafka.translators import Served
from warmlog_broker.network.codec import SMALL_BUFFER_BYTES, Pieces, slices_bytes
from warmlog_broker.network.request import Slices, StartedRequest
from warmlog_protocol.errors import ApiError
from warmlog_protocol.kafka.connection import KafkaConnection, KafkaRequest
from warmlog_protocol.kafka.schema import Api


class KafkaStarted(StartedRequest, eq=False, gc=False, kw_only=True):
    """A request in flight. Its records are not in it: `message` says only where in the buffer they were.

    `message` is None if the response to an error does not need it: a SyncGroup may wait for long, with all assignments.
    """

    api: Api
    version: int
    message: Any


class KafkaCodec(KafkaConnection):
    """One connection of a client of Kafka: responses in the order of requests, records inside of them."""

    keeps_order: ClassVar[bool] = True

    def __init__(self, config: BrokerConfig, served: Served) -> None:
        super().__init__(
            served.apis,
            max_frame_bytes=config.socket_request_max_bytes,
            buffer_bytes=SMALL_BUFFER_BYTES,
            max_request_bytes=config.request_header_max_bytes,
            max_items=config.request_max_items,
        )
        self._translators = served
        self._client_id: str | None = None

    def begin(self, request: KafkaRequest) -> KafkaStarted:
        started = KafkaStarted(
            self._translators.endpoints[request.api.key],
            request.correlation_id,
            api=request.api,
            version=request.version,
            message=request.message if self._translators.keeps(request.api, request.version) else None,
        )
        if request.client_id != self._client_id:
            started.client_name = self._client_id = request.client_id
        return started

    def encode(self, request: StartedRequest, message: Any, slices: Slices) -> Pieces:
        """`slices` has an item for each field of records in the message, in its order."""
        assert isinstance(request, KafkaStarted)
        size = slices_bytes(slices)
        heads = self.respond(request.api, request.version, request.correlation_id, message, size)
        if not slices:
            return tuple(heads)
        pieces: list[Any] = []
        run: list[bytes] = []  # most partitions of a response have no records
        for head, records in zip(heads, (*slices, ()), strict=True):
            run.append(head)
            for piece in records:
                if isinstance(piece, bytes):
                    run.append(piece)
                else:
                    pieces += (b"".join(run), piece) if run else (piece,)
                    run = []
        return [*pieces, b"".join(run)]

    def encode_error(self, request: StartedRequest, error: ApiError) -> Pieces:
        assert isinstance(request, KafkaStarted)
        return self.encode(request, self._translators.failed(request.api, request.version, request.message, error), ())
