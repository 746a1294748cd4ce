"""The writers as Spark makes and ships them, without a session, and which columns a write takes."""

import pickle
from datetime import UTC, datetime

import pytest
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from warmlog.arrow_write.job import Job
from warmlog.spark.options.write_options import WriteOptions, parse_write_options
from warmlog.spark.source import WarmlogDataSource
from warmlog.spark.write.jobs import AttemptWritten
from warmlog.spark.write.task import arrow_of_rows
from warmlog.spark.write.writer import WRITTEN, WarmlogStreamWriter, WarmlogWriter, stream_writer, written_columns
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.errors import InvalidConfig

OPTIONS = {"bootstrap.servers": "127.0.0.1:1", "topic": "t"}
VALUE = t.StructType([t.StructField("value", t.BinaryType())])


def test_options_have_kafkas_names_and_defaults_that_keep_every_record() -> None:
    assert parse_write_options(OPTIONS) == WriteOptions(("127.0.0.1:1",), "t")
    given = {
        "kafka.bootstrap.servers": "h:1,i:2",
        "kafka.compression.type": "ZSTD",
        "kafka.batch.size": "65536",
        "kafka.delivery.timeout.ms": "30000",
        "includeheaders": "false",
        "checkpointlocation": "/somewhere",
        "txnappid": "nightly",
        "txnversion": "0",
        "transactiontimeoutms": "24h",
    }
    assert parse_write_options(given) == WriteOptions(
        ("h:1", "i:2"), None, False, Codec.ZSTD, 65536, 30_000, True, ("nightly", 0), 86_400_000
    )
    assert not parse_write_options(OPTIONS | {"delivery": "at-least-once"}).is_exactly_once


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"subscribe": "t"}, "option subscribe is for a batch and a stream, not for writing"),
        ({"compression.type": "brotli"}, "option compression.type is 'brotli': none or gzip or"),
        ({"kafka.acks": "1"}, "records are always written with acks=all"),
        ({"delivery": "at-most-once"}, "option delivery is 'at-most-once': exactly-once or at-least-once is expected"),
        ({"txnAppId": "a"}, "option txnAppId is given alone: txnAppId and txnVersion need each other"),
        ({"txnVersion": "1"}, "option txnVersion is given alone"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "option txnVersion is '-1': a whole number of at least 0"),
        ({"transactionTimeoutMs": "25h"}, "option transactionTimeoutMs is 90000000 ms: 1s to 24h is expected"),
        (
            {"delivery": "at-least-once", "transactionTimeoutMs": "1m"},
            "option transactionTimeoutMs has no use with delivery=at-least-once",
        ),
        ({"tpoic": "t"}, "format warmlog has no option tpoic: did you mean topic?"),
    ],
)
def test_options_that_cannot_be_used_are_refused_in_words(option: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse_write_options(OPTIONS | option)
    assert message in str(caught.value)


def test_overwriting_is_refused_in_words() -> None:
    with pytest.raises(InvalidConfig, match=r'a log can only be appended to: write with .mode\("append"\)'):
        WarmlogDataSource(OPTIONS).writer(VALUE, overwrite=True)
    with pytest.raises(InvalidConfig, match=r'a log can only be appended to: write with .outputMode\("append"\)'):
        WarmlogDataSource(OPTIONS).streamWriter(VALUE, overwrite=True)


def test_a_stream_takes_no_name_for_its_transactions() -> None:
    with pytest.raises(InvalidConfig, match="txnAppId and txnVersion are for batches"):
        WarmlogDataSource(OPTIONS | {"txnAppId": "a", "txnVersion": "1"}).streamWriter(VALUE, overwrite=False)


def test_writers_and_messages_travel_by_pickle() -> None:
    options = parse_write_options(OPTIONS)
    job = Job("name", 3)
    writer = pickle.loads(pickle.dumps(WarmlogWriter(options, {"value": 0}, job)))
    assert isinstance(writer, DataSourceArrowWriter)
    assert vars(writer) == {"_options": options, "_columns": {"value": 0}, "_job": job}
    streaming = pickle.loads(pickle.dumps(stream_writer(options, VALUE, overwrite=False)))
    assert isinstance(streaming, WarmlogStreamWriter)
    message = pickle.loads(pickle.dumps(AttemptWritten(5, 7, 0, job)))
    assert isinstance(message, WriterCommitMessage)
    assert message == AttemptWritten(5, 7, 0, job)


def test_a_write_at_least_once_that_is_aborted_says_what_stays_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    options = parse_write_options(OPTIONS | {"delivery": "at-least-once"})
    WarmlogWriter(options, {"value": 0}).abort([AttemptWritten(5, 7, 0), None])
    assert "5 records of finished tasks, and those that other tasks had sent, stay in the log" in caplog.text
    stream_writer(options, VALUE, overwrite=False).abort([None], 3)
    assert "micro-batch 3: the write failed; 0 records" in caplog.text


def test_rows_of_spark_without_an_arrow_writer_become_arrow() -> None:
    header = t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())])
    schema = t.StructType(
        [
            t.StructField("value", t.BinaryType()),
            t.StructField("headers", t.ArrayType(header)),
            t.StructField("timestamp", t.TimestampType()),
        ]
    )
    at = datetime(2026, 11, 21, 10, tzinfo=UTC)
    rows = [
        t.Row(value=bytearray(b"v"), headers=[t.Row(key="a", value=bytearray(b"b"))], timestamp=at),
        t.Row(value=None, headers=None, timestamp=at.astimezone().replace(tzinfo=None)),
    ]
    (batch,) = arrow_of_rows(iter(rows), schema)
    assert batch.to_pylist() == [
        {"value": b"v", "headers": [{"key": "a", "value": b"b"}], "timestamp": at},
        {"value": None, "headers": None, "timestamp": at},
    ]
    assert [len(part) for part in arrow_of_rows(iter(rows * 6_000), schema)] == [10_000, 2_000]


HEADERS = t.ArrayType(t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())]))
TYPES = {
    "headers": HEADERS,
    "partition": t.IntegerType(),
    "value": t.BinaryType(),
    "offset": t.LongType(),
    "timestamp": t.TimestampType(),
    "timestampType": t.IntegerType(),
}


def schema_of(*names: str) -> t.StructType:
    return t.StructType([t.StructField(name, TYPES.get(name, t.StringType())) for name in names])


def test_the_columns_of_kafkas_sink_are_found_wherever_they_lie() -> None:
    schema = schema_of("partition", "value", "key", "topic", "headers")
    found = written_columns(schema, has_topic=False, include_headers=True)
    assert found == {"partition": 0, "value": 1, "key": 2, "topic": 3, "headers": 4}
    assert set(written_columns(schema, has_topic=True, include_headers=False)) == {"partition", "value", "key"}
    assert set(found) < set(WRITTEN)


def test_what_reading_adds_is_left_out_so_that_a_topic_can_be_copied() -> None:
    read = schema_of("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    found = written_columns(read, has_topic=True, include_headers=True)
    assert list(found) == ["key", "value", "partition", "timestamp"]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (schema_of("vaule"), "column vaule cannot be written: did you mean value?"),
        (schema_of("value", "zzz"), "column zzz cannot be written: drop it, or put it into value; use value,"),
        (schema_of("key"), "there is no column value to write"),
        (schema_of("value"), "there is no topic to write to: give the option topic, or a column topic"),
        (schema_of("value", "value", "topic"), "there are two columns value: drop one"),
        (
            t.StructType([t.StructField("value", t.LongType())]),
            "column value is bigint, and only string or binary can be written",
        ),
    ],
)
def test_what_cannot_be_written_is_refused_in_words(schema: t.StructType, message: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        written_columns(schema, has_topic=False, include_headers=True)
    assert message in str(caught.value)
