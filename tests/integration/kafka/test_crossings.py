"""What one client writes, each of the others reads: the same keys, values, headers, timestamps and offsets."""

import gc
import warnings
from collections.abc import Iterator

import pytest

from pypi_clients import (
    CODECS,
    KAFKA_PYTHON_CODECS,
    READERS,
    RECORDS,
    SMALL_SEGMENTS,
    WRITERS,
    Read,
    Sent,
    read_at_rest,
    writers_of,
)
from warmlog.blocking import Admin
from warmlog.testing import EmbeddedBroker, embedded


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded(kafka_listen="127.0.0.1:0", log_cleaner_backoff_ms=20) as broker:
        yield broker


@pytest.fixture(autouse=True)
def _unclosed() -> Iterator[None]:
    """kafka-python leaves some sockets to the garbage collector."""
    yield
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()


def test_kafka_python_is_left_out_where_it_lacks_a_codec() -> None:
    assert set(CODECS) - set(KAFKA_PYTHON_CODECS) == {"snappy", "lz4"}


@pytest.mark.parametrize("codec", CODECS)
def test_each_client_reads_what_each_wrote(broker: EmbeddedBroker, codec: str) -> None:
    """One topic, so that rows and columns follow one another in it."""
    topic = f"crossed-{codec}"
    with Admin(broker.address) as admin:
        admin.create_topic(topic)
    names = writers_of(codec)
    for name in names:
        WRITERS[name](broker, topic, RECORDS, codec)
    sent = len(names) * RECORDS
    expected = [
        Read(offset, each.key, each.value, list(each.headers), each.timestamp_ms) for offset, each in enumerate(sent)
    ]
    for name in names:
        assert READERS[name](broker, topic, "read_uncommitted", len(sent)) == expected, name


def test_the_time_of_appending_is_the_same_for_all(broker: EmbeddedBroker) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic("appended", configs={"message.timestamp.type": "LogAppendTime"})
    for write in WRITERS.values():
        write(broker, "appended", RECORDS, "none")
    count = len(WRITERS) * len(RECORDS)
    views = {name: read(broker, "appended", "read_uncommitted", count) for name, read in READERS.items()}
    times_ms = [each.timestamp_ms for each in views["warmlog"]]
    assert times_ms == sorted(times_ms)
    assert times_ms[0] > max(each.timestamp_ms for each in RECORDS)
    assert [each.value for each in views["warmlog"]] == len(WRITERS) * [each.value for each in RECORDS]
    assert all(view == views["warmlog"] for view in views.values())


def test_all_read_the_same_of_what_compaction_has_left(broker: EmbeddedBroker) -> None:
    """Each has written a value for each key; the last client removes some."""
    with Admin(broker.address) as admin:
        admin.create_topic("state", configs=SMALL_SEGMENTS)
        for write in WRITERS.values():
            for part in range(3):
                write(broker, "state", [Sent(b"%d" % key, b"%d" % part * 90) for key in range(20)], "none")
        removed = [Sent(b"%d" % key, None) for key in range(5)]
        for _ in range(3):
            WRITERS["librdkafka"](broker, "state", [*removed, *[Sent(b"other", b"x" * 90)] * 20], "none")
    expected = read_at_rest(broker, "state", len(WRITERS) * 3 * 20 + 3 * 25)
    assert {each.key: each.value for each in expected if each.value}.keys() >= {b"%d" % key for key in range(5, 20)}
    for name, read in READERS.items():
        assert read(broker, "state", "read_uncommitted", len(expected)) == expected, name
