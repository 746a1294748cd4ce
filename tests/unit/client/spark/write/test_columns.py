"""Which columns a write takes, and what is said of the others."""

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from warmlog.spark.write.writer import WRITTEN, written_columns
from warmlog_protocol.errors import InvalidConfig

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
TYPES = {
    "headers": HEADERS,
    "partition": IntegerType(),
    "value": BinaryType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
}


def schema_of(*names: str) -> StructType:
    return StructType([StructField(name, TYPES.get(name, StringType())) for name in names])


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
            StructType([StructField("value", LongType())]),
            "column value is bigint, and only string or binary can be written",
        ),
    ],
)
def test_what_cannot_be_written_is_refused_in_words(schema: StructType, message: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        written_columns(schema, has_topic=False, include_headers=True)
    assert message in str(caught.value)
