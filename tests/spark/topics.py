"""Topics filled with sealed batches over a plain connection, so that tests know each record that Spark must show."""

from random import Random
from typing import NamedTuple, Self

from warmlog_protocol import messages as m
from warmlog_protocol.batch import encode_batch, read_batch, to_rows
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.errors import error_from_code
from wire_client import WireClient


class Record(NamedTuple):
    """What a test produces."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int = 1_700_000_000_000
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Stored(NamedTuple):
    """What Spark must show of it."""

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    headers: tuple[tuple[str, bytes | None], ...]


def some_records(random: Random, count: int) -> list[Record]:
    """Records with null and empty keys and values, all kinds of times and headers."""
    return [
        Record(
            random.choice([None, b"", random.randbytes(random.randrange(30))]),
            random.choice([None, b"", random.randbytes(100), b"x" * random.randrange(300)]),
            random.choice([0, 999, 1_700_000_000_123, 1_356_998_400_000 + random.randrange(10**10)]),
            tuple(
                (random.choice(["", "a", "größe"]), random.choice([None, b"", b"v"]))
                for _ in range(random.randrange(3))
            ),
        )
        for _ in range(count)
    ]


class Topics:
    """Creates, fills and deletes topics; a context manager that closes its connection."""

    def __init__(self, host: str, port: int) -> None:
        self._client = WireClient(f"{host}:{port}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def create(self, name: str, partitions: int = 1, **configs: str) -> str:
        """Create a topic that keeps everything, however old; settings have underscores for dots. Returns the name."""
        settings = {"retention_ms": "-1", **configs}
        new = m.NewTopic(name, partitions, configs={key.replace("_", "."): value for key, value in settings.items()})
        response = self._client.call(m.CreateTopicsRequest([new]))
        assert isinstance(response, m.CreateTopicsResponse)
        (created,) = response.topics
        if created.error_code:
            raise error_from_code(created.error_code, created.error_message)
        return name

    def delete(self, name: str) -> None:
        response = self._client.call(m.DeleteTopicsRequest([name]))
        assert isinstance(response, m.DeleteTopicsResponse)
        (deleted,) = response.topics
        if deleted.error_code:
            raise error_from_code(deleted.error_code, deleted.error_message)

    def delete_records(self, topic: str, partition: int, offset: int) -> None:
        """Give up the records below `offset`."""
        response = self._client.call(m.DeleteRecordsRequest([m.DeleteRecordsPartition(topic, partition, offset)]))
        assert isinstance(response, m.DeleteRecordsResponse)
        (deleted,) = response.partitions
        if deleted.error_code:
            raise error_from_code(deleted.error_code, deleted.error_message)

    def fill(
        self, topic: str, partition: int, records: list[Record], *, codec: Codec = Codec.NONE, as_rows: bool = False
    ) -> list[Stored]:
        """Append `records` as one batch; returns when it is on disk."""
        batch = encode_batch(
            [record.value for record in records],
            keys=[record.key for record in records],
            timestamps_ms=[record.timestamp_ms for record in records],
            headers=[record.headers for record in records],
            codec=codec,
        )
        if as_rows:
            batch = to_rows(read_batch(batch))
        produced = self._client.produce(topic, batch, partition=partition)
        append_time_ms = produced.log_append_time_ms
        return [
            Stored(
                record.key,
                record.value,
                topic,
                partition,
                produced.base_offset + i,
                record.timestamp_ms if append_time_ms < 0 else append_time_ms,
                0 if append_time_ms < 0 else 1,
                record.headers,
            )
            for i, record in enumerate(records)
        ]
