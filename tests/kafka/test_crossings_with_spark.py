"""What each client writes, both of Spark's connectors read, and the other way round: Kafka's and warmlog's data source.

How the clients from PyPI cross each other is in `integration/kafka/test_crossings.py`.
"""

import base64
import gc
import json
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import pytest

from pypi_clients import CODECS, READERS, RECORDS, SMALL_SEGMENTS, WRITERS, Read, Sent, read_at_rest, writers_of
from pypi_transactions import COMMITTED, INPUT, WRITTEN
from pypi_transactions import WRITERS as TRANSACTIONS
from spark.ported_job import run_job
from warmlog.blocking import Admin
from warmlog.testing import EmbeddedBroker, embedded

TESTS = Path(__file__).parents[1]
JARS = Path(os.environ.get("CONNECTOR_JARS") or TESTS.parent / "build" / "kafka-connector-jars")
JOB = TESTS / "spark" / "crossing_job.py"
CONNECTORS = ["kafka", "warmlog"]
"""The formats' names. What warmlog's writes is a transaction, whose end takes an offset: it is last in a topic."""
ISOLATIONS = ["read_committed", "read_uncommitted"]
CROSSED = [f"crossed-{codec}" for codec in CODECS]
STATES = [[Sent(b"%d" % key, b"%d" % part * 90) for key in range(20)] for part in range(3)]
Views = dict[tuple[str, str, str], list[Read]]
"""By topic, connector and isolation level."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not list(JARS.glob("*.jar")), reason="no jars of Kafka's connector: make test-kafka"),
]


class Steps:
    """What a job is to do."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._servers = {"kafka": broker.kafka_address, "warmlog": broker.address}
        self._steps: list[tuple[object, dict[str, str]]] = []

    def write(self, topic: str, records: Sequence[Sent], codec: str = "none") -> None:
        """Append the records once by each connector."""
        rows = [
            (_packed(each.key), _packed(each.value), [(name, _packed(data)) for name, data in each.headers], each[3])
            for each in records
        ]
        for connector in CONNECTORS:
            self._add(connector, rows, topic=topic, compression=codec)

    def read(self, topic: str) -> None:
        """Read by each connector in each isolation level."""
        for connector, isolation in product(CONNECTORS, ISOLATIONS):
            self._add(connector, None, subscribe=topic, isolation=isolation)

    def _add(self, connector: str, rows: object, **options: str) -> None:
        names = {"compression": "kafka.compression.type", "isolation": "kafka.isolation.level"}
        given = {names.get(name, name): value for name, value in options.items()}
        servers = {"format": connector, "kafka.bootstrap.servers": self._servers[connector]}
        self._steps.append((rows, servers | given))

    def run(self, directory: Path) -> list[list[Read]]:
        """What was read, in the order of the steps."""
        path = directory / "steps"
        path.write_text(json.dumps(self._steps))
        class_path = {"spark.driver.extraClassPath": f"{JARS}/*"}
        return [
            [
                Read(offset, _unpacked(key), _unpacked(value), [(name, _unpacked(data)) for name, data in headers], ms)
                for offset, key, value, headers, ms in rows
            ]
            for rows in run_job(JOB, path, directory=directory, **class_path)
        ]


def _packed(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _unpacked(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    # Without retention, as the records are of 2023.
    with embedded(kafka_listen="127.0.0.1:0", log_cleaner_backoff_ms=20, retention_ms=-1) as broker:
        yield broker


@pytest.fixture(autouse=True)
def _unclosed() -> Iterator[None]:
    """kafka-python leaves some sockets to the garbage collector."""
    yield
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()


@pytest.fixture(scope="module")
def views(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Views:
    """What Spark reads after all have written: the clients, then Kafka's connector, then warmlog's."""
    topics = [*CROSSED, "appended", "transactions", "state"]
    configs = {"appended": {"message.timestamp.type": "LogAppendTime"}, "state": SMALL_SEGMENTS}
    with Admin(broker.address) as admin:
        for topic in (*topics, INPUT):
            admin.create_topic(topic, configs=configs.get(topic, {}))
    writing, reading = Steps(broker), Steps(broker)
    for topic, codec in zip(CROSSED, CODECS, strict=True):
        for name in writers_of(codec):
            WRITERS[name](broker, topic, RECORDS, codec)
        writing.write(topic, RECORDS, codec)
    for write in WRITERS.values():
        write(broker, "appended", RECORDS, "none")
        for state in STATES:
            write(broker, "state", state, "none")
    for write_transactions in TRANSACTIONS:
        write_transactions(broker, "transactions")
    writing.write("appended", RECORDS)
    for state in STATES:
        writing.write("state", state)
    writing.write("transactions", [Sent(None, b"four")])
    writing.run(tmp_path_factory.mktemp("writing"))
    for _ in range(3):
        removed = [Sent(b"%d" % key, None) for key in range(5)]
        WRITERS["librdkafka"](broker, "state", [*removed, *[Sent(b"other", b"x" * 90)] * 20], "none")
    read_at_rest(broker, "state", (len(WRITERS) + len(CONNECTORS)) * 60 + 3 * 25)
    for topic in topics:
        reading.read(topic)
    found = reading.run(tmp_path_factory.mktemp("reading"))
    return dict(zip(product(topics, CONNECTORS, ISOLATIONS), found, strict=True))


def check_all_read(broker: EmbeddedBroker, views: Views, topic: str, isolation: str, expected: list[Read]) -> None:
    for connector in CONNECTORS:
        assert views[topic, connector, isolation] == expected, connector
    for name in writers_of(topic.removeprefix("crossed-")):
        assert READERS[name](broker, topic, isolation, len(expected)) == expected, name


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("codec", CODECS)
def test_all_read_what_each_wrote(broker: EmbeddedBroker, views: Views, codec: str, isolation: str) -> None:
    """Kafka's connector has no column for the time of a record: it is that of writing."""
    topic = f"crossed-{codec}"
    clients = len(writers_of(codec))
    seen = views[topic, "kafka", isolation]
    by_kafka = range(clients * len(RECORDS), (clients + 1) * len(RECORDS))
    expected = [
        Read(
            offset,
            each.key,
            each.value,
            list(each.headers),
            seen[offset].timestamp_ms if offset in by_kafka else each.timestamp_ms,
        )
        for offset, each in enumerate((clients + len(CONNECTORS)) * RECORDS)
    ]
    check_all_read(broker, views, topic, isolation, expected)
    written_ms = [seen[offset].timestamp_ms for offset in by_kafka]
    assert max(each.timestamp_ms for each in RECORDS) < min(written_ms) <= max(written_ms) <= time.time() * 1000


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_the_time_of_appending_is_the_same_for_all(broker: EmbeddedBroker, views: Views, isolation: str) -> None:
    expected = views["appended", "kafka", isolation]
    times_ms = [each.timestamp_ms for each in expected]
    assert times_ms == sorted(times_ms)
    assert times_ms[0] > max(each.timestamp_ms for each in RECORDS)
    assert [each.value for each in expected] == 6 * [each.value for each in RECORDS]
    check_all_read(broker, views, "appended", isolation, expected)


@pytest.mark.parametrize(("isolation", "values"), [*zip(ISOLATIONS, [COMMITTED, WRITTEN], strict=True)])
def test_transactions_of_both_versions(
    broker: EmbeddedBroker, views: Views, isolation: str, values: list[bytes]
) -> None:
    expected = views["transactions", "kafka", isolation]
    assert [each.value for each in expected] == len(TRANSACTIONS) * values + 2 * [b"four"]
    check_all_read(broker, views, "transactions", isolation, expected)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_all_read_the_same_of_what_compaction_has_left(broker: EmbeddedBroker, views: Views, isolation: str) -> None:
    expected = views["state", "kafka", isolation]
    assert {each.key for each in expected if each.value} >= {b"%d" % key for key in range(5, 20)}
    check_all_read(broker, views, "state", isolation, expected)
