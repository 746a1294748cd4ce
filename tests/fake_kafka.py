"""A Kafka that tells of its topics, for tests of adoption: ApiVersions, Metadata, DescribeConfigs over a real socket.

Layouts: the schemas ApiVersionsResponse v0, MetadataResponse v2 and DescribeConfigsResponse v0 and v2 of Apache Kafka.
"""

import socketserver
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

API_VERSIONS, METADATA, DESCRIBE_CONFIGS = 18, 3, 32
TOPIC_RESOURCE = 2
DYNAMIC_TOPIC_CONFIG, DEFAULT_CONFIG = 1, 5
DEFAULTS = {"retention.ms": "604800000", "retention.bytes": "-1", "cleanup.policy": "delete", "segment.ms": "604800000"}


@dataclass
class FakeTopic:
    """A topic: what was set on it, and the error instead of its settings."""

    partitions: int = 1
    settings: Mapping[str, str] = field(default_factory=dict)
    error: tuple[int, str] = (0, "")


class FakeKafka:
    """One broker; a context manager. It responds to nothing if `is_silent`."""

    def __init__(
        self,
        topics: Mapping[str, FakeTopic],
        *,
        cluster_id: str,
        configs_version: int = 2,
        is_silent: bool = False,
        advertised_port: int | None = None,
    ) -> None:
        self.topics = topics
        self.cluster_id = cluster_id
        self.configs_version = configs_version
        self.is_silent = is_silent
        self.advertised_port = advertised_port
        self.asked: list[str] = []
        """The topics of DescribeConfigs requests."""
        self._server = _Server(("127.0.0.1", 0), _Connection)
        self._server.kafka = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def response(self, api: int, version: int, body: bytes) -> bytes:
        """The body of the response to a request."""
        if api == API_VERSIONS:
            versions = {API_VERSIONS: 0, METADATA: 2, DESCRIBE_CONFIGS: self.configs_version}
            return _pack("h", 0) + _array([_pack("hhh", key, number, number) for key, number in versions.items()])
        if api == METADATA:
            (count,) = struct.unpack_from(">i", body)
            assert count in (-1, 0), "a request that names topics may create them"
            return self._metadata(self.topics if count else {})
        assert (api, version) == (DESCRIBE_CONFIGS, self.configs_version)
        return self._configs(_resources(body))

    def _metadata(self, shown: Mapping[str, FakeTopic]) -> bytes:
        broker = _pack("i", 1) + _text("127.0.0.1") + _pack("i", self.advertised_port or self.port) + _text(None)
        topics = [
            _pack("h", 0) + _text(name) + b"\0" + _array([_partition(number) for number in range(topic.partitions)])
            for name, topic in shown.items()
        ]
        return _array([broker]) + _text(self.cluster_id) + _pack("i", 1) + _array(topics)

    def _configs(self, names: list[str]) -> bytes:
        self.asked += names
        resources = []
        for name in names:
            topic = self.topics[name]
            code, message = topic.error
            entries = [] if code else [self._entry(topic, name) for name in sorted(DEFAULTS | dict(topic.settings))]
            resource = _pack("h", code) + _text(message) + _pack("b", TOPIC_RESOURCE) + _text(name) + _array(entries)
            resources.append(resource)
        return _pack("i", 0) + _array(resources)

    def _entry(self, topic: FakeTopic, name: str) -> bytes:
        is_set = name in topic.settings
        named = _text(name) + _text(topic.settings[name] if is_set else DEFAULTS[name]) + b"\0"
        if self.configs_version == 0:
            return named + _pack("??", not is_set, False)
        return named + _pack("b?", DYNAMIC_TOPIC_CONFIG if is_set else DEFAULT_CONFIG, False) + _array([])


class _Server(socketserver.ThreadingTCPServer):
    kafka: FakeKafka


class _Connection(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        while len(size := self.rfile.read(4)) == 4:
            request = self.rfile.read(*struct.unpack(">i", size))
            api, version, correlation_id, client_bytes = struct.unpack_from(">hhih", request)
            if self.server.kafka.is_silent:
                continue
            body = self.server.kafka.response(api, version, request[10 + client_bytes :])
            self.wfile.write(_pack("ii", 4 + len(body), correlation_id) + body)


def _resources(body: bytes) -> list[str]:
    """The names of the topics in a DescribeConfigs request for all settings."""
    (count,) = struct.unpack_from(">i", body)
    position, names = 4, []
    for _ in range(count):
        kind, length = struct.unpack_from(">bh", body, position)
        assert kind == TOPIC_RESOURCE
        names.append(body[position + 3 : position + 3 + length].decode())
        position += 3 + length
        assert body[position : position + 4] == _pack("i", -1)
        position += 4
    return names


def _partition(number: int) -> bytes:
    return _pack("hii", 0, number, 1) + _array([_pack("i", 1)]) * 2


def _pack(layout: str, *values: object) -> bytes:
    return struct.pack(f">{layout}", *values)


def _text(text: str | None) -> bytes:
    return _pack("h", -1) if text is None else _pack("h", len(text.encode())) + text.encode()


def _array(items: list[bytes]) -> bytes:
    return _pack("i", len(items)) + b"".join(items)
