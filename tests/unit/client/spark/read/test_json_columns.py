"""JSON records become typed columns, each in its own row; which schemas `valueFormat` json takes."""

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from warmlog.spark.options.option_table import Use
from warmlog.spark.options.options import take_options
from warmlog.spark.read.json_columns import JsonColumns
from warmlog.spark.read.typed_values import TypedValues, arrow_type, typed_values
from warmlog_protocol.errors import InvalidConfig, InvalidRecord

MISFIT = ("does not fit", None, None, None)
FIELDS = [("id", pa.int64()), ("name", pa.string()), ("v", pa.float64())]


def decoded(values: list[bytes | None], fields: list[tuple[str, pa.DataType]] = FIELDS) -> list[tuple[Any, ...]]:
    """A tuple of columns for each record, which begins with "does not fit" for those that do not."""
    columns, does_not_fit = JsonColumns(fields).decode(pa.array(values, pa.binary()))
    for column, (_, kind) in zip(columns, fields, strict=True):
        column.validate(full=True)
        assert (column.type, len(column)) == (kind, len(values))
    rows = list(zip(*(column.to_pylist() for column in columns), strict=True))
    return [("does not fit", *row) if is_bad else row for row, is_bad in zip(rows, does_not_fit, strict=True)]


def test_fields_are_found_by_name_missing_ones_are_null_and_others_passed_over() -> None:
    assert decoded(
        [b'{"v": 1, "id": 7, "more": {"a": [1, "}"]}}', b"{}", None, b' {"name":\n "gr\xc3\xb6\xc3\x9fe"}\n'],
    ) == [(7, None, 1.0), (None, None, None), (None, None, None), (None, "größe", None)]
    assert decoded([]) == []


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"  ",
        b"null",
        b"5",
        b"[]",
        b'"{}"',
        b"{",
        b"}",
        b"{}{}",
        b"{}\n{}",
        b'{"id": 1}{"id": 2}',
        b'{"id": "1"}',
        b'{"id": 1.5}',
        b'{"id": 9223372036854775808}',
        b'{"name": 5}',
        b'{"id": 1, "id": 2}',
        b'{"name": "a\nb"}',
        b'{"a": {}',
        b'{"name": "}',
        b"{\xff}",
    ],
)
def test_a_record_that_does_not_fit_takes_no_other_with_it(bad: bytes) -> None:
    good = [b'{"id": %d}' % number for number in range(5)]
    rows = [(number, None, None) for number in range(5)]
    assert decoded([*good[:3], bad, *good[3:]]) == [*rows[:3], MISFIT, *rows[3:]]
    assert decoded([bad]) == [MISFIT]
    assert decoded([b"", *good, b"{}{}", bad]) == [MISFIT, *rows, MISFIT, MISFIT]


def test_a_record_that_does_not_fit_keeps_the_fields_that_do() -> None:
    wrong_id, wrong_name = b'{"id": "4", "name": "four", "v": 4.5}', b'{"v": 5.5, "id": 5, "name": 5}'
    assert decoded([b'{"id": 3}', wrong_id, b"{}", wrong_name, b'{"id": 6, "v": 1} x']) == [
        (3, None, None),
        ("does not fit", None, "four", 4.5),
        (None, None, None),
        ("does not fit", 5, None, 5.5),
        MISFIT,
    ]


pieces = st.sampled_from([b"{", b"}", b'{"id": 1}', b"[", b"]", b",", b'"', b"\n", b" ", b'"id":', b"2", b"{}"])
good_records = st.builds(
    lambda id_, name, v: json.dumps({"id": id_, "name": name, "v": v}).encode(),
    st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
    st.one_of(st.none(), st.text(max_size=5)),
    st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)),
)
records = st.one_of(st.none(), good_records, st.lists(pieces, max_size=6).map(b"".join))


@given(values=st.lists(records, max_size=12))
def test_each_record_has_the_row_that_it_has_alone(values: list[bytes | None]) -> None:
    alone = [decoded([value])[0] for value in values]
    assert decoded(values) == alone
    for value, row in zip(values, alone, strict=True):
        try:
            document = json.loads(value or b"{}")
        except ValueError:
            document = None
        if len(row) == len(FIELDS) and isinstance(document, dict):
            assert row == tuple(document.get(name) for name, _ in FIELDS)


def test_every_type_is_parsed_nested_ones_too() -> None:
    fields = [
        ("small", pa.int8()),
        ("flag", pa.bool_()),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("list", pa.list_(pa.field("element", pa.date32()))),
        ("nested", pa.struct([("a", pa.float32()), ("b", pa.list_(pa.field("element", pa.string())))])),
    ]
    record = (
        b'{"small": -3, "flag": true, "price": 12.30, "day": "2026-11-21", "at": "2026-11-21T10:00:00.5+02:00", '
        b'"local": "2026-11-21 10:00:00", "list": ["2026-11-21", null], "nested": {"a": 1.5, "b": ["x", null]}}'
    )
    expected = (
        -3,
        True,
        Decimal("12.30"),
        date(2026, 11, 21),
        datetime(2026, 11, 21, 8, 0, 0, 500_000, UTC),
        datetime(2026, 11, 21, 10),
        [date(2026, 11, 21), None],
        {"a": 1.5, "b": ["x", None]},
    )
    wrong = [b'{"small": 200}', b'{"day": "yesterday"}', b'{"at": 5}', b'{"nested": []}', b'{"list": {"a": 1}}']
    assert decoded([record, *wrong, b"{}"], fields) == [
        expected,
        *[("does not fit", *[None] * len(fields))] * len(wrong),
        (None,) * len(fields),
    ]


JSON = {"bootstrap.servers": "b:1", "subscribe": "t", "valueFormat": "json"}


CITY = t.StructType([t.StructField("city", t.StringType(), False)])


def schema_of(**columns: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in columns.items()])


def values_of(schema: t.StructType, **options: str) -> TypedValues:
    found = typed_values(take_options({**JSON, **options}, Use.BATCH), schema)
    assert found is not None
    return pickle.loads(pickle.dumps(found))


def read(values: TypedValues, records: list[bytes | None]) -> pa.RecordBatch:
    """One batch as the reader makes it, decoded."""
    count = len(records)
    columns: dict[str, Any] = {
        "value": pa.array(records, pa.binary()),
        "key": pa.array([b"k"] * count),
        "topic": pa.array(["t"] * count),
        "partition": pa.array([3] * count, pa.int32()),
        "offset": pa.array(range(100, 100 + count), pa.int64()),
    }
    if "key" in values.projection.as_text:
        columns["key"] = pa.array(["k"] * count)
    batch = pa.RecordBatch.from_pydict({name: columns[name] for name in values.projection.names})
    (decoded,) = values.decode(iter([batch]))
    return decoded


def test_fields_and_the_records_own_columns_come_in_the_order_of_the_schema() -> None:
    schema = schema_of(
        _offset=t.LongType(), id=t.LongType(), _key=t.StringType(), name=t.StringType(), _corrupt=t.StringType()
    )
    values = values_of(schema)
    assert values.projection.names == ("value", "offset", "key")
    decoded = read(values, [b'{"id": 1, "name": "a"}', b"oops", None])
    assert decoded.schema.names == schema.names
    assert decoded.to_pylist() == [
        {"_offset": 100, "id": 1, "_key": "k", "name": "a", "_corrupt": None},
        {"_offset": 101, "id": None, "_key": "k", "name": None, "_corrupt": "oops"},
        {"_offset": 102, "id": None, "_key": "k", "name": None, "_corrupt": None},
    ]


def test_times_without_a_zone_are_in_utc_and_those_with_one_become_it() -> None:
    values = values_of(schema_of(at=t.TimestampType(), plain=t.TimestampNTZType()))
    decoded = read(values, [b'{"at": "%s", "plain": "%s"}' % (b"2026-11-20T05:00:00", b"2026-11-20T05:00:00+05:00")])
    assert decoded.to_pylist() == [{"at": datetime(2026, 11, 20, 5, tzinfo=UTC), "plain": datetime(2026, 11, 20, 0)}]


def test_a_schema_of_arrow_which_sail_has_is_refused_in_words() -> None:
    with pytest.raises(InvalidConfig, match="valueFormat json needs a schema of Spark's"):
        typed_values(take_options(JSON, Use.READ), pa.schema([("id", pa.int64())]))


def test_failfast_names_the_record() -> None:
    values = values_of(schema_of(id=t.LongType()), mode="FailFast")
    assert read(values, [b'{"id": 1}']).to_pylist() == [{"id": 1}]
    with pytest.raises(InvalidRecord, match=r"t-3 offset 101: the value b'oops' does not fit the schema"):
        read(values, [b"{}", b"oops"])


def test_types_are_those_that_spark_takes() -> None:
    nested = t.StructType([t.StructField("a", t.ArrayType(t.DateType()))])
    assert arrow_type(nested) == pa.struct([("a", pa.list_(pa.field("element", pa.date32())))])
    assert arrow_type(t.DecimalType(10, 2)) == pa.decimal128(10, 2)
    assert arrow_type(t.TimestampType()) == pa.timestamp("us", tz="UTC")
    assert arrow_type(t.DoubleType()) == pa.float64()


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        (
            schema_of(m=t.MapType(t.StringType(), t.LongType())),
            {},
            "column m: map<string,bigint> cannot be decoded from JSON",
        ),
        (schema_of(b=t.BinaryType()), {}, "column b is binary, which JSON does not have: use string"),
        (
            schema_of(s=t.StructType([t.StructField("a", t.ArrayType(t.BinaryType()))])),
            {},
            "column s.a.element is binary, which JSON does not have: use string",
        ),
        (schema_of(_offset=t.StringType()), {}, "column _offset is bigint, the schema says string"),
        (schema_of(_corrupt=t.LongType()), {}, "column _corrupt is string, the schema says bigint"),
        (t.StructType([t.StructField("id", t.LongType(), False)]), {}, "column id may be null"),
        (schema_of(s=CITY), {}, "column s.city may be null: leave out NOT NULL"),
        (schema_of(s=t.ArrayType(CITY)), {}, "column s.element.city may be null: leave out NOT NULL"),
        (
            schema_of(tags=t.ArrayType(t.StringType(), containsNull=False)),
            {},
            "column tags.element may be null: leave out containsNull=False",
        ),
        (
            schema_of(m=t.MapType(t.StringType(), t.LongType(), False)),
            {},
            "column m: map<string,bigint> cannot be decoded",
        ),
        (
            schema_of(id=t.LongType()),
            {"mode": "dropmalformed"},
            "option mode is 'dropmalformed': permissive or failfast",
        ),
        (schema_of(id=t.LongType()), {"valueFormat": "avro"}, "option valueFormat is 'avro': json is expected"),
        (
            schema_of(id=t.LongType()),
            {"columns": "value"},
            "the schema names the columns: leave out the option columns",
        ),
    ],
)
def test_what_cannot_be_decoded_is_refused_in_words(
    schema: t.StructType, options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        values_of(schema, **options)
    assert message in str(caught.value)


def test_a_name_says_nothing_of_the_type() -> None:
    values = values_of(schema_of(s=t.StructType([t.StructField("is_binary", t.BooleanType())]), binary=t.LongType()))
    assert read(values, [b'{"s": {"is_binary": true}}']).to_pylist() == [{"s": {"is_binary": True}, "binary": None}]


def test_a_mode_without_a_value_format_is_refused() -> None:
    given = {"bootstrap.servers": "b:1", "subscribe": "t"}
    assert typed_values(take_options(given, Use.BATCH), schema_of(value=t.BinaryType())) is None
    with pytest.raises(InvalidConfig, match="give both"):
        typed_values(take_options({**given, "mode": "failfast"}, Use.BATCH), schema_of(value=t.BinaryType()))
