"""A program that answers Produce unseen: what the listener's codec and this machine's clients can do at most.

`python -m benchmarks.kafka.unseen PORT` listens until it is ended.
"""

import asyncio
import sys
from typing import Any, cast

import uvloop

from warmlog_protocol.kafka.connection import KafkaConnection, KafkaRequest
from warmlog_protocol.kafka.schema import API

ANSWERED = ("ApiVersions", "Metadata", "InitProducerId", "Produce")


class _Unseen(asyncio.Protocol):
    """Answers what a producer asks, and looks at no batch."""

    def __init__(self, partitions: int) -> None:
        served = {API[name].key: API[name] for name in ANSWERED}
        self._connection = KafkaConnection(
            served, max_frame_bytes=1 << 26, buffer_bytes=1 << 20, max_request_bytes=1 << 20, max_items=1000
        )
        self._partitions = partitions
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            room = self._connection.get_buffer()
            count = min(len(room), len(view))
            room[:count] = view[:count]
            view = view[count:]
            for request in self._connection.received(count):
                message = self._answer(request)
                pieces = self._connection.respond(request.api, request.version, request.correlation_id, message)
                self._transport.write(b"".join(pieces))

    def _answer(self, request: KafkaRequest) -> Any:
        response: Any = request.api.response
        name = request.api.name
        if name == "ApiVersions":
            told = [API[each] for each in ANSWERED]
            return response(0, [response.ApiVersion(api.key, api.versions.first, api.versions.last) for api in told])
        if name == "InitProducerId":
            return response(0, 0, 1, 0)
        if name == "Metadata":
            host, port = self._transport.get_extra_info("sockname")
            parts = [response.MetadataResponsePartition(0, n, 1, 0, [1], [1]) for n in range(self._partitions)]
            topics = [
                response.MetadataResponseTopic(0, topic.name, b"t" * 16, False, parts)
                for topic in request.message.topics or ()
            ]
            return response(0, [response.MetadataResponseBroker(1, host, port)], "unseen", 1, topics)
        return response(
            [
                response.TopicProduceResponse(
                    topic.name,
                    topic.topic_id,
                    [response.PartitionProduceResponse(part.index) for part in topic.partition_data],
                )
                for topic in request.message.topic_data
            ]
        )


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: _Unseen(partitions=1), "127.0.0.1", port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
