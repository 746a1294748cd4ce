"""Schemas: Kafka's columns, any choice among them, nothing else."""

import inspect
from typing import Any

import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from warmlog.arrow.reader import COLUMN_TYPES as ARROW_TYPES
from warmlog.arrow.reader import arrow_schema
from warmlog.errors import InvalidConfig
from warmlog.ranges.read_settings import KAFKA_COLUMNS, Projection
from warmlog.spark.options.schema import COLUMN_TYPES, chosen_columns, parse_columns
from warmlog.spark.options.schema import schema_of as ddl_of

SPARK_TYPES: dict[str, t.DataType] = {
    "key": t.BinaryType(),
    "value": t.BinaryType(),
    "topic": t.StringType(),
    "partition": t.IntegerType(),
    "offset": t.LongType(),
    "timestamp": t.TimestampType(),
    "timestampType": t.IntegerType(),
    "headers": t.ArrayType(
        t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())])
    ),
}


def schema_of(*names: str) -> t.StructType:
    return t.StructType([t.StructField(name, SPARK_TYPES[name]) for name in names])


def sparks_arrow_schema(schema: t.StructType) -> Any:
    """With times in UTC, which Spark 4.0 says of all of them."""
    takes_zone = "timezone" in inspect.signature(to_arrow_schema).parameters
    return to_arrow_schema(schema, timezone="UTC") if takes_zone else to_arrow_schema(schema)


def test_the_columns_are_kafkas_in_kafkas_order() -> None:
    assert ddl_of(Projection()) == (
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp_ltz, "
        "timestampType int"
    )
    assert ddl_of(Projection((*KAFKA_COLUMNS, "headers"))).endswith(", headers array<struct<key:string,value:binary>>")


def test_what_the_reader_yields_is_what_spark_expects() -> None:
    assert list(COLUMN_TYPES) == list(ARROW_TYPES) == list(SPARK_TYPES)
    assert all(SPARK_TYPES[name].simpleString() == COLUMN_TYPES[name] for name in SPARK_TYPES)
    expected = sparks_arrow_schema(schema_of(*SPARK_TYPES))
    assert arrow_schema(tuple(SPARK_TYPES)).equals(expected)


def test_any_choice_in_any_order_is_taken() -> None:
    assert chosen_columns(schema_of("offset", "value")) == Projection(("offset", "value"))
    assert chosen_columns(schema_of("headers")) == Projection(("headers",))


def test_keys_and_values_may_be_strings() -> None:
    schema = t.StructType([t.StructField("value", t.StringType()), t.StructField("key", t.BinaryType())])
    assert chosen_columns(schema) == Projection(("value", "key"), frozenset({"value"}))
    expected = sparks_arrow_schema(schema)
    assert arrow_schema(("value", "key"), {"value"}).equals(expected)
    assert ddl_of(chosen_columns(schema)) == "value string, key binary"


def test_a_schema_of_arrow_is_taken_as_well() -> None:
    names = (*KAFKA_COLUMNS, "headers")
    assert chosen_columns(arrow_schema(names, {"key"})) == Projection(names, frozenset({"key"}))


def test_columns_are_named_with_their_types_or_without() -> None:
    assert parse_columns(" value  STRING,offset, timestamp timestamp ") == Projection(
        ("value", "offset", "timestamp"), frozenset({"value"})
    )
    assert parse_columns("timestamp timestamp_ltz") == Projection(("timestamp",))
    for text, message in {
        "timestamp timestamp_ntz": "column timestamp is timestamp_ltz, the schema says timestamp_ntz",
        "value strng": "column value is binary or string, the schema says strng",
        "ofset": "format warmlog has no column ofset: did you mean offset?",
        "": "format warmlog has no column , only key",
        "key,key": "names a column twice",
    }.items():
        with pytest.raises(ValueError, match=message):
            parse_columns(text)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            t.StructType([t.StructField("valeu", t.BinaryType())]),
            "format warmlog has no column valeu: did you mean value?",
        ),
        (t.StructType([t.StructField("Value", t.BinaryType())]), "no column Value: did you mean value?"),
        (t.StructType([t.StructField("colour", t.BinaryType())]), "no column colour, only key, value, topic"),
        (
            t.StructType([t.StructField("value", t.LongType())]),
            "column value is binary or string, the schema says bigint",
        ),
        (t.StructType([t.StructField("topic", t.BinaryType())]), "column topic is string, the schema says binary"),
        (t.StructType([t.StructField("partition", t.LongType())]), "column partition is int, the schema says bigint"),
        (
            t.StructType([t.StructField("key", t.BinaryType(), nullable=False)]),
            "column key may be null: leave out NOT NULL",
        ),
        (
            t.StructType(
                [t.StructField("headers", t.ArrayType(t.StructType([t.StructField("key", t.StringType(), False)])))]
            ),
            "column headers.element.key may be null: leave out NOT NULL",
        ),
        (schema_of("key", "key"), "the schema names a column twice: key, key"),
        (t.StructType([]), "the schema has no columns: choose some of key, value"),
    ],
)
def test_anything_else_is_refused(schema: t.StructType, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        chosen_columns(schema)
